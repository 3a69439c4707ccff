"""`RunSeries`: a job's curves in memory, a column of numbers for each, one number a round; and its groups and marks.

Long curves are shown by some of their points: the lowest and the highest of each stretch are kept.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from marless.app.dashboard.rows import GroupStretch, Mark, RoundRow, RoundUpdate, RowDecision, RowReturns
from marless.core.errors import SpecError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray


def chosen(columns: Sequence[NDArray[np.float64]], first: int, end: int, points: int) -> NDArray[np.intp]:
    """Indexes in [first, end) at which curves are shown, ascending.

    Each curve is cut into `points` / 2 stretches of equally many known values, and of each stretch the lowest and the
    highest value are kept, so that no peak is lost. The first and the last index are kept, too.

    Args:
        columns: Values by index; NaN where a curve has none.
        first: The first index of the range.
        end: The index after the last one.
        points: Values kept of each curve, about.
    """
    found = [np.asarray([first, end - 1] if end > first else [], dtype=np.intp)]
    for values in columns:
        known = np.flatnonzero(~np.isnan(values[first:end])) + first
        found.append(known if len(known) <= points else _extremes(values, known, max(points // 2, 1)))
    return np.unique(np.concatenate(found))


def _extremes(values: NDArray[np.float64], known: NDArray[np.intp], stretches: int) -> NDArray[np.intp]:
    bounds = np.linspace(0, len(known), stretches + 1).astype(np.intp)
    picked = [known[0], known[-1]]
    for start, end in pairwise(bounds):
        part = values[known[start:end]]
        picked += [known[start + int(part.argmin())], known[start + int(part.argmax())]]
    return np.asarray(picked, dtype=np.intp)


MOST_COLUMNS = 600
"""Most curves of a job; with 10,000 rounds they take 48 MB."""
MOST_NAMED = {"agent": 300, "policy": 150}
"""Most of them that are of single agents, and of single policies: a large team displaces none of the job's own."""
MOST_STRETCHES = 10_000
"""Most stretches of equal groups that are kept, the newest ones."""
MOST_MARKS = 2000
RECENT = 512
"""Newest rounds whose update is kept as text for those that follow."""
AXES = ("rounds", "env-steps", "seconds", "usd")
_CONSTANT = ("min", "max")
"""Inputs of scaling decisions that do not change."""


