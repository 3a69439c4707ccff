"""Verbs that speak to a coordinator about its jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
import yaml

from marless import documents
from marless.cli import exits
from marless.cli.options import Connection, JobArgument, JobFileArgument, Output, OutputOption, OverrideOption
from marless.cli.output import console, data, log_line, say, show_job, show_jobs
from marless.errors import NotFoundError, SpecError, unknown_name

if TYPE_CHECKING:
    from marless.cli.progress import TrainingProgress
    from marless.client import Client, Job
    from marless.spec import StopSpec

RECENT_ROUNDS = 50
"""Who starts to watch in the middle sees so many rounds of the past, which is where the present rate comes from."""
ALL = sys.maxsize
_LOG_LINES = 20
FollowOption = Annotated[bool, typer.Option("--follow", help="Show progress until it ends.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Check the job and estimate its rounds, duration and bills; start nothing.")
]
LikeOption = Annotated[
    str,
    typer.Option("--from", metavar="RUN", help="Of --dry-run: the recorded run to go by; default: the newest alike."),
]


def submit(  # noqa: PLR0913, PLR0917  # a verb has as many parameters as options
    to: Connection,
    job_file: JobFileArgument,
    override: OverrideOption = [],  # noqa: B006  # typer's way
    job: Annotated[str, typer.Option(help="Job id; default: the job's name and the time.")] = "",
    if_exists: Annotated[
        Literal["fail", "use", "replace"], typer.Option(help="If a job has this id: refuse, use it, or replace it.")
    ] = "fail",
    wait: Annotated[bool, typer.Option("--wait", help="Return when it has ended.")] = False,
    follow: FollowOption = False,
    dry_run: DryRunOption = False,
    run: LikeOption = "",
    output: OutputOption = Output.table,
) -> None:
    """Hand a job to the coordinator, and print its id; with --dry-run, say what it would take and cost instead."""
    if estimated(job_file, override, dry_run=dry_run, run=run, at=to, output=output):
        return
    with to.client() as client:
        accepted = client.submit(job_file, job=job or None, if_exists=if_exists, overrides=override)
        if follow:
            _follow(client, accepted, output)
        say(f"submitted; `marless watch {accepted.job}` shows it")
        if wait:
            _wait(client, accepted.job, None, output)
        show_job(accepted, Output.name if output is Output.table else output)


def list_(
    to: Connection,
    state: Annotated[list[str], typer.Option(metavar="STATE", help="Only jobs in this state.")] = [],  # noqa: B006
    output: OutputOption = Output.table,
) -> None:
    """List jobs, newest first."""
    from marless.client import JobState

    for each in state:
        if each.upper() not in list(JobState):
            raise SpecError(f"--state: {unknown_name('state', each.upper(), map(str, JobState))}")
    with to.client() as client:
        show_jobs(client.list(states=[each.upper() for each in state]), output)


def get(to: Connection, job: JobArgument, output: OutputOption = Output.table) -> None:
    """Show one job."""
    with to.client() as client:
        show_job(client.get(job), output)


def watch(to: Connection, job: JobArgument, output: OutputOption = Output.table) -> None:
    """Show a job's progress until it ends; with -o jsonl, print the record of every round."""
    with to.client() as client:
        _follow(client, client.get(job), output, past_rounds=ALL if output is Output.jsonl else RECENT_ROUNDS)


def logs(
    to: Connection,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    tail: Annotated[int, typer.Option(min=0, metavar="N", help="Only the last N lines; 0: all.")] = 0,
    output: Annotated[Literal["table", "jsonl"], typer.Option("--output", "-o", help="jsonl: as written.")] = "table",
) -> None:
    """Print a job's log."""
    with to.client() as client, _detachable(job):
        for line in client.logs(job, follow=follow, tail=tail):
            data(log_line(line) if output == "table" else line.text)


def wait(
    to: Connection,
    job: JobArgument,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this long.")] = None,
    output: OutputOption = Output.table,
) -> None:
    """Wait until a job has ended; the exit code tells how: 0, 100 failed, 103 cancelled, 101 not within --timeout."""
    with to.client() as client:
        _wait(client, job, timeout, output)


def cancel(to: Connection, job: JobArgument, output: OutputOption = Output.table) -> None:
    """Ask a job to stop after its present round."""
    with to.client() as client:
        found = client.cancel(job)
    if found.state.ended:
        say(f"job {job} has ended: {found.state}")
    show_job(found, output)


