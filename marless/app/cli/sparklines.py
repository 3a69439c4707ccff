"""The rows below the bar of `marless watch`: return and actors over rounds as sparklines, and the cost so far.

Rows fit the terminal: on a narrow one sparklines shorten, then go. Without Unicode they are drawn in ASCII.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from marless.app.cli.output import number
from marless.core.errors import SpecError
from marless.cost.billing.ledger import Ledger
from marless.jobs import prices

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from marless.jobs.record import RoundRecord
    from marless.jobs.spec import JobSpec

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_MOST_POINTS = 512
"""Most points that a series keeps; an even number. The terminal is narrower."""
_WIDEST, _LEAST = 60, 8
"""Most and fewest columns of a sparkline."""
_LABEL = len("return  ")


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool) -> str:
    """The values as at most `width` characters, lowest to highest; more values than that are averaged in equal parts.

    Values that are all alike are drawn half-way up. Nothing is drawn of values that are not finite.
    """
    finite, levels = [value for value in values if math.isfinite(value)], _ASCII_LEVELS if ascii_only else _LEVELS
    columns = min(width, len(finite))
    edges = [len(finite) * column // columns for column in range(columns + 1)] if columns > 0 else [0]
    means = [fmean(finite[start:end]) for start, end in itertools.pairwise(edges)]
    if not means:
        return ""
    least, span = min(means), max(means) - min(means)
    if not 0 < span < math.inf:
        return levels[len(levels) // 2 - 1] * len(means)
    return "".join(levels[min(int((mean - least) / span * len(levels)), len(levels) - 1)] for mean in means)


@dataclass
class Series:
    """A number of every round, first to last. With more than `_MOST_POINTS` points, neighbours become their mean."""

    first: float | None = None
    last: float | None = None
    points: list[float] = field(default_factory=list)
    _begun: list[float] = field(default_factory=list)
    """Values of the next point."""
    _size: int = 1
    """Values in a point."""

    def add(self, value: float) -> None:
        """Add the next value."""
        self.first, self.last = value if self.first is None else self.first, value
        self._begun.append(value)
        if len(self._begun) < self._size:
            return
        points, self._begun = [*self.points, fmean(self._begun)], []
        if len(points) == _MOST_POINTS:
            points, self._size = [fmean(points[at : at + 2]) for at in range(0, _MOST_POINTS, 2)], 2 * self._size
        # Replaced, not changed: the terminal is drawn by another thread.
        self.points = points


class RunningCost:
    """The cost of the rounds that were added, by the accounting of the job."""

    def __init__(self, spec: JobSpec) -> None:
        self._accounting, self._budget_usd = spec.bill.accounting, spec.stop.cost_usd
        self._ledger: Ledger | None = None
        self._from = 0
        """The first round that was added."""
        self._usd: float | None = None
        with suppress(SpecError):
            self._ledger = Ledger(spec, prices.merged(spec.bill.prices), (self._accounting,))

    def add(self, record: RoundRecord) -> None:
        """Add the next round. What cannot be priced has no cost from here on."""
        if self._ledger is None:
            return
        if self._usd is None:
            self._from = record.round
        try:
            self._ledger.add(record)
            self._usd = self._ledger.total_usd(self._accounting)
        except SpecError:
            self._ledger = self._usd = None

    @property
    def text(self) -> str:
        """The cost for display; "" if it is unknown."""
        if self._usd is None:
            return ""
        of = f" of {self._budget_usd:g}" if self._budget_usd else ""
        since = f", since round {self._from + 1:,}" if self._from else ""
        return f"{self._usd:.6f}{of} USD ({self._accounting}{since})"


class WatchedCourse:
    """What `marless watch` shows of the rounds that it was told, in rows of text."""

    def __init__(self, spec: JobSpec | None) -> None:
        """Without the job's spec, there is no cost."""
        self._exploring, self._greedy, self._actors = Series(), Series(), Series()
        self._cost = RunningCost(spec) if spec else None
        self.left = ""
        """The time left, if the bar has no room for it."""

    def add(self, record: RoundRecord) -> None:
        """Add the next round."""
        for evaluation in record.evaluations:
            self._greedy.add(evaluation.returns.mean)
        if record.returns:
            self._exploring.add(record.returns.mean)
        self._actors.add(record.actors)
        if self._cost:
            self._cost.add(record)

    def rows(self, width: int, *, ascii_only: bool) -> list[str]:
        """Rows of at most `width` columns: the return of the greedy policies, or while exploring; actors; cost;
        and the time left if the bar does not show it."""
        returns = self._greedy if self._greedy.points else self._exploring
        found = [
            _row("return", returns, number, width, ascii_only=ascii_only),
            _row("actors", self._actors, "{:.0f}".format, width, ascii_only=ascii_only),
            f"{'cost':<{_LABEL}}{self._cost.text}" if self._cost and self._cost.text else "",
            f"{'time':<{_LABEL}}{self.left}" if self.left else "",
        ]
        return [row[:width] for row in found if row]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for row in self.rows(options.max_width, ascii_only=options.ascii_only):
            yield Text(row, no_wrap=True, overflow="crop")


def _row(label: str, series: Series, told: Callable[[float], str], width: int, *, ascii_only: bool) -> str:
    """One row: its name, the sparkline, and its first and last value; "" without any."""
    if series.first is None or series.last is None:
        return ""
    last = told(series.last)
    ends = f"{told(series.first)} {'->' if ascii_only else '→'} {last}"
    room = min(width - _LABEL - len("  ") - len(ends), _WIDEST)
    if room < _LEAST:
        return f"{label:<{_LABEL}}{ends if _LABEL + len(ends) <= width else last}"
    return f"{label:<{_LABEL}}{sparkline(series.points, room, ascii_only=ascii_only)}  {ends}"
