"""The command `train`: runs one job on this machine, with all services or in one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from marless.app.cli import exits
from marless.app.cli.jobs import stop_rules
from marless.app.cli.options import JOB_FILE_HELP, RUNS, CoordinatorOptions, Output, OutputOption, RunsOption, job_ids
from marless.app.cli.output import console, data, say, show_object
from marless.app.cli.submitting import DryRunOption, LikeOption, estimated
from marless.app.cli.working import Working
from marless.core import documents, process_environment
from marless.core.errors import MarlessError, SpecError, UnavailableError
from marless.core.installing import how_to_install
from marless.core.machine import usable_cores

SOON_S = 0.4
"""Seconds after which progress is shown, so that the first line of output appears within two seconds."""

if TYPE_CHECKING:
    from marless.app.cli.train import JobOutcome, Show, Where
    from marless.jobs.sections import StopSpec
    from marless.jobs.spec import JobSpec


ResumeOption = Annotated[
    str,
    typer.Option(
        metavar="JOB",
        help="Continue this job of --runs, however it was interrupted or ended.",
        autocompletion=job_ids,
    ),
]
ReplayOption = Annotated[
    str,
    typer.Option(
        metavar="JOB_OR_FOLDER",
        help="Repeat this run of schedule stellaris: the same events in the same order, so the same weights.",
        autocompletion=job_ids,
    ),
]
InProcessOption = Annotated[
    bool,
    typer.Option(
        "--in-process",
        help="Run all in this process, without services: debuggers and profilers see environments and nets.",
    ),
]
WorkersOption = Annotated[
    int, typer.Option(min=0, max=256, metavar="N", help="With --in-process: so many processes play; 0: this one.")
]


def train(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    job_file: Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help=JOB_FILE_HELP)] = None,
    override: Annotated[
        list[str],
        typer.Option("--set", metavar="A.B=C", help="Override a field of the job; with --resume, a stop rule."),
    ] = [],  # noqa: B006  # typer's way
    output: OutputOption = Output.table,
    runs: RunsOption = RUNS,
    job: Annotated[str, typer.Option(help="Job id; default: the job's name and the time.")] = "",
    resume: ResumeOption = "",
    replay: ReplayOption = "",
    in_process: InProcessOption = False,
    workers: WorkersOption = 0,
    dry_run: DryRunOption = False,
    like: LikeOption = "",
) -> None:
    """Train on this machine: start the four services, run the job, stop them, print a summary.

    With --in-process, there are no services: the same weights, by plain calls. With --dry-run, only estimate the
    duration and cost of the job.
    """
    if [bool(job_file), bool(resume), bool(replay)].count(True) != 1:
        raise SpecError("give one of these: a job file, --resume with a job's id, --replay with a run")
    if (resume or replay) and (dry_run or like):
        raise SpecError("--dry-run estimates a new job: give a job file in place of --resume or --replay")
    if replay and override:
        raise SpecError("--set: a replay has the settings of its run; leave it out")
    at = CoordinatorOptions("", runs, "")
    if job_file and estimated(job_file, override, dry_run=dry_run, run=like, at=at, output=output):
        return
    if workers and not in_process:
        raise SpecError("--workers: it is for --in-process; on services, the job's actors.count decides")
    with place(workers, in_process=in_process) as where:
        if job_file:
            outcome = _begin(job_file, override, job, runs, where)
        elif replay:
            outcome = _replay(replay, job, runs, at, where)
        else:
            outcome = _resume(resume, override, runs, where)
        if in_process and outcome.job.state == "FAILED" and (detail := failure_detail(Path(outcome.job.run_dir))):
            say(f"what has ended the job:\n{detail}")
    _report(outcome, output)


def failure_detail(folder: Path) -> str:
    """The traceback of what has ended a job, if its log has one: who debugs looks for the line."""
    with suppress(OSError, ValueError):
        last = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        return str(json.loads(last).get("detail", ""))
    return ""


def _logged(folder: Path, event: str) -> Mapping[str, Any]:  # Any: JSON
    """The newest line of a job's log with this event; empty without one."""
    with suppress(OSError, ValueError):
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        newest = next((line for line in reversed(lines) if f'"event": "{event}"' in line), "{}")
        return cast("Mapping[str, Any]", json.loads(newest))
    return {}


@contextmanager
def place(workers: int, *, in_process: bool) -> Iterator[Where]:
    """Where a job runs; what starts services begins at once, beside the check of the job.

    Raises UnavailableError without torch.
    """
    if find_spec("torch") is None:  # not imported, because that takes a second
        how = how_to_install("torch", "marless[train]")
        raise UnavailableError(f"training needs torch, which is not installed here: {how}")
    if in_process:
        # Before NumPy is imported: weights must not depend on the number of cores. A learner's own functions use them.
        with process_environment.changed(process_environment.learner(usable_cores())):
            from marless.app.cli.train import InProcess

            yield InProcess(workers)
        return
    from marless.app.cli.service_process import ahead
    from marless.app.cli.train import OnServices

    with ahead() as starter:
        yield OnServices(starter)