def resume(
    to: Connection,
    job: JobArgument,
    override: Annotated[
        list[str], typer.Option("--set", metavar="stop.A=B", help="New stop rules, in place of the old ones.")
    ] = [],  # noqa: B006  # typer's way
    follow: FollowOption = False,
    output: OutputOption = Output.table,
) -> None:
    """Continue a job that has ended, after its last recorded round."""
    with to.client() as client:
        resumed = client.resume(job, stop=stop_rules(override))
        if follow:
            _follow(client, resumed, output, past_rounds=0)
        say(f"resumed after round {resumed.rounds}; `marless watch {job}` shows it")
        show_job(resumed, output)


def delete(to: Connection, job: JobArgument) -> None:
    """Delete a job that has ended, with its run folder and its versions."""
    with to.client() as client:
        client.delete(job)
    say(f"deleted {job}")


def download(
    to: Connection,
    job: JobArgument,
    target: Annotated[
        Path | None, typer.Option("--to", metavar="DIR", help="Where to; default: a directory named as the job.")
    ] = None,
) -> None:
    """Fetch a job's run folder; files that are here already are not fetched again."""
    folder = target or Path(job)
    with to.client() as client:
        brought = client.download(job, folder)
    say(f"{len(brought)} files, {sum(file.bytes for file in brought) / 1e6:.1f} MB")
    data(str(folder))


def estimated(job_file: Path, override: list[str], *, dry_run: bool, run: str, at: Connection, output: Output) -> bool:
    """Estimate a job if that was asked for; raises SpecError for a job that cannot work."""
    if not dry_run:
        if run:
            raise SpecError("--from goes with --dry-run: it names the recorded run that an estimate goes by")
        return False
    from marless import spec as specs
    from marless.cli.dry_run import estimate

    estimate(specs.load(job_file, override), str(job_file), run=run, at=at, output=output)
    return True


def stop_rules(overrides: list[str]) -> dict[str, Any] | None:  # Any: YAML
    """None leaves the old ones; the coordinator checks new ones against the job."""
    rules = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.removeprefix("stop."):
            raise SpecError(f"--set {override!r}: write a stop rule as stop.rounds=200")
        if not key.startswith("stop."):
            raise SpecError(
                f"--set {override!r}: only stop rules can change; submit a new job that starts from this one"
            )
        try:
            rules[key.removeprefix("stop.")] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise SpecError(f"--set {override!r}: {value!r} is not a YAML value") from None
    return rules or None


@contextmanager
def _detachable(job: str) -> Iterator[None]:
    """Ctrl-C ends the verb, not the job."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"detached; the job goes on: `marless watch {job}` shows it, `marless cancel {job}` ends it")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None


def _wait(client: Client, job: str, timeout_s: float | None, output: Output) -> NoReturn:
    with _detachable(job):
        found = client.wait(job, timeout_s=timeout_s)
    show_job(found, output)
    if not found.state.ended:
        say(f"job {job} has not ended within {timeout_s:g} s; it goes on")
    _end(client, found)


def _follow(client: Client, found: Job, output: Output, *, past_rounds: int = RECENT_ROUNDS) -> NoReturn:
    job = found.job
    with _detachable(job), _progress(client, job) as shown:
        for event in client.watch(job, cursor=max(found.rounds - past_rounds, 0)):
            if event.record:
                shown.show(event.record)
                if output is Output.jsonl:
                    data(event.record.to_json())
            found = event.job or found
    if output is not Output.jsonl:
        show_job(found, output)
    _end(client, found)


def _progress(client: Client, job: str) -> TrainingProgress:
    from marless.cli.progress import TrainingProgress

    screen = console(stderr=True)
    return TrainingProgress(screen, job, _stop_rules_of(client, job) if screen.is_terminal else None, "waiting …")


def _stop_rules_of(client: Client, job: str) -> StopSpec | None:
    """None if the job is of a kind that is not installed here: then nothing says how far it is."""
    from marless import spec as specs

    with suppress(SpecError, NotFoundError, ValueError):
        return specs.parse(documents.yaml_of(client.read(job, "spec.yaml").decode(), "spec"), "spec").stop
    return None


def _end(client: Client, job: Job) -> NoReturn:
    """End the command as the job has ended; of a failure, tell the reason and the line of the log that matters."""
    if job.state == "FAILED":
        say(f"job {job.job} failed: {job.reason}")
        tail = client.logs(job.job, tail=_LOG_LINES)
        if news := [line for line in tail if line.fields.get("level") == "error" and job.reason not in line.text]:
            say(f"its log: {log_line(news[-1], whole=False)}")
        say(f"`marless logs {job.job}` says more")
    raise typer.Exit(exits.of_state(job.state))
