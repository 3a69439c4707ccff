"""Shows the progress of `marless.train`: in a notebook as a bar in the cell, elsewhere as the command line does.

In a notebook, rich's own bar needs ipywidgets; IPython's display needs nothing, and is updated in place.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from marless.app.cli.output import console, say
from marless.app.cli.progress import TrainingProgress

if TYPE_CHECKING:
    from marless.app.training import Display
    from marless.jobs.record import RoundRecord
    from marless.jobs.sections import StopSpec

_BEGINS = "starting"
_PAUSE_S = 0.2
"""Least seconds between two updates of the cell: each is a message to the browser, and stays in the file if late."""


@contextmanager
def display(job: str, stop: StopSpec | None) -> Iterator[Display]:
    """Show the progress of a job until the context ends."""
    if not in_notebook():
        with TrainingProgress(console(stderr=True), job, stop, _BEGINS) as shown:
            yield shown
        return
    cell = CellProgress(job, stop)
    try:
        yield cell
    finally:
        cell.end()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, and not only an IPython shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


class CellProgress:
    """A bar and a line of text in the output of a notebook's cell."""

    def __init__(self, job: str, stop: StopSpec | None) -> None:
        from rich.console import Console

        # It computes the text and the fraction done; nothing is printed.
        self._course = TrainingProgress(Console(quiet=True, force_jupyter=False), job, stop, _BEGINS, lively=False)
        self._job = job
        self._last_s = time.monotonic()
        self._handle: Any = sys.modules["IPython"].display.display(self, display_id=True)  # Any: IPython has no types

    def show(self, record: RoundRecord) -> None:
        self._course.show(record)
        self._soon()

    def look_back(self, record: RoundRecord) -> None:
        self._course.look_back(record)

    def doing(self, reason: str) -> None:
        self._course.doing(reason)
        self._soon()

    def note(self, sentence: str) -> None:
        say(sentence)

    def end(self) -> None:
        """Leave the last round in the cell, if there was one."""
        if self._course.rounds:
            self._course.doing("training")
        self.update()

    def update(self) -> None:
        """Show the present state in the cell."""
        self._last_s = time.monotonic()
        self._handle.update(self)

    def _soon(self) -> None:
        if time.monotonic() - self._last_s >= _PAUSE_S:
            self.update()

    def __repr__(self) -> str:
        return f"{self._job}: {self._course.done:.0%} · {self._course.status}"

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self._course.done:.4f}" max="1"></progress>'
        return f"<div>{html.escape(self._job)} {bar} {html.escape(self._course.status)}</div>"
