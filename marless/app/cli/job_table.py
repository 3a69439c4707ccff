"""Tables that fit the terminal: the least important columns are dropped on narrow ones, and no text is cut off."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.app.cli.output import harmless, number, percent

if TYPE_CHECKING:
    from rich.table import Table

    from marless.app.client import Job

_GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """Align to the right, for numbers."""
    goes: int = 0
    """Priority for dropping: the highest is dropped first; 0: never dropped."""

    @property
    def width(self) -> int:
        """Characters of its widest cell or its title."""
        return max(map(len, (self.title, *self.cells)))


def job_table(jobs: Sequence[Job], width: int) -> Table:
    """A table with one row per job, at most `width` characters wide if the ids permit."""

    def column(title: str, of: Callable[[Job], str], *, goes: int = 0, right: bool = False) -> TableColumn:
        return TableColumn(title=title, cells=[harmless(of(job)) for job in jobs], right=right, goes=goes)

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


def fitted(columns: Sequence[TableColumn], width: int) -> Table:
    """A table with as many columns as fit; text that is still too long wraps to the next line."""
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


def _least(column: TableColumn, kept: Sequence[TableColumn]) -> int | None:
    """Least width of a column: its full width, except for the first column, which may wrap."""
    return None if column is kept[0] else column.width


def _accepted(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s)) if unix_s else ""
