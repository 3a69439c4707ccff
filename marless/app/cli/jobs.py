"""Commands that manage a coordinator's jobs: list, get, watch, logs, wait, cancel, resume, delete, download."""

from __future__ import annotations

import fnmatch
import functools
import operator
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar

import typer

from marless.app.cli import exits
from marless.app.cli.options import (
    CoordinatorOptions,
    JobArgument,
    JobsArgument,
    Output,
    OutputOption,
    job_states,
    positive,
    whole,
)
from marless.app.cli.output import console, data, log_line, say, show_job, show_jobs
from marless.app.cli.working import Working
from marless.core import documents
from marless.core.errors import (
    CorruptError,
    JobStateError,
    MarlessError,
    NotFoundError,
    SpecError,
    UnavailableError,
    denied,
)
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.app.client import Client, Job, LogLine
    from marless.jobs.sections import StopSpec
    from marless.jobs.spec import JobSpec

RECENT_ROUNDS = 50
"""Number of past rounds that `watch` reads at its start, to compute the present rate."""
SHOWN_ROUNDS = 2000
"""The same on a terminal, for curves and the cost."""
ALL = sys.maxsize
LOOK_S = 2.0
"""Seconds between two polls while waiting for several jobs; the first running one is watched without delay."""
_LOG_LINES = 20
FollowOption = Annotated[bool, typer.Option("--follow", help="Show progress until the job ends.")]
Result = TypeVar("Result")


class JobOrder(StrEnum):
    """Sort keys of `list`."""

    accepted = "accepted"
    job = "job"
    state = "state"
    rounds = "rounds"
    env_steps = "env-steps"
    greedy_return = "return"
    win_rate = "won"
    ended = "ended"

    def of(self, jobs: Sequence[Job], *, reverse: bool) -> list[Job]:
        """Sort jobs: numbers descending, texts ascending; unknown values come last."""
        field = {"accepted": "accepted_s", "ended": "ended_s"}.get(self.name, self.name)
        known = [job for job in jobs if getattr(job, field) is not None]
        # Texts ascend and numbers descend, unless reversed: the order is descending where the two flags agree.
        texts = self in (JobOrder.job, JobOrder.state)
        known.sort(key=operator.attrgetter(field), reverse=texts is reverse)
        return known + [job for job in jobs if getattr(job, field) is None]


def list_(
    to: CoordinatorOptions,
    state: Annotated[
        list[str], typer.Option(metavar="STATE", help="Only jobs in this state.", autocompletion=job_states)
    ] = [],  # noqa: B006
    name: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only jobs whose id contains this, or matches it: 'spread-*'.")
    ] = "",
    sort: Annotated[
        JobOrder, typer.Option(help="Sort by this: the newest, the highest, or A first.")
    ] = JobOrder.accepted,
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    limit: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Only the first N, after sorting.")
    ] = None,
    output: OutputOption = Output.table,
) -> None:
    """List jobs, newest first: those of the coordinator or, if none answers, the run folders of --runs."""
    from marless.app.cli.run_folders import asked_or_read, jobs_in
    from marless.app.client import JobState

    try:
        wanted = [JobState.named(each) for each in state]
    except SpecError as error:
        raise SpecError(f"--state: {error}") from None
    # Only then are the first N of the coordinator, which lists the newest first, also the first N asked for.
    newest = not name and sort is JobOrder.accepted and not reverse
    found = asked_or_read(
        to,
        lambda client: client.list(states=wanted, limit=limit if newest else None),
        lambda runs: [job for job in jobs_in(runs) if not wanted or job.state in wanted],
    )
    matching = [job for job in found if name in job.job or fnmatch.fnmatchcase(job.job, name)]
    show_jobs(sort.of(matching, reverse=reverse)[:limit], output)


def get(to: CoordinatorOptions, jobs: JobsArgument, output: OutputOption = Output.table) -> None:
    """Show one job, or several: of the coordinator or, if none answers, of the run folders of --runs."""
    from marless.app.cli.run_folders import asked_or_read, job_in

    found, refused = asked_or_read(
        to, lambda client: _each(jobs, client.get), lambda runs: _each(jobs, functools.partial(job_in, runs))
    )
    _show_each(jobs, found, refused, output)


