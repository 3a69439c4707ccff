"""The command `submit`: submits a job, or a sweep of several jobs, to a coordinator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from marless.app.cli import exits
from marless.app.cli import jobs as verbs
from marless.app.cli.options import (
    CoordinatorOptions,
    JobFileArgument,
    Output,
    OutputOption,
    OverrideOption,
    job_ids,
    positive,
)
from marless.app.cli.output import say, show_job
from marless.app.cli.working import Working
from marless.core import documents
from marless.core.errors import AlreadyExistsError, JobStateError, NotFoundError, SpecError

if TYPE_CHECKING:
    from marless.app.cli.sweep import SweepRun
    from marless.app.client import Client, Job

MOST_JOBS = 20
"""Most jobs that a sweep may start without --yes."""
IfExists = Literal["fail", "use", "replace"]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check the job and estimate its rounds, duration and bills; start nothing.")
]
LikeOption = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="RUN",
        help="With --dry-run: recorded run to estimate from; default: the newest with the same settings.",
        autocompletion=job_ids,
    ),
]


def submit(  # noqa: PLR0913, PLR0917  # a command has as many parameters as options
    to: CoordinatorOptions,
    job_file: JobFileArgument,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    job: Annotated[
        str, typer.Option(help="Job id; default: the job's name and the time. For a sweep: prefix of its ids.")
    ] = "",
    seeds: Annotated[
        int | None,
        typer.Option(parser=positive, metavar="N", help="Sweep: submit N jobs, with the job's seed and the next ones."),
    ] = None,
    sweep: Annotated[
        list[str], typer.Option(metavar="A.B=C,D", help="Sweep: a job for each value; repeated: for each combination.")
    ] = [],  # noqa: B006  # typer's way
    yes: Annotated[
        int, typer.Option(parser=positive, metavar="N", help="Largest number of jobs in a sweep.")
    ] = MOST_JOBS,
    if_exists: Annotated[
        IfExists | None,
        typer.Option(help="If a job has this id: refuse (default), use it (default of a sweep), or replace it."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    follow: verbs.FollowOption = False,
    dry_run: DryRunOption = False,
    run: LikeOption = "",
    output: OutputOption = Output.table,
) -> None:
    """Submit a job to the coordinator and print its id; with --dry-run, only estimate its duration and cost.

    With --seeds and --sweep, submit several jobs and print their ids; with --wait, print a table once all have ended;
    with --dry-run, list the jobs without submitting them. Such a command can be repeated: jobs that exist are used, and
    those that failed or were cancelled are resumed.
    """
    if seeds or sweep:
        if run:
            raise SpecError("--from estimates one job: omit --seeds and --sweep, and multiply by the number of jobs")
        found = _planned(job_file, override, job, seeds, sweep, yes)
        if dry_run:
            _show_planned(found, output)
            return
        with to.client() as client:
            _submit_sweep(_Sweep(found, if_exists or "use", output), client, stay=wait or follow)
        return
    if estimated(job_file, override, dry_run=dry_run, run=run, at=to, output=output):
        return
    with to.client() as client:
        with Working("submitting"):
            accepted = client.submit(job_file, job=job or None, if_exists=if_exists or "fail", overrides=override)
        if follow:
            verbs.follow_job(client, accepted, output)
        say(f"submitted; `marless watch {accepted.job}` shows it")
        if wait:
            verbs.wait_for(client, accepted.job, None, output)
        show_job(accepted, Output.name if output is Output.table else output)


def estimated(
    job_file: Path, override: list[str], *, dry_run: bool, run: str, at: CoordinatorOptions, output: Output
) -> bool:
    """Print a job's estimate and return True if this is a --dry-run; raises SpecError for a job that cannot run."""
    if not dry_run:
        if run:
            raise SpecError("--from needs --dry-run: it names the recorded run to estimate from")
        return False
    from marless.app.cli.dry_run import estimate
    from marless.jobs import spec as specs

    estimate(specs.load(job_file, override), documents.name_of(job_file), run=run, at=at, output=output)
    return True


@dataclass(frozen=True)
class _Sweep:
    """A sweep to submit."""

    runs: Sequence[SweepRun]
    if_exists: IfExists
    output: Output


