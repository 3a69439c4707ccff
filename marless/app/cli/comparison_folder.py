"""The run folders of a comparison: which of its runs exist already, and making those that are missing.

Runs are made one after another, here, each on a stack of its own, or on a coordinator; or several at a time, each in a
process of its own without services. Finished ones are not repeated, and interrupted ones are resumed.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from marless.app.cli import exits
from marless.app.cli.options import CoordinatorOptions
from marless.app.cli.output import console, duration, say
from marless.app.cli.recorded import Recorded, from_folder
from marless.core import documents, regular_files
from marless.core.errors import JobStateError, NotFoundError, SpecError, UnavailableError

if TYPE_CHECKING:
    from marless.app.cli.train import Show
    from marless.app.client import Client
    from marless.cost.comparison.runs import Run
    from marless.jobs.spec import JobSpec

Result = TypeVar("Result")


class InterruptedRunError(JobStateError):
    """The run was interrupted by Ctrl-C."""


@dataclass(frozen=True)
class ComparisonFolder:
    """The directory with the run folders of a comparison."""

    runs: Path

    def finished(self, run: Run) -> bool:
        """True if the run has succeeded; raises SpecError if another job has its id."""
        found = self._found(run, records=False)
        return found is not None and found.state == "SUCCEEDED"

    def read(self, run: Run) -> Recorded:
        """Read a finished run with its records; raises NotFoundError if it no longer exists."""
        found = self._found(run, records=True)
        if found is None:
            raise NotFoundError(f"{self.runs / run.id} no longer exists; --resume repeats that run")
        return found

    def _found(self, run: Run, *, records: bool) -> Recorded | None:
        folder = self.runs / run.id
        if not regular_files.is_there(folder / "job.json"):
            return None
        found = from_folder(folder, records=records)
        check_same(run, found.spec, str(folder))
        return found

    def make_missing(self, runs: Sequence[Run], at: CoordinatorOptions, *, continues: str, what: str = "run") -> None:
        """Make all runs that are not finished yet, here or on the coordinator of `at`.

        If one is interrupted or fails, what is printed ends with `continues`, which says how to continue. `what` is
        the name that is printed for a run.
        """
        missing = [run for run in runs if not self.finished(run)]
        if len(missing) < len(runs):
            say(f"{len(runs) - len(missing)} of {len(runs)} {what}s exist already")
        try:
            with ExitStack() as held:
                client = held.enter_context(at.client()) if at.coordinator and missing else None
                if client:
                    say("note: runs share this coordinator's workers: the first run is charged for their start")
                for run in missing:
                    number = f"{what} {runs.index(run) + 1} of {len(runs)}"
                    if client:
                        self.make_there(run, number, client)
                    else:
                        self.make_here(run, number)
        except (InterruptedRunError, KeyboardInterrupt, asyncio.CancelledError) as interrupt:  # the last: Ctrl-C twice
            say(f"{str(interrupt) or 'interrupted'}; {continues}")
            raise typer.Exit(exits.ExitCode.INTERRUPTED) from None
        except SpecError:
            raise
        except JobStateError as error:
            raise JobStateError(f"{error}; {continues}") from None
        except UnavailableError as error:
            raise UnavailableError(f"{error}; {continues}") from None

    def make_here(self, run: Run, number: str) -> None:
        """Make a run on this machine, on a stack of its own, so that all runs have the same cold starts."""
        from marless.app.cli import train

        folder = self.runs / run.id
        known = regular_files.is_there(folder / "job.json")
        if folder.exists() and not known:
            shutil.rmtree(folder)  # it was interrupted before the job existed
        if known:
            outcome = _shown(run, number, lambda show: train.resume(run.id, runs=self.runs, stop=None, show=show))
        else:
            outcome = _shown(run, number, lambda show: train.train(run.spec, job_id=run.id, runs=self.runs, show=show))
        if outcome.interrupted:
            raise InterruptedRunError(f"interrupted in run {run.id}")
        if outcome.job.state != "SUCCEEDED":
            raise JobStateError(f"run {run.id} ended {outcome.job.state}: {outcome.job.reason}")

    def make_there(self, run: Run, number: str, client: Client) -> None:
        """Make a run on a coordinator, and download its run folder."""
        from marless.jobs import spec as specs

        try:
            known = client.get(run.id)
        except NotFoundError:
            known = client.submit(run.spec, job=run.id)
        else:
            document = documents.yaml_of(client.read(run.id, "spec.yaml").decode(), f"job {run.id}")
            check_same(run, specs.parse(document, f"job {run.id}"), f"the coordinator's job {run.id}")
            if known.state.ended and known.state != "SUCCEEDED":
                known = client.resume(run.id)
        if not known.state.ended:
            _shown(run, number, lambda show: _follow(client, run.id, show))
            known = client.get(run.id)
        if known.state != "SUCCEEDED":
            raise JobStateError(f"run {run.id} ended {known.state}: {known.reason}")
        client.download(run.id, self.runs / run.id)


def check_same(run: Run, found: JobSpec, where: str) -> None:
    """Raise SpecError, naming the sections, if `found` does not train identically to the run's spec."""
    from marless.jobs.presets import training_key

    wanted, there = (json.loads(training_key(spec)) for spec in (run.spec, found))
    differing = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if differing:
        raise SpecError(
            f"{where} was run with other settings ({', '.join(differing)}); choose another --out, "
            "or another name for the job"
        )


def _shown(run: Run, number: str, action: Callable[[Show], Result]) -> Result:
    from marless.app.cli.progress import TrainingProgress
    from marless.app.cli.train import Show

    say(f"{number}: {run.id} for {', '.join(run.variants)}")
    with TrainingProgress(console(stderr=True), run.id, run.spec.stop, "starting four services …") as shown:
        return action(Show(record=shown.show, past=shown.look_back, trouble=shown.note, doing=shown.doing))


def _follow(client: Client, job: str, show: Show) -> None:
    for event in client.watch(job):
        if event.record:
            show.record(event.record)
        elif event.job and not event.job.state.ended:
            show.doing(event.job.reason)


_PROGRAM = "from marless.app.cli import attached_command; attached_command()"
_LAST_BYTES = 4096
"""Bytes of the end of a log in which its last line is looked for."""


class RunProcesses:
    """Runs of one comparison, at most `processes` at a time, each by the command `marless train --in-process`.

    Runs are independent: one that fails does not stop the others.
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