def watch(to: CoordinatorOptions, job: JobArgument, output: OutputOption = Output.table) -> None:
    """Show a job's progress until it ends; with -o jsonl, print the record of every round."""
    with to.client() as client:
        follow_job(client, client.get(job), output, past_rounds=ALL if output is Output.jsonl else RECENT_ROUNDS)


def logs(
    to: CoordinatorOptions,
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    tail: Annotated[int, typer.Option(parser=whole, metavar="N", help="Only the last N lines; 0: all.")] = 0,
    output: Annotated[
        Literal["table", "jsonl"], typer.Option("--output", "-o", help="jsonl: the lines of the log file.")
    ] = "table",
) -> None:
    """Print a job's log; if no coordinator answers, that of its run folder in --runs."""
    from marless.app.cli.run_folders import asked_or_read, log_of

    shown = 0

    def show(lines: Iterable[LogLine]) -> None:
        nonlocal shown
        for line in lines:
            # The run folder is read where the coordinator went away, which may have answered some lines.
            if line.cursor > shown:
                data(log_line(line) if output == "table" else line.text)
                shown = line.cursor

    with detachable(job):
        if follow:
            with to.client() as client:
                show(client.logs(job, follow=True, tail=tail))
        else:
            asked_or_read(
                to, lambda client: show(client.logs(job, tail=tail)), lambda runs: show(log_of(runs, job, tail))
            )


def wait(
    to: CoordinatorOptions,
    jobs: JobsArgument,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this long.")] = None,
    output: OutputOption = Output.table,
) -> None:
    """Wait until all of these jobs have ended; the exit code says how.

    0: all have succeeded; 100: one has failed; 103: one was cancelled; 101: one has not ended within --timeout.
    """
    with to.client() as client:
        if len(set(jobs)) == 1:
            wait_for(client, jobs[0], timeout, output)
        known, _ = _each(jobs, client.get)
        with detachable(*(job.job for job in known)):
            found = ended(client, known, timeout)
        show_jobs(found, output)
        end_all(found, timeout, missing=len(found) < len(set(jobs)))


def cancel(to: CoordinatorOptions, jobs: JobsArgument, output: OutputOption = Output.table) -> None:
    """Cancel jobs: each ends after its current round, which is abandoned if it takes longer than 2 s."""

    def cancelled(job: str) -> Job:
        found = client.cancel(job)
        if found.state.ended:
            say(f"job {job} has ended: {found.state}")
        else:
            say(f"job {job} is being cancelled; `marless wait {job}` waits for its end")
        return found

    with to.client() as client:
        found, refused = _each(jobs, cancelled)
    _show_each(jobs, found, refused, output)


def resume(
    to: CoordinatorOptions,
    job: JobArgument,
    override: Annotated[
        list[str],
        typer.Option("--set", metavar="stop.A=B", help="Change a stop rule; stop.A=null removes it, the others stay."),
    ] = [],  # noqa: B006  # typer's way
    follow: FollowOption = False,
    output: OutputOption = Output.table,
) -> None:
    """Continue a job that has ended, after its last recorded round."""
    with to.client() as client:
        resumed = client.resume(job, stop=stop_rules(override))
        rules = _stop_rules_of(client, job)
        if follow:
            follow_job(client, resumed, output, past_rounds=0)
        # The stop rules in force: "stop.rounds=70 or stop.cost_usd=0.5".
        in_force = rules.model_dump(by_alias=True, exclude_none=True) if rules else {}
        until = f", until {' or '.join(f'stop.{name}={each}' for name, each in in_force.items())}" if rules else ""
        say(f"resumed after round {resumed.rounds:,}{until}; `marless watch {job}` shows it")
        show_job(resumed, output)


def delete(to: CoordinatorOptions, jobs: JobsArgument) -> None:
    """Delete jobs that have ended, with their run folders and their versions."""

    def deleted(job: str) -> None:
        with Working(f"deleting {job}"):
            client.delete(job)
        say(f"deleted {job}")

    with to.client() as client:
        _, refused = _each(jobs, deleted)
    _end_refused(refused)


