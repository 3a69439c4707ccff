"""Makes runs of a comparison in processes of their own, several at a time; each trains without services.

A process is the command `marless train --in-process`. Runs are independent: one that fails does not stop the others.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from marless.app.cli.comparison_folder import InterruptedRunError
from marless.app.cli.output import duration, say
from marless.core import regular_files

if TYPE_CHECKING:
    from marless.cost.comparison.runs import Run

_PROGRAM = "from marless.app.cli import attached_command; attached_command()"
_LAST_BYTES = 4096
"""Bytes of the end of a log in which its last line is looked for."""


class RunProcesses:
    """Runs of one comparison, at most `processes` at a time.

    Where each can have cores of its own it gets them, so that the durations of one contain no waiting for another.
    """

    def __init__(self, runs: Path, logs: Path, processes: int) -> None:
        self._runs, self._logs, self._processes = runs, logs, processes
        self._children: set[asyncio.subprocess.Process] = set()
        self._interrupted = False

    def make(self, missing: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
        """Make all these runs; returns why each of those failed that did, by id.

        `names` says which run it is: "3 of 40". Ctrl-C ends each after its present round, a second one at once; then
        InterruptedRunError is raised.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        return asyncio.run(self._make_all(missing, names))

    async def _make_all(self, missing: Sequence[Run], names: Sequence[str]) -> dict[str, str]:
        free: asyncio.Queue[Sequence[int]] = asyncio.Queue()
        for cores in _shares(self._processes):
            free.put_nowait(cores)

        async def make(run: Run, name: str) -> str:
            cores = await free.get()
            try:
                return "" if self._interrupted else await self._make_one(run, name, cores)
            finally:
                free.put_nowait(cores)

        with self._interrupts():
            reasons = await asyncio.gather(*(make(run, name) for run, name in zip(missing, names, strict=True)))
        if self._interrupted:
            raise InterruptedRunError("interrupted")
        return {run.id: reason for run, reason in zip(missing, reasons, strict=True) if reason}

    async def _make_one(self, run: Run, name: str, cores: Sequence[int]) -> str:
        """Make or continue a run; returns why it failed, "" if it did not."""
        folder, started_s = self._runs / run.id, time.monotonic()
        known = regular_files.is_there(folder / "job.json")
        if folder.exists() and not known:
            shutil.rmtree(folder)  # it was interrupted before the job existed
        say(f"run {name}: {run.id} for {', '.join(run.variants)}")
        how = ("--resume", run.id) if known else ("-", "--job", run.id)
        command = [sys.executable, "-P", "-c", _PROGRAM, "train", *how, "--in-process", "--runs", str(self._runs)]
        log = self._logs / f"{run.id}.log"
        with log.open("ab") as written:
            child = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=written,
                stderr=written,
                start_new_session=True,  # Ctrl-C reaches only this process, which hands it on once
            )
        self._children.add(child)
        try:
            if cores:
                with suppress(OSError):  # it has ended already
                    os.sched_setaffinity(child.pid, cores)
            await child.communicate(b"" if known else run.spec.to_yaml().encode())
        finally:
            self._children.discard(child)
        if self._interrupted:
            return ""
        if not child.returncode:
            say(f"run {name}: done in {duration(time.monotonic() - started_s)}")
            return ""
        reason = _reason(child.returncode or 0, log)
        say(f"run {name} failed: {reason}; its log is {log}")
        return reason

    @contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Context in which Ctrl-C and SIGTERM are handed on to the runs, and no further run begins."""
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            self._interrupted = True
            for child in self._children:
                with suppress(ProcessLookupError):
                    child.send_signal(signal.SIGINT)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupt)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _shares(processes: int) -> list[Sequence[int]]:
    """The cores of each of so many processes; empty where all may use all, because there is one, or too few cores."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if processes == 1 or processes > len(cores):
        return [()] * processes
    return [cores[number::processes] for number in range(processes)]


def _reason(code: int, log: Path) -> str:
    """Why a run failed: by which signal it ended, or the last line that it printed."""
    if code < 0:
        return f"it was ended by {signal.Signals(-code).name}"
    with log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
        lines = file.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with exit code {code}")
    return last.removeprefix("marless: ").removeprefix("job failed: ")
