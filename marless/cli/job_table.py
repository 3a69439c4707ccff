"""Jobs as a table that fits: on a narrow terminal the least important columns are left out, and nothing is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.cli.output import harmless, number, percent

if TYPE_CHECKING:
    from rich.table import Table

    from marless.client import Job

_GAP = 2
"""Between two columns."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One thing that is told of every row."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """Numbers are aligned at their ends."""
    goes: int = 0
    """The higher, the sooner it is left out; 0: never."""

    @property
    def width(self) -> int:
        """Characters of its widest cell."""
        return max(map(len, (self.title, *self.cells)))


def job_table(jobs: Sequence[Job], width: int) -> Table:
    """One line a job, at most `width` characters wide if their ids let it."""

    def column(title: str, of: Callable[[Job], str], *, goes: int = 0, right: bool = False) -> Column:
        return Column(title=title, cells=[harmless(of(job)) for job in jobs], right=right, goes=goes)

    columns = [
        column("job", lambda job: job.job),
        column("state", lambda job: job.state),
        column("rounds", lambda job: f"{job.rounds:,}", right=True, goes=1),
        column("env steps", lambda job: f"{job.env_steps:,}", right=True, goes=5),
        column("return", lambda job: number(job.greedy_return), right=True),
        column("random", lambda job: number(job.random_return), right=True, goes=3),
        column("won", lambda job: percent(job.win_rate), right=True, goes=2),
        column("env", lambda job: job.env, goes=6),
        column("algorithm", lambda job: job.algorithm, goes=7),
        column("accepted", lambda job: _accepted(job.accepted_s), goes=4),
    ]
    return fitted([each for each in columns if each.title != "won" or any(each.cells)], width)


def fitted(columns: Sequence[Column], width: int) -> Table:
    """A table of those columns for which there is room; a text that is still too long goes on in the next line."""
    from rich.table import Table

    kept = list(columns)
    while sum(each.width + _GAP for each in kept) - _GAP > width and any(each.goes for each in kept):
        kept.remove(max(kept, key=lambda each: each.goes))
    table = Table(box=None, pad_edge=False)
    for each in kept:
        table.add_column(
            each.title, justify="right" if each.right else "left", overflow="fold", min_width=_least(each, kept)
        )
    for row in zip(*(each.cells for each in kept), strict=True):
        table.add_row(*row)
    return table


def _least(column: Column, kept: Sequence[Column]) -> int | None:
    """All but the first, which names its row, stay whole."""
    return None if column is kept[0] else column.width


def _accepted(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s)) if unix_s else ""
