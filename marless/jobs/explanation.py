"""Explains a job's actors and groups by the decisions stored in its round records.

Rounds are numbered from 0, as in the records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Literal

from marless.jobs.record import Decision, RoundRecord

Kind = Literal["scaling", "sharing"]
What = Literal["start", "share", "split", "regroup", "more actors", "fewer actors"]
MOST_STRETCHES = 6
"""Most stretches of a chapter; if there were more, all its rounds with the same kind of reason form one stretch."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\b(?:nan|inf)\b")


@dataclass(frozen=True, kw_only=True)
class DecisionChange:
    """A round whose number of actors or groups differ from the round before; the first round counts as a change."""

    round: int
    what: What
    before: str
    """Outcome of the previous round's decision; "" for the first round."""
    decision: Decision

    def to_json(self) -> dict[str, Any]:  # Any: what JSON can hold
        """All fields as a JSON object."""
        decision = self.decision
        return {
            "round": self.round,
            "kind": decision.kind,
            "change": self.what,
            "rule": decision.rule,
            "before": self.before,
            "after": decision.outcome,
            "reason": decision.reason,
            "inputs": decision.inputs,
        }


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Rounds decided by one rule for one kind of reason: their reasons are the same sentence but for its numbers.

    The rounds are successive, and their numbers of actors never both rise and fall within one stretch; or they are all
    rounds of a chapter with that kind of reason, if it would have more than `MOST_STRETCHES`.
    """

    rounds: tuple[int, ...]
    before: int | None
    """Number of actors in the round before; None for the job's first round, for stretches of groups, and for rounds
    that are not successive."""
    actors: tuple[int, ...]
    """Number of actors in each round."""
    decision: Decision
    """The decision for round `decided`."""
    decided: int
    """The last round that changed the number of actors, or the first round if none did."""
    varies: bool
    """True if the numbers in the reasons differ between rounds."""

    @property
    def first(self) -> int:
        """The first of the rounds."""
        return self.rounds[0]

    @property
    def last(self) -> int:
        """The last of the rounds."""
        return self.rounds[-1]

    @property
    def successive(self) -> bool:
        """True if the rounds follow one another without a gap."""
        return self.last - self.first == len(self.rounds) - 1


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Successive rounds with the same groups, and the decisions for them."""

    first: int
    last: int
    opening: DecisionChange
    groups: tuple[Stretch, ...]
    """The reasons for the groups; the first stretch begins with `opening`."""
    actors: tuple[Stretch, ...]
    """The reasons for the number of actors."""


def changes(records: Sequence[RoundRecord]) -> tuple[DecisionChange, ...]:
    """Every change of groups or actors, in order; the first round's decisions count as changes."""
    found: list[DecisionChange] = []
    before: RoundRecord | None = None
    for record in as_acted(records):
        changed: tuple[tuple[Kind, What | None], ...] = (
            ("sharing", _regrouped(before, record)),
            ("scaling", _scaled(before, record)),
        )
        for kind, what in changed:
            if what:
                decision = _decision(record, kind)
                old = _decision(before, kind).outcome if before else ""
                found.append(DecisionChange(round=record.round, what=what, before=old, decision=decision))
        before = record
    return tuple(found)


def chapters(records: Sequence[RoundRecord]) -> tuple[Chapter, ...]:
    """All rounds in a form that people can read: grouped by equal groups, and within those by the kind of reason."""
    records = as_acted(records)
    openings = {change.round: change for change in changes(records) if change.decision.kind == "sharing"}
    starts = [index for index, record in enumerate(records) if record.round in openings]
    found = []
    for start, end in pairwise([*starts, len(records)]):
        part = records[start:end]
        # Rounds with equal groups are split where the kind of reason for the groups changes.
        by_reason = groupby(part, key=lambda record: _why(_decision(record, "sharing")))
        grouped = tuple(_stretch("sharing", tuple(same), None) for _, same in by_reason)
        scaled = tuple(_scaled_stretches(part, records[start - 1].actors if start else None))
        found.append(
            Chapter(
                first=part[0].round,
                last=part[-1].round,
                opening=openings[part[0].round],
                groups=_few("sharing", grouped, part),
                actors=_few("scaling", scaled, part),
            )
        )
    return tuple(found)