def download(
    to: CoordinatorOptions,
    job: JobArgument,
    target: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Target directory; default: one with the name of the job."),
    ] = None,
) -> None:
    """Download a job's run folder; files that are up to date are not downloaded again.

    JOB may be s3://bucket/prefix/job: then the folder is copied from the bucket, without a coordinator.
    """
    if is_address(job):
        _download_from_bucket(job, target)
        return
    folder = target or Path(job)
    with to.client() as client, Working(f"downloading {job}", "bytes") as working:
        brought = client.download(job, folder, told=working.told)
    say(f"{len(brought)} files, {sum(file.bytes for file in brought) / 1e6:.1f} MB")
    data(str(folder))


def _download_from_bucket(source: str, target: Path | None) -> None:
    from marless.storage import places
    from marless.storage.bucket import reading
    from marless.storage.bucket.objects import S3Objects

    place = places.parse(source)
    folder = target or Path(place.name or place.bucket)
    try:
        with Working(f"downloading {source}"):
            reading.copy(S3Objects(place.bucket), place, folder, reading.everything)
    except OSError as error:
        raise UnavailableError(denied(error)) from None
    data(str(folder))


def stop_rules(overrides: list[str]) -> dict[str, Any] | None:  # Any: YAML
    """Parse stop rules given as "stop.name=value"; None if there are none. The coordinator validates them."""
    rules = {}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key.removeprefix("stop."):
            raise SpecError(f"--set {override!r}: write a stop rule as stop.rounds=200")
        if not key.startswith("stop."):
            raise SpecError(f"--set {override!r}: only stop rules can change; submit a new job with start.checkpoint")
        try:
            rules[key.removeprefix("stop.")] = documents.yaml_of(value, key)
        except SpecError:
            raise SpecError(f"--set {override!r}: {value!r} is not a YAML value") from None
    return rules or None


@contextmanager
def detachable(*jobs: str) -> Iterator[None]:
    """Context in which Ctrl-C ends the command, but not the jobs."""
    try:
        yield
    except KeyboardInterrupt:
        if len(jobs) == 1:
            say(f"detached; the job continues: `marless watch {jobs[0]}` shows it, `marless cancel {jobs[0]}` ends it")
        else:
            say(f"detached; the jobs continue: `marless cancel {' '.join(jobs)}` ends them")
        raise typer.Exit(exits.ExitCode.INTERRUPTED) from None


def wait_for(client: Client, job: str, timeout_s: float | None, output: Output) -> NoReturn:
    """Wait for one job, print it, and exit with the code for its state."""
    with detachable(job):
        [found] = ended(client, [client.get(job)], timeout_s)
    show_job(found, output)
    if not found.state.ended:
        say(f"job {job} has not ended within {timeout_s:g} s; it continues")
    _end(client, found)


def ended(client: Client, jobs: Sequence[Job], timeout_s: float | None) -> list[Job]:
    """Wait until all jobs have ended or `timeout_s` is over, with progress; returns their states then.

    If one of several jobs is deleted meanwhile, this is reported, and the job is left out.
    """
    known = {job.job: job for job in jobs}
    give_up_s = time.monotonic() + (ALL if timeout_s is None else timeout_s)
    rules = {job.job: None if job.state.ended else _stop_rules_of(client, job.job) for job in jobs}
    with Working(f"waiting for {jobs[0].job if len(jobs) == 1 else f'{len(jobs)} jobs'}") as working:
        while running := [job for job in known.values() if not job.state.ended]:
            working.told(*_far(known, rules))
            left_s = give_up_s - time.monotonic()
            look_s = max(min(LOOK_S, left_s), 0.0)
            for number, job in enumerate(running):
                try:
                    known[job.job] = client.get(job.job) if number else client.wait(job.job, timeout_s=look_s)
                except NotFoundError as error:  # it was deleted meanwhile
                    if len(jobs) == 1:
                        raise
                    say(str(error))
                    del known[job.job]
            if left_s <= 0:
                break
    return list(known.values())


def _far(jobs: Mapping[str, Job], rules: Mapping[str, StopSpec | None]) -> tuple[float, int, str]:
    """Progress for the bar: number of jobs done, including fractions by stop rules; number of jobs; and a note."""
    done = 0.0
    for name, each in jobs.items():
        stop = rules[name]
        rounds = each.rounds / stop.rounds if stop and stop.rounds else 0.0
        steps = each.env_steps / stop.env_steps if stop and stop.env_steps else 0.0
        done += 1.0 if each.state.ended else min(max(rounds, steps), 1.0)
    if len(jobs) > 1:
        counts = Counter(job.state.lower() for job in jobs.values())
        return done, len(jobs), ", ".join(f"{number} {state}" for state, number in counts.items())
    [job] = jobs.values()
    # Without a rule on rounds or env steps nobody knows how far it is; with a total of 0 no fraction is shown.
    return done, 1 if done else 0, f"round {job.rounds:,}" if job.state == "RUNNING" else job.reason or "pending"