def _planned(
    job_file: Path, override: list[str], job: str, seeds: int | None, sweep: list[str], most: int
) -> Sequence[SweepRun]:
    """The jobs of a sweep; all are validated before the first is submitted."""
    from marless.app.cli import sweep as sweeps
    from marless.jobs import spec as specs

    source, axes = documents.name_of(job_file), sweeps.axes(sweep)
    sweeps.check_count(axes, seeds, most, source)
    document = specs.job_document(job_file)
    return sweeps.runs(document, source, prefix=job, overrides=override, sweep=axes, seeds=seeds)


def _show_planned(runs: Sequence[SweepRun], output: Output) -> None:
    """Validate every job of a sweep as a coordinator would, and print them; nothing is submitted."""
    from marless.app.cli.sweep import show_planned
    from marless.jobs.examining import examined
    from marless.jobs.job import prepare

    with Working("checking", "jobs") as working:
        for done, run in enumerate(runs):
            working.told(done, len(runs), run.id)
            try:
                prepare(run.spec, examined)
            except SpecError as error:
                raise SpecError(f"{run.id}: {error}") from None
    show_planned(runs, output)
    say("nothing was submitted; without --seeds and --sweep, --dry-run estimates what one job takes and costs")


def _submit_sweep(sweep: _Sweep, client: Client, *, stay: bool) -> None:
    from marless.app.cli.sweep import show_sweep

    begun: list[str] = []
    try:
        jobs = _handed_over(sweep, client, begun)
    except KeyboardInterrupt:
        continues = f"the jobs submitted so far continue: `marless cancel {' '.join(begun)}` ends them"
        say(f"interrupted; {continues if begun else 'no job was submitted'}; the same command submits the rest")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None
    with verbs.detachable(*(run.id for run in sweep.runs)):
        if stay:
            jobs = verbs.ended(client, jobs, None)
    there = {job.job for job in jobs}
    show_sweep(
        [run for run in sweep.runs if run.id in there],
        jobs,
        sweep.output if stay or sweep.output is not Output.table else Output.name,
    )
    if stay:
        verbs.end_all(jobs, None, missing=len(jobs) < len(sweep.runs))


def _handed_over(sweep: _Sweep, client: Client, begun: list[str]) -> list[Job]:
    """Submit all jobs of the sweep, existing ones first: if one of them has another spec, no new job is submitted.

    Each id is added to `begun` before its submission, because an interrupted submission may still be applied.
    """
    with Working("submitting", "jobs") as working:
        known = {run.id: job for run in sweep.runs if (job := _known(client, run.id))}
        if known and sweep.if_exists == "fail":
            raise AlreadyExistsError(f"these jobs exist: {', '.join(known)}; omit --if-exists to continue them")
        found, resumed = {}, 0
        for done, run in enumerate(sorted(sweep.runs, key=lambda run: run.id not in known)):
            working.told(done, len(sweep.runs), run.id)
            begun.append(run.id)
            try:
                job = client.submit(run.spec, job=run.id, if_exists=sweep.if_exists)
            except AlreadyExistsError as error:
                advice = "give the sweep a name of its own with --job, or --if-exists replace"
                raise AlreadyExistsError(f"{error}: {advice}") from None
            goes_on = sweep.if_exists == "use" and job.state in ("FAILED", "CANCELLED")
            found[run.id] = _resumed(client, job) if goes_on else job
            resumed += goes_on
    new = len(sweep.runs) - len(known)
    parts = [f"{new} job{'' if new == 1 else 's'} submitted"] + ([f"{len(known)} were there already"] if known else [])
    parts += [f"{resumed} of them resumed"] if resumed else []
    say(f"{', '.join(parts)}; the same command with --wait shows them when they have ended")
    return [found[run.id] for run in sweep.runs]


def _known(client: Client, job: str) -> Job | None:
    try:
        return client.get(job)
    except NotFoundError:
        return None


def _resumed(client: Client, job: Job) -> Job:
    """Resume a failed or cancelled job; returns it as it is if it was resumed meanwhile or has no round left."""
    try:
        return client.resume(job.job)
    except JobStateError as error:
        now = client.get(job.job)
        if now.state.ended:
            say(str(error))
        return now
