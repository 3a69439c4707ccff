"""`marless.train`: trains on this machine from Python, as the command `marless train` does.

The job runs in a thread of its own, with an event loop of its own: so it runs in a notebook, whose thread has a loop
already, and in any thread of a program. The caller's thread shows the progress, and hands on Ctrl-C if it is the main
one, to which Python gives signals.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from marless.app.cli.local import place
from marless.app.cli.output import say
from marless.core import documents, process_environment
from marless.core.errors import JobStateError, MarlessError, SpecError, UnavailableError, shown
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.app.cli.train import JobOutcome, Requests, Show, Where
    from marless.app.result import Result
    from marless.jobs.record import RoundRecord
    from marless.jobs.sections import StopSpec
    from marless.jobs.spec import JobSpec

_LOOK_S = 0.5
"""Seconds after which the caller's thread looks whether the job's thread has ended."""
_MOST_WORKERS = 256
_QUIET = {"GRPC_VERBOSITY": "NONE"}
"""gRPC logs lost connections to standard error; those that matter are errors."""


_LOCK = threading.Lock()
_running: list[bool] = []  # of the whole process, as what a job in it changes
"""For each job that this program is training, whether it runs in this process."""


class Display(Protocol):
    """Shows the progress of a job, in the caller's thread."""

    def show(self, record: RoundRecord) -> None:
        """A round has been recorded."""

    def look_back(self, record: RoundRecord) -> None:
        """The last round before the start."""

    def doing(self, reason: str) -> None:
        """The job's current activity has changed."""

    def note(self, sentence: str) -> None:
        """Something for the user has happened."""


def train(  # noqa: PLR0913  # as many settings as the command has options
    spec: JobSpec | Mapping[str, Any] | str | Path | None = None,  # Any: YAML
    *,
    seed: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  # as the command's option  # Any: YAML
    job: str = "",
    resume: str = "",
    runs: str | Path | None = None,
    in_process: bool = False,
    workers: int = 0,
    progress: bool = True,
) -> Result:
    """Train a job on this machine to its end, and return what it came to.

    Args:
        spec: A name such as "mpe/simple_spread", the path of a job file, a mapping of its sections, or a JobSpec.
        seed: The job's seed, if it is not that of the spec.
        set: Settings that replace those of the spec, by name: {"stop.env_steps": 40_000}. With `resume`, stop rules.
        job: The job's id; default: its name and the time.
        resume: In place of a spec, the id of a job of `runs` to be continued, however it was interrupted or ended.
        runs: The directory of run folders; default: $MARLESS_RUNS, else ./runs.
        in_process: Run all in this process, without services; no other job of this program may run meanwhile.
        workers: With `in_process`, so many processes play; 0: this one.
        progress: Show a bar in a notebook and on a terminal, and lines on standard error elsewhere.

    An interrupt (Ctrl-C, or the notebook's stop) ends the job after its present round, a second one at once. Then
    KeyboardInterrupt is raised, which says how to continue the job.

    Raises SpecError for invalid arguments, settings and jobs, NotFoundError for a job to be continued that does not
    exist, JobStateError if the job has failed or cannot be continued, UnavailableError if a service cannot be started,
    torch is not installed, or another job runs that excludes this one, KeyboardInterrupt.
    """
    folder = _checked(spec, resume, runs, job=job, workers=workers, in_process=in_process)
    if not isinstance(set, Mapping | None):
        raise SpecError(f"marless.train: set= is a mapping of settings by name, got {shown(set)}")
    settings = dict(set or {}) | ({} if seed is None else {"seed": seed})
    with _turn(in_process), process_environment.changed(_QUIET), place(workers, in_process=in_process) as where:
        if spec is None:
            return _resumed(resume, settings, folder, where, progress=progress)
        return _begun(_spec_of(spec, settings), job, folder, where, progress=progress)


