"""Runs one job on this machine, from start to end: with all services, or without them.

For the command `train`, which Ctrl-C interrupts, and for the function `marless.train`, which runs it in a thread.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from marless.app.cli.check import at_a_glance
from marless.app.cli.recorded import unfinished
from marless.app.cli.service_process import Starter
from marless.app.cli.stack import LocalStack, StackOptions
from marless.app.client import AsyncClient, Job
from marless.app.client.asynchronous import DirectClient
from marless.core.errors import JobStateError, NotFoundError, SpecError, UnavailableError, denied
from marless.core.limits import check_id
from marless.jobs.examining import glanced
from marless.jobs.job import PreparedJob, advice, prepare
from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import check_sinks
from marless.jobs.spec import JobSpec
from marless.learning.data.trial import Trial
from marless.learning.envs.base import EnvSpaces
from marless.storage.checkpoint import DiskCheckpoints

START_S = 120.0
INTERRUPT_S = 2.0
"""Seconds that a submission under way at Ctrl-C may take; if it succeeds in time, the job is then cancelled."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Show:
    """Callbacks for the progress of a job."""

    record: Callable[[RoundRecord], None]
    """Called for every newly recorded round."""
    trouble: Callable[[str], None]
    """Called with a message about a service that died."""
    doing: Callable[[str], None] = lambda _: None
    """Called with the job's current activity whenever it changes."""
    past: Callable[[RoundRecord], None] = lambda _: None
    """Called with the last round before the start, because rates need two rounds."""


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job."""

    job: Job
    interrupted: bool
    """True if the user pressed Ctrl-C."""


class Interrupts(Protocol):
    """What interrupts a job."""

    def around(self) -> AbstractContextManager[None]:
        """Context of the whole run, outside of its event loop."""

    def calling(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Context in the event loop, in which each interrupt calls `interrupt` there."""