def end_all(jobs: Sequence[Job], timeout_s: float | None, *, missing: bool) -> NoReturn:
    """Exit with the code for the worst state of the jobs, and report those that did not succeed.

    `missing`: one of the jobs does not exist, or was deleted meanwhile.
    """
    for job in jobs:
        if job.state == "FAILED":
            say(f"job {job.job} failed: {job.reason}; `marless logs {job.job}` shows more")
        elif not job.state.ended:
            say(f"job {job.job} has not ended within {timeout_s:g} s; it continues")
    # How a job ended badly says more than that another one is missing, so that its code wins.
    raise typer.Exit(exits.of_states([job.state for job in jobs]) or missing * exits.ExitCode.NOT_FOUND)


def _each(jobs: Sequence[str], action: Callable[[str], Result]) -> tuple[list[Result], list[MarlessError]]:
    """Apply an action to each job; with several jobs, an error is reported and the others are still processed."""
    done: list[Result] = []
    refused: list[MarlessError] = []
    for job in dict.fromkeys(jobs):
        try:
            done.append(action(job))
        except (NotFoundError, JobStateError, CorruptError) as error:
            if len(set(jobs)) == 1:
                raise
            say(str(error))
            refused.append(error)
    return done, refused


def _show_each(jobs: Sequence[str], found: Sequence[Job], refused: Sequence[MarlessError], output: Output) -> None:
    if len(set(jobs)) == 1:
        show_job(found[0], output)
    else:
        show_jobs(found, output)
    _end_refused(refused)


def _end_refused(refused: Sequence[MarlessError]) -> None:
    if refused:
        raise typer.Exit(exits.of_error(refused[0]))


def follow_job(client: Client, found: Job, output: Output, *, past_rounds: int = RECENT_ROUNDS) -> NoReturn:
    """Show one job's progress to its end, and exit with the code for its state."""
    from marless.app.cli.progress import TrainingProgress

    job, screen, spec, below = found.job, console(stderr=True), _spec_of(client, found.job), None
    if screen.is_terminal and output is not Output.jsonl:
        from marless.app.cli.sparklines import WatchedCourse

        below, past_rounds = WatchedCourse(spec), max(past_rounds, SHOWN_ROUNDS)
    first = max(found.rounds - past_rounds, 0)
    progress = TrainingProgress(screen, job, spec.stop if spec else None, "waiting …", below=below)
    with detachable(job), progress as shown:
        for event in client.watch(job, cursor=max(first - 1, 0)):  # one more, because a rate needs two rounds
            if event.record and event.cursor <= first:
                shown.look_back(event.record)
            elif event.record:
                shown.show(event.record)
                if output is Output.jsonl:
                    data(event.record.to_json())
            found = event.job or found
            if event.job and not found.state.ended:
                shown.doing(found.reason)
    if output is not Output.jsonl:
        show_job(found, output)
    _end(client, found)


def _stop_rules_of(client: Client, job: str) -> StopSpec | None:
    spec = _spec_of(client, job)
    return spec.stop if spec else None


def _spec_of(client: Client, job: str) -> JobSpec | None:
    """The job's spec; None if it cannot be read here, e.g. because its algorithm is not installed."""
    from marless.jobs import spec as specs

    with suppress(SpecError, NotFoundError, ValueError):
        return specs.parse(documents.yaml_of(client.read(job, "spec.yaml").decode(), "spec"), "spec")
    return None


def _end(client: Client, job: Job) -> NoReturn:
    """Exit with the code for the job's state; after a failure, print the reason and the last error in the log."""
    if job.state == "FAILED":
        say(f"job {job.job} failed: {job.reason}")
        tail = client.logs(job.job, tail=_LOG_LINES)
        if news := [line for line in tail if line.fields.get("level") == "error" and job.reason not in line.text]:
            say(f"its log: {log_line(news[-1], whole=False)}")
        say(f"`marless logs {job.job}` shows more")
    raise typer.Exit(exits.of_state(job.state))