def _checked(spec: object, resume: str, runs: str | Path | None, *, job: str, workers: int, in_process: bool) -> Path:
    """The directory of run folders; raises SpecError for arguments that exclude each other."""
    if (spec is None) == (not resume):
        raise SpecError("marless.train: give a job (a name, a file, a mapping or a JobSpec), or resume=, a job's id")
    if resume and job:
        raise SpecError("marless.train: job= names a new job; resume= continues one that has its name")
    if workers and not in_process:
        raise SpecError("marless.train: workers= is for in_process=True; on services, actors.count decides")
    if not isinstance(workers, int) or not 0 <= workers <= _MOST_WORKERS:
        raise SpecError(f"marless.train: workers={shown(workers)}: give a number from 0 to {_MOST_WORKERS}")
    folder = str(runs or os.environ.get("MARLESS_RUNS") or "runs")
    if is_address(folder):
        raise SpecError(f"runs: {folder} is a place in a bucket; give a directory")
    return Path(folder).absolute()  # the program may change its directory meanwhile


@contextmanager
def _turn(in_process: bool) -> Iterator[None]:
    """Context of a job of this program; raises UnavailableError if the job and one that runs exclude each other.

    A job in this process sets torch's threads, variables and the log for the whole process; and when it ends, it ends
    all processes that have begun below this one meanwhile: services of another job would be among them.
    """
    with _LOCK:
        if _running and (in_process or any(_running)):
            raise UnavailableError(
                "marless.train: this program is training another job, and a job with in_process=True runs alone in its "
                "program; wait for the other, or train both in programs of their own"
            )
        _running.append(in_process)
    try:
        yield
    finally:
        with _LOCK:
            _running.remove(in_process)


def _spec_of(given: object, settings: Mapping[str, Any]) -> JobSpec:  # Any: YAML
    """The job with these settings; raises SpecError."""
    from marless.jobs import spec as specs

    source = "spec"
    if isinstance(given, specs.JobSpec):
        document: object = json.loads(given.to_json())
    elif isinstance(given, str | Path):
        document, source = specs.job_document(Path(given)), str(given)
    elif isinstance(given, Mapping):
        document = dict(given)
    else:
        raise SpecError(f"marless.train: a job is a name, a file, a mapping or a JobSpec, got {shown(given)}")
    try:
        return specs.of_document(document, [_override(*each) for each in settings.items()], source)
    except SpecError as error:
        raise SpecError(str(error).replace("--set ", "set: ", 1)) from None


def _override(name: object, value: object) -> str:
    """A setting as `--set` takes it."""
    import numpy as np
    from yaml import YAMLError

    if isinstance(value, np.generic):  # as loops over NumPy's ranges give
        value = value.item()
    try:
        return f"{name}={documents.to_yaml_line(value)}"
    except YAMLError:
        raise SpecError(f"set: {name} is {shown(value)}; give a number, a text, a list or a mapping") from None


def _begun(spec: JobSpec, job: str, runs: Path, where: Where, *, progress: bool) -> Result:
    from marless.app.cli import train as local

    _, notes = local.prepared(spec, where)
    for note in notes if progress else ():
        say(f"note: {note}")
    job_id = job or local.claim_job_id(spec.name, runs)
    run = partial(local.train, spec, job_id=job_id, runs=runs, where=where, claimed=not job)
    return _result(_attended(job_id, runs, spec.stop, run, progress=progress))


def _resumed(job: str, settings: Mapping[str, Any], runs: Path, where: Where, *, progress: bool) -> Result:  # Any: YAML
    from marless.app.cli import train as local
    from marless.jobs import spec as specs

    if others := [name for name in settings if not str(name).startswith("stop.")]:
        raise SpecError(f"set: {others[0]}: only stop rules of a job can change, such as stop.rounds")
    rules = {name.removeprefix("stop."): value for name, value in settings.items()}
    stop = None
    with suppress(MarlessError, ValueError):  # what cannot be read, the run itself will report
        spec = specs.load_resolved(runs / job / "spec.yaml")
        stop = (specs.with_stop(spec, rules, "resume") if rules else spec).stop
    run = partial(local.resume, job, runs=runs, stop=rules or None, where=where)
    return _result(_attended(job, runs, stop, run, progress=progress))