def as_acted(records: Sequence[RoundRecord]) -> tuple[RoundRecord, ...]:
    """The rounds, each with the scaling decision that its number of actors follows from.

    Where rounds overlap, the decision that is recorded with a round's groups is on the actors of the round after it.
    """
    found = list(records[:1])
    for before, record in pairwise(records):
        found.append(replace(record, decisions=acted(before, record)) if before.ahead else record)
    return tuple(found)


def acted(before: RoundRecord | None, record: RoundRecord) -> tuple[Decision, ...]:
    """The decisions that a round's groups and number of actors follow from; `before` is the round before it."""
    if before is None or not before.ahead:
        return record.decisions
    return tuple(
        each
        for kind, decisions in (("scaling", before.decisions), ("sharing", record.decisions))
        for each in decisions
        if each.kind == kind
    )


def _regrouped(before: RoundRecord | None, now: RoundRecord) -> What | None:
    if before is None:
        return "start"
    old, new = ({frozenset(group.agents) for group in record.groups} for record in (before, now))
    if old == new:
        return None
    return "share" if len(new) < len(old) else "split" if len(new) > len(old) else "regroup"


def _scaled(before: RoundRecord | None, now: RoundRecord) -> What | None:
    if before is None:
        return "start"
    if now.actors == before.actors:
        return None
    return "more actors" if now.actors > before.actors else "fewer actors"


def _decision(record: RoundRecord, kind: Kind) -> Decision:
    """A round's decision; for a record without one, only what it came to."""
    for decision in record.decisions:
        if decision.kind == kind:
            return decision
    if kind == "scaling":
        return Decision(kind="scaling", rule="", outcome=f"{record.actors} actors", reason="")
    groups = " ".join("+".join(group.agents) for group in record.groups)
    return Decision(kind="sharing", rule="", outcome=groups, reason="")


def _why(decision: Decision) -> tuple[str, str]:
    """The rule of a decision and its kind of reason: the sentence with its numbers replaced by "#"."""
    return decision.rule, _NUMBER.sub("#", decision.reason)


def _scaled_stretches(records: Sequence[RoundRecord], before: int | None) -> Iterator[Stretch]:
    """Split rounds where the number of actors starts to rise or fall, or the kind of reason changes."""
    part: list[RoundRecord] = []
    earlier, last, direction = before, before, 0
    for record in records:
        step = 0 if last is None else (record.actors > last) - (record.actors < last)
        turned = step not in (0, direction)
        if part and (turned or _why(_decision(record, "scaling")) != _why(_decision(part[-1], "scaling"))):
            yield _stretch("scaling", part, earlier)
            part, earlier, direction = [], last, 0
        # A round without a change keeps the direction: a rise, a rest and a rise are one stretch.
        direction = step or direction
        part.append(record)
        last = record.actors
    yield _stretch("scaling", part, earlier)


def _stretch(kind: Kind, part: Sequence[RoundRecord], before: int | None) -> Stretch:
    told, last = part[0], before
    for record in part:
        if kind == "scaling" and last is not None and record.actors != last:
            told = record
        last = record.actors
    return Stretch(
        rounds=tuple(record.round for record in part),
        before=before,
        actors=tuple(record.actors for record in part),
        decision=_decision(told, kind),
        decided=told.round,
        varies=len({_decision(record, kind).reason for record in part}) > 1,
    )


def _few(kind: Kind, stretches: tuple[Stretch, ...], part: Sequence[RoundRecord]) -> tuple[Stretch, ...]:
    """The same stretches, or one per kind of reason if there are more than `MOST_STRETCHES`."""
    if len(stretches) <= MOST_STRETCHES:
        return stretches
    by_reason: dict[tuple[str, str], list[RoundRecord]] = {}
    for record in part:
        by_reason.setdefault(_why(_decision(record, kind)), []).append(record)
    return tuple(_stretch(kind, same, None) for same in by_reason.values())