class Signals:
    """Ctrl-C, and SIGTERM, of which only the first counts; for the main thread."""

    @contextmanager
    def around(self) -> Iterator[None]:
        before = signal.getsignal(signal.SIGINT)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def calling(self, interrupt: Callable[[], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        terminated = False

        def terminate() -> None:
            nonlocal terminated
            # Only Ctrl-C insists by coming again: when a parent process is killed, the kernel may send the signal that
            # tells its child so several times, once for each of the parent's threads.
            if not terminated:
                terminated = True
                interrupt()

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the loop is closed; `around` restores it


class Requests:
    """Interrupts that another thread of this process asks for; handlers of signals stay as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before = 0
        """Interrupts before the loop ran."""
        self._call: Callable[[], object] | None = None

    def interrupt(self) -> None:
        """Interrupt the job; without effect once it has ended."""
        with self._lock:
            if self._call:
                self._call()
            else:
                self._before += 1

    def around(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def calling(self, interrupt: Callable[[], None]) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._call = partial(loop.call_soon_threadsafe, interrupt)
            for _ in range(self._before):
                loop.call_soon(interrupt)
        try:
            yield
        finally:
            with self._lock:
                self._call = None


class Where(Protocol):
    """Where a job runs."""

    def coordinator(self, folder: Path, told: Callable[[str], None]) -> AbstractAsyncContextManager[Reached]:
        """Start a coordinator for the job of a run folder, and stop it when the context ends.

        Args:
            told: Called with a message about a service that was restarted.
        """


Reached: TypeAlias = tuple[AsyncClient, Callable[[], Coroutine[Any, Any, UnavailableError]]]  # Any: as asyncio has it
"""A client of a coordinator, and what returns an error once the coordinator, or a service behind it, is given up."""


@dataclass(frozen=True)
class OnServices:
    """Four services on this machine, each a process; they are started by `starter`, if given."""

    starter: Starter | None = None

    @asynccontextmanager
    async def coordinator(self, folder: Path, told: Callable[[str], None]) -> AsyncIterator[Reached]:
        """Start all services. Raises UnavailableError if one cannot be started."""
        stack = LocalStack(
            runs=folder.parent,
            logs=folder / "logs",
            data=folder / "store",
            options=StackOptions(
                # Other unfinished jobs of the same directory wait for their own commands, or for `marless up`.
                environment={"coordinator": {"MARLESS_ONLY": folder.name}},
                told=told,
                starter=self.starter,
            ),
        )
        # Secrets of the environment are for another coordinator; this one has a private socket.
        async with stack, AsyncClient(stack.coordinator, token="", tls_ca="", contact_s=START_S) as client:
            yield client, stack.failed


@dataclass(frozen=True)
class InProcess:
    """This process, by plain calls; with `workers`, so many others play."""

    workers: int = 0

    @asynccontextmanager
    async def coordinator(self, folder: Path, told: Callable[[str], None]) -> AsyncIterator[Reached]:
        # By name, as `OnServices` starts its processes: no import leads from here to the services.
        serving = importlib.import_module("marless.services.coordinator.in_process.serving")
        async with serving.serving(folder, workers=self.workers) as servicer, DirectClient(servicer) as client:
            yield client, _never


async def _never() -> UnavailableError:
    """What cannot fail by itself is never given up."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


def claim_job_id(name: str, runs: Path) -> str:
    """A job id that sorts by time, <name>-<date>-<time>, and no other command has; its run folder is made.

    A second command in the same second gets the id with -2 at its end. Raises UnavailableError.
    """
    first = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    job_id, number = first, 1
    try:
        runs.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                (runs / job_id).mkdir()
                return job_id
            except FileExistsError:  # it is another command's
                number += 1
                job_id = f"{first}-{number}"
    except OSError as error:
        raise UnavailableError(f"no run folder can be made: {denied(error)}") from None


def prepared(spec: JobSpec, where: Where) -> tuple[PreparedJob, list[str]]:
    """Check a job where it will run, by making its environment once, and glance at how that plays; raises SpecError.

    Returns the job, and what may be unintended or go wrong, a sentence each: what trains wrongly must not do so in
    silence, and few look with `marless check` first.
    """
    check_sinks(*spec.sinks)  # the coordinator will have this process's packages and environment
    seen: Trial | None = None

    def examined(name: str, options: Mapping[str, Any]) -> tuple[EnvSpaces, bool]:  # Any: YAML
        nonlocal seen
        found = glanced(name, options)
        seen = found.trial
        return found.spaces, found.can_be_saved

    # A debugger follows into the constructor of an environment only if that is called here.
    plain = isinstance(where, InProcess) and not where.workers
    job = prepare(spec, None if plain else examined)
    return job, [note for note in (advice(job), *(at_a_glance(job, seen) if seen else ())) if note]


def train(
    spec: JobSpec,
    *,
    job_id: str,
    runs: Path,
    show: Show,
    where: Where | None = None,
    claimed: bool = False,
    interrupts: Interrupts | None = None,
) -> JobOutcome:
    """Run a job to its end, by default on services; `claimed` ids are those of `claim_job_id`.

    Raises SpecError if the job id is invalid or taken, UnavailableError if a service cannot be started or keeps dying,
    asyncio.CancelledError on a second Ctrl-C.
    """
    check_id(job_id)
    folder = runs.resolve() / job_id
    if folder.exists() and not claimed:
        raise SpecError(f"{folder} exists already; choose another job id with --job")

    async def begin(client: AsyncClient) -> int:
        await client.submit(spec, job=job_id, attached=True)
        return 0

    return _Attended(folder, show, where or OnServices(), interrupts or Signals()).run(begin)


def resume(
    job_id: str,
    *,
    runs: Path,
    stop: Mapping[str, Any] | None,  # Any: YAML
    show: Show,
    where: Where | None = None,
    interrupts: Interrupts | None = None,
) -> JobOutcome:
    """Resume an interrupted or ended job in its run folder, with new `stop` rules if given.

    Raises NotFoundError if it does not exist, JobStateError if it is running or has no round left to run, and the
    errors of `train`.
    """
    check_id(job_id)
    folder = runs.resolve() / job_id
    if not (folder / "job.json").exists():
        raise NotFoundError(f"{folder} contains no job")
    left = [job for job in unfinished(runs) if job.job == job_id]
    # With a store of its own it is run by another `train`: the lock of that store refuses a second one, and names it.
    # A command that was killed leaves services that are ending: they have its store, and the next stack waits for it.
    waits = not isinstance(where, InProcess) and (folder / "store").exists()
    if any(job.run_by_somebody for job in left) and not waits:
        raise JobStateError(
            f"job {job_id} is being run by a coordinator or another command; `marless watch {job_id}` shows it, if it "
            "is a coordinator"
        )

    async def begin(client: AsyncClient) -> int:
        job = await client.get(job_id)
        if stop and not job.state.ended:
            await client.cancel(job_id)
        # A second Ctrl-C left it between its cancellation and its end: it ends first, and then goes on.
        if not job.state.ended and (stop or any(each.cancelling for each in left)):
            job = await client.wait(job_id)
        # One that was interrupted goes on as soon as there is a coordinator, and may have come to its end by now.
        if job.state.ended and (stop or not left or left[0].cancelling):
            await client.resume(job_id, stop=stop)
        return job.rounds

    return _Attended(folder, show, where or OnServices(), interrupts or Signals()).run(begin)


@dataclass
class _Attended:
    """Runs one job with a coordinator of its own."""

    folder: Path
    show: Show
    where: Where
    interrupts: Interrupts
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self, begin: Callable[[AsyncClient], Awaitable[int]]) -> JobOutcome:
        """Start the coordinator, follow the job to its end; `begin` submits it and returns the round to watch from."""
        with self.interrupts.around():
            job = asyncio.run(self._attend(begin))
        return JobOutcome(job, self.interrupted.is_set())

    async def _attend(self, begin: Callable[[AsyncClient], Awaitable[int]]) -> Job:
        with _interrupting(self.interrupts, self.interrupted) as hold_off:
            async with AsyncExitStack() as held:
                started = held.enter_async_context(self.where.coordinator(self.folder, self.show.trouble))
                client, failed = await self._unless_interrupted(started)
                try:
                    job = await _unless_failed(failed(), self._follow(client, begin))
                finally:
                    hold_off()
            if job.rounds in (0, *DiskCheckpoints(self.folder / "checkpoints").rounds()):
                for name in ("store", "replay"):  # the newest checkpoint holds the same state
                    shutil.rmtree(self.folder / name, ignore_errors=True)
            return job

    async def _unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T:  # Any: as asyncio has it
        """Await work that precedes the job; raises CancelledError if interrupted and not done soon after."""
        working, interrupted = asyncio.create_task(work), asyncio.create_task(self.interrupted.wait())
        try:
            await asyncio.wait([working, interrupted], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await asyncio.wait([working], timeout=INTERRUPT_S)
        finally:
            interrupted.cancel()
            working.cancel()
            await asyncio.wait([working])
        return working.result()

    async def _follow(self, client: AsyncClient, begin: Callable[[AsyncClient], Awaitable[int]]) -> Job:
        first = await self._unless_interrupted(_given(begin(client)))
        cancelling = asyncio.create_task(self._cancel_when_interrupted(client))
        try:
            async with aclosing(client.watch(self.folder.name, cursor=max(first - 1, 0))) as events:
                async for event in events:
                    if event.record:
                        (self.show.record if event.cursor > first else self.show.past)(event.record)
                    elif event.job and event.job.state.ended:
                        return event.job
                    elif event.job:
                        self.show.doing(event.job.reason)
        finally:
            cancelling.cancel()
            await asyncio.gather(cancelling, return_exceptions=True)
        raise UnavailableError(f"the coordinator closed the stream of job {self.folder.name} before the job ended")

    async def _cancel_when_interrupted(self, client: AsyncClient) -> None:
        await self.interrupted.wait()
        await client.cancel(self.folder.name)


async def _given(awaitable: Awaitable[T]) -> T:
    return await awaitable


async def _unless_failed(
    failed: Coroutine[Any, Any, UnavailableError],  # Any: as asyncio has it, twice
    work: Coroutine[Any, Any, Job],
) -> Job:
    """The result of `work`; raises what `failed` returns if that comes first."""
    working, failing = asyncio.create_task(work), asyncio.create_task(failed)
    try:
        await asyncio.wait([working, failing], return_when=asyncio.FIRST_COMPLETED)
        if failing.done():
            raise failing.result()
        return working.result()
    finally:
        for task in (working, failing):
            task.cancel()
        await asyncio.gather(working, failing, return_exceptions=True)


@contextmanager
def _interrupting(interrupts: Interrupts, event: asyncio.Event) -> Iterator[Callable[[], None]]:
    """Handle interrupts: the first sets `event`, which cancels the job; the second cancels this task at once.

    Yields a function to call when nothing is left to cancel. From then on, and after the second one, further ones are
    ignored: services are being stopped, and one that is not waited for would outlive this command.
    """
    task = asyncio.current_task()
    cancellable = [task] if task else []

    def interrupt() -> None:
        if event.is_set() and cancellable:
            cancellable.pop().cancel()
        event.set()

    with interrupts.calling(interrupt):
        yield cancellable.clear