def _attended(
    job: str,
    runs: Path,
    stop: StopSpec | None,
    run: Callable[..., JobOutcome],
    *,
    progress: bool,
) -> JobOutcome:
    """Run a job in a thread and show its progress in this one; raises KeyboardInterrupt if it was interrupted."""
    from marless.app.cli.recorded import unfinished
    from marless.app.cli.train import Requests
    from marless.app.notebook import display

    requests, events = Requests(), SimpleQueue[Callable[[], None]]()
    outcome: Future[JobOutcome] = Future()
    shown: AbstractContextManager[Display | None] = display(job, stop) if progress else nullcontext()
    with shown as showing, _interrupts(events, requests, showing) as interrupted:
        work = partial(_work, partial(run, show=_show(showing, events), interrupts=requests), outcome)
        thread = threading.Thread(target=work, name=f"marless {job}")
        thread.start()
        try:
            _show_until_ended(thread, events)
        finally:  # if the display has failed, too
            requests.interrupt()
            thread.join()
    where = "" if runs == Path("runs").absolute() else f", runs={str(runs)!r}"
    how = f"`marless.train(resume={job!r}{where})` continues it"
    known = any(each.job == job for each in unfinished(runs))
    try:
        done = outcome.result()
    except CancelledError:  # by the second interrupt
        raise KeyboardInterrupt(f"interrupted; {how if known else 'the job had not begun'}") from None
    except UnavailableError as error:
        raise UnavailableError(f"{error}; {how}" if known else str(error)) from None
    if interrupted() and done.job.state == "CANCELLED":
        raise KeyboardInterrupt(f"interrupted after {done.job.rounds:,} rounds; {how}")
    return done


def _work(run: Callable[[], JobOutcome], outcome: Future[JobOutcome]) -> None:
    """Run in the job's thread."""
    try:
        outcome.set_result(run())
    except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
        outcome.set_exception(error)


def _show(display: Display | None, events: SimpleQueue[Callable[[], None]]) -> Show:
    """What the job's thread calls: it leaves what is to be shown to the caller's thread."""
    from marless.app.cli.train import Show

    if display is None:
        return Show(record=lambda _: None, trouble=lambda _: None)

    def later(method: Callable[[Any], None]) -> Callable[[Any], None]:  # Any: a record or a text
        return lambda what: events.put(partial(method, what))

    return Show(
        record=later(display.show),
        past=later(display.look_back),
        trouble=later(display.note),
        doing=later(display.doing),
    )


def _show_until_ended(thread: threading.Thread, events: SimpleQueue[Callable[[], None]]) -> None:
    """Run what is to be run in the caller's thread, until the job's thread has ended."""
    while thread.is_alive() or not events.empty():
        with suppress(Empty):
            events.get(timeout=_LOOK_S)()


@contextmanager
def _interrupts(
    events: SimpleQueue[Callable[[], None]], requests: Requests, display: Display | None
) -> Iterator[Callable[[], bool]]:
    """Context in which Ctrl-C interrupts the job, if this is the main thread; yields whether it was interrupted.

    No KeyboardInterrupt is raised meanwhile, which could come between any two steps of this thread, and leave the job's
    thread behind.
    """
    count = 0

    def interrupt() -> None:
        requests.interrupt()
        if display and count == 1:
            display.note("interrupted: the job ends after its present round; once more ends it at once")

    def handle(*_: object) -> None:
        nonlocal count
        count += 1
        events.put(interrupt)  # the only queue that may be used in a handler

    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: count > 0
    finally:
        signal.signal(signal.SIGINT, before)


def _result(outcome: JobOutcome) -> Result:
    """The result of a job that has ended; raises JobStateError if it has failed."""
    from marless.app.cli.picture import draw_curve
    from marless.app.result import Result

    done, folder = outcome.job, Path(outcome.job.run_dir)
    if done.state == "FAILED":
        raise _failure(f"job {done.job} failed: {done.reason}; its log is {folder / 'log.jsonl'}", folder)
    with suppress(OSError, MarlessError):  # a curve that cannot be drawn fails no job
        draw_curve(folder)
    return Result.of(done)


def _failure(sentence: str, folder: Path) -> JobStateError:
    """The error of a failed job, with the traceback of what has ended it as a note, if the log has one."""
    from marless.app.cli.local import failure_detail

    error = JobStateError(sentence)
    if detail := failure_detail(folder):
        error.detail = detail
        error.add_note(detail)
    return error
