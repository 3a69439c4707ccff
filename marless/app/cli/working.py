"""Progress of slow commands: nothing if they finish quickly, else a bar, or a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time

from marless.app.cli.output import console, duration, harmless, say

QUIET_S = 0.7
"""Seconds before anything is shown. Without a terminal, the first line comes after twice that: within two seconds,
including the start of the interpreter and the imports."""
EVERY_S = 5.0
"""Seconds between two lines without a terminal."""
_FRAME_S = 0.1
_LEAST_SHARE = 0.02
"""Fraction that must be done before the time left is shown, because earlier it would be a guess."""


class Working:
    """A context manager that shows progress of slow work; `told` may be called from any thread, at any rate."""

    def __init__(self, what: str, unit: str = "", *, quiet_s: float | None = None) -> None:
        """`unit` names what is counted; without it, only the fraction done is shown. `quiet_s` replaces `QUIET_S`."""
        self._what = what
        self._quiet_s = QUIET_S if quiet_s is None else quiet_s
        self._unit = unit
        self._done = self._total = 0.0
        self._note = ""
        self._started_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Working:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def told(self, done: float, total: float, note: str = "") -> None:
        """Report that `done` of `total` has been done."""
        self._done, self._total, self._note = done, total, note

    def line(self) -> str:
        """The progress as a line of text."""
        took_s = time.monotonic() - self._started_s
        parts = [f"{self._what} …"]
        if self._total:
            counted = f"{self._done:,.0f} of {self._total:,.0f} {self._unit}, " if self._unit else ""
            parts.append(f"{counted}{self._done / self._total:.0%}")
        parts += [self._note] if self._note else []
        parts.append(f"{duration(took_s)} so far")
        if self._done and self._done >= _LEAST_SHARE * self._total:
            parts.append(f"{duration(took_s * (self._total - self._done) / self._done)} left")
        return f"{parts[0]} {', '.join(parts[1:])}"

    def _show(self) -> None:
        if self._over.wait(self._quiet_s):
            return
        if not sys.stderr.isatty():
            pause_s = self._quiet_s
            while not self._over.wait(pause_s):
                say(self.line())
                pause_s = EVERY_S
            return
        from rich import progress

        with progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.TaskProgressColumn(),
            progress.TextColumn("{task.fields[note]}", markup=False),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console(stderr=True),
            transient=True,
            redirect_stdout=False,  # data must not be redirected to the bar
        ) as bar:
            task = bar.add_task(harmless(self._what), total=None, note="")
            while not self._over.wait(_FRAME_S):
                bar.update(task, completed=self._done, total=self._total or None, note=harmless(self._note))