def _begin(job_file: Path, override: list[str], job: str, runs: Path, where: Where) -> JobOutcome:
    from marless.app.cli.check import summary
    from marless.app.cli.train import prepared
    from marless.jobs import spec as specs

    spec = specs.load(job_file, override)
    try:
        with Working(f"checking {job_file}: making {spec.env.name} once", quiet_s=SOON_S):
            checked, notes = prepared(spec, where)
    except SpecError as error:
        raise SpecError(f"{documents.name_of(job_file)}: {error}") from None
    for line in summary(checked):
        say(line)
    for note in notes:
        say(f"note: {note}")
    return _run(spec, job, runs, where)


def _replay(source: str, job: str, runs: Path, at: CoordinatorOptions, where: Where) -> JobOutcome:
    from marless.app.cli.recorded import find
    from marless.jobs.asynchronous_run import replayed
    from marless.jobs.sinks.base import check_sinks

    found = find(source, at)
    check_sinks(*found.spec.sinks)
    return _run(replayed(found.spec, found.records), job, runs, where)


def _run(spec: JobSpec, job: str, runs: Path, where: Where) -> JobOutcome:
    from marless.app.cli import train as local

    job_id = job or local.claim_job_id(spec.name, runs)
    train = partial(local.train, spec, job_id=job_id, runs=runs, where=where, claimed=not job)
    return _attended(job_id, runs, spec.stop, where, lambda show: train(show=show))


def _resume(job: str, override: list[str], runs: Path, where: Where) -> JobOutcome:
    from marless.app.cli import train as local
    from marless.jobs import spec as specs

    rules = stop_rules(override)
    shown = None
    with suppress(MarlessError, ValueError):  # what cannot be read, the run itself will report
        spec = specs.load_resolved(runs / job / "spec.yaml")
        shown = (specs.with_stop(spec, rules, "resume") if rules else spec).stop
    resume = partial(local.resume, job, runs=runs, stop=rules, where=where)
    return _attended(job, runs, shown, where, lambda show: resume(show=show))


def _attended(
    job: str, runs: Path, stop: StopSpec | None, where: Where, action: Callable[[Show], JobOutcome]
) -> JobOutcome:
    """Run a job with progress display; if it is interrupted, print how to continue it."""
    import asyncio

    from marless.app.cli.progress import TrainingProgress
    from marless.app.cli.train import InProcess, Show

    services = not isinstance(where, InProcess)
    begins = "starting four services" if services else "starting"
    # Without workers, a debugger's prompt may stand where a thread would print.
    lively = not isinstance(where, InProcess) or where.workers > 0
    try:
        with TrainingProgress(console(stderr=True), job, stop, begins, first_s=SOON_S, lively=lively) as shown:
            return action(Show(record=shown.show, past=shown.look_back, trouble=shown.note, doing=shown.doing))
    except asyncio.CancelledError:  # the second Ctrl-C
        say(f"interrupted; {'all services were stopped' if services else 'all was stopped'}{_how_to_go_on(job, runs)}")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None
    except UnavailableError as error:
        raise UnavailableError(f"{error}{_how_to_go_on(job, runs)}") from None


def _how_to_go_on(job: str, runs: Path) -> str:
    from marless.app.cli.recorded import unfinished

    where = "" if runs == RUNS else f" --runs {runs}"
    known = any(each.job == job for each in unfinished(runs))
    return f"; `marless train --resume {job}{where}` continues it" if known else ""


def _report(outcome: JobOutcome, output: Output) -> None:
    from marless.app.cli.picture import draw_curve
    from marless.app.cli.progress import summary_table

    job = outcome.job
    summary, folder = dict(job.summary or {}), Path(job.run_dir)
    if output is Output.table:
        console().print(summary_table(summary))
    elif output is Output.json:
        data(json.dumps(summary))
    else:
        show_object(summary, job.job, output)
    try:
        draw_curve(folder)
    except (OSError, MarlessError) as error:  # it is only said, because the job itself has not failed
        say(f"curve.png was not drawn: {error}")
    if job.rounds and job.greedy_return is None and (why := _logged(folder, "evaluation.given_up").get("why")):
        say(f"no greedy return: {why}")
    if job.state == "FAILED":
        say(f"job failed: {job.reason}")
    elif job.state == "CANCELLED":
        say(f"`marless train --resume {job.job}` continues it")
    raise typer.Exit(exits.ExitCode.INTERRUPTED if outcome.interrupted else exits.of_state(job.state))