class RunSeries:
    """The curves of one job. Rounds are added in order; evaluations of older policies belong to an earlier round."""

    def __init__(self) -> None:
        self.columns: dict[str, array[float]] = {}
        self.left_out = 0
        """Curves that were not kept, because a job has at most MOST_COLUMNS."""
        self.stretches: deque[GroupStretch] = deque(maxlen=MOST_STRETCHES)
        self.marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self.marked = 0
        """Marks so far, with those that are not kept."""
        self.updates: deque[RoundUpdate] = deque(maxlen=RECENT)
        """The newest rounds, as browsers get them."""
        self.versions: Mapping[str, int] = {}
        self.rounds = 0
        self._seconds = 0.0
        self._refused: set[str] = set()
        self._named: Counter[str] = Counter()
        """Curves of single agents and policies so far."""

    def add(self, row: RoundRow) -> None:
        """Add the next round."""
        self._seconds += row.spent_s
        values = dict(_values(row)) | {"seconds": self._seconds}
        self.rounds += 1
        for name, value in values.items():
            self.set(name, row.round, value)
        changed = {row.round: values}
        if earlier := row.earlier_evaluation:
            late = dict(_returns("greedy", earlier.returns))
            changed[earlier.rounds - 1] = late
            for name, value in late.items():
                self.set(name, earlier.rounds - 1, value)
        for mark in _marks(row):
            self.add_mark(mark)
        self.versions = row.versions or self.versions
        self._add_groups(row)
        known = self.columns if self._refused else None
        stretch = replace(self.stretches[-1])
        self.updates.append(RoundUpdate(row=row, changed=changed, stretch=stretch, known=known))

    def set(self, name: str, round_: int, value: float) -> None:
        """Set one number of a curve; rounds without one have NaN."""
        column = self.columns.get(name)
        if column is not None and len(column) == round_:  # the usual case, quickly
            column.append(value)
            return
        if column is None:
            kind = name.partition("/")[0]
            if len(self.columns) >= MOST_COLUMNS or self._named[kind] >= MOST_NAMED.get(kind, MOST_COLUMNS):
                self._refused.add(name)
                self.left_out = len(self._refused)
                return
            self._named[kind] += 1
            column = self.columns[name] = array("d")
        if len(column) <= round_:
            column.extend([math.nan] * (round_ + 1 - len(column)))
        column[round_] = value

    def add_mark(self, mark: Mark) -> None:
        """Add a mark."""
        self.marks.append(mark)
        self.marked += 1

    def _add_groups(self, row: RoundRow) -> None:
        groups = tuple((each.policy, each.agents) for each in row.groups)
        decision = next((each for each in row.decisions if each.kind == "sharing"), None)
        last = self.stretches[-1] if self.stretches else None
        if last and last.groups == groups:
            last.last = row.round
            return
        rule, reason = (decision.rule, decision.reason) if decision else ("", "")
        self.stretches.append(GroupStretch(row.round, row.round, groups, rule, reason))

    def column(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """A copy of a curve, one number for each round."""
        found = np.full(self.rounds, math.nan)
        known = self.columns.get(name, array("d"))
        found[: len(known)] = known[: self.rounds]
        return found

    def query(
        self, names: Sequence[str], axis: str, *, low: float | None, high: float | None, points: int
    ) -> dict[str, Any]:  # Any: JSON
        """Curves between two places of an axis, with at most about `points` values each, as JSON.

        Raises SpecError for an unknown axis.
        """
        if axis not in AXES:
            raise SpecError(f"x: {unknown_name('axis', axis, AXES)}")
        places = self.places(axis)
        known = np.flatnonzero(~np.isnan(places))
        first, end = 0, int(known[-1]) + 1 if len(known) else 0
        if low is not None:
            # One more on either side, so that lines go on to the edges.
            first = max(int(np.searchsorted(places[:end], low)) - 1, 0)
        if high is not None:
            end = min(int(np.searchsorted(places[:end], high, side="right")) + 1, end)
        columns = {name: self.column(name) for name in names if name in self.columns}
        at = chosen(list(columns.values()), first, end, points)
        return {
            "rounds": at.tolist(),
            "x": places[at].tolist(),
            "columns": {name: values[at].tolist() for name, values in columns.items()},
            "total": self.rounds,
            "shown": len(at),
        }

    def places(self, axis: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Where each round is on an axis."""
        if axis == "rounds":
            return np.arange(1, self.rounds + 1, dtype=np.float64)
        return self.column({"env-steps": "env_steps", "seconds": "seconds", "usd": "cost/billed"}[axis])

    def names(self) -> list[str]:
        """The names of all curves."""
        return sorted(self.columns)


def _values(row: RoundRow) -> Iterator[tuple[str, float]]:
    yield "env_steps", row.env_steps
    yield "actors", row.actors
    yield "policies", len(row.groups)
    yield "phase/rollout", row.phases.rollout
    yield "phase/update", row.phases.update
    yield "phase/evaluation", row.phases.evaluation
    yield from _returns("exploring", row.returns)
    yield from _returns("greedy", row.evaluation)
    yield from _metrics(row.metrics)
    if row.aggregation and row.aggregation.gradients:
        staleness = [each.staleness for each in row.aggregation.gradients]
        yield "staleness/mean", sum(staleness) / len(staleness)
        yield "staleness/most", max(staleness)
    for decision in row.decisions:
        if decision.kind == "scaling":
            yield from _signals(decision)


def _returns(kind: str, returns: RowReturns | None) -> Iterator[tuple[str, float]]:
    if returns is None:
        return
    yield f"return/{kind}", returns.mean
    if (rate := returns.win_rate) is not None:
        yield f"won/{kind}", rate
    for agent, value in returns.per_agent.items():
        yield f"agent/{kind}/{agent}", value


def _metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, float]]:
    """The mean of each metric over all policies and critics that have it, and its value for each."""
    gathered: dict[str, list[float]] = {}
    for policy, values in metrics.items():
        for name, value in values.items():
            if value is not None:
                gathered.setdefault(name, []).append(value)
                if len(metrics) > 1:
                    yield f"policy/{name}/{policy}", value
    for name, each in gathered.items():
        yield f"metric/{name}", sum(each) / len(each)


def _signals(decision: RowDecision) -> Iterator[tuple[str, float]]:
    """The numbers that a scaling policy decided by."""
    try:
        inputs = msgspec.json.decode(decision.inputs)
    except msgspec.DecodeError:  # NaN among them
        return
    for name, value in inputs.items() if isinstance(inputs, dict) else ():
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in _CONSTANT:
            yield f"signal/{name}", float(value)


def _marks(row: RoundRow) -> Iterator[Mark]:
    if row.idle_s is None and row.round:
        yield Mark(row.round, "recovery", "the job continued after an interruption")
    if row.retried:
        yield Mark(row.round, "fault", "an invocation was lost and repeated")
    if row.evaluation_given_up:
        yield Mark(row.round, "fault", "the evaluation was given up: no episode ended in time")
