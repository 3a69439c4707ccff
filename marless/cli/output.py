"""What the command prints: data on standard output, everything else on standard error."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marless.cli.options import Output

if TYPE_CHECKING:
    from rich.console import Console

    from marless.client import Job, LogLine

_UNBOUNDED_COLUMNS = 10_000
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters but line ends and tabs: what a file or a service has named must not steer the terminal."""


def say(sentence: str) -> None:
    """Tell a person something; it is no data."""
    print(f"marless: {harmless(sentence)}", file=sys.stderr)  # noqa: T201


def harmless(text: str) -> str:
    """A text of others, with its control characters written out: none steers the terminal."""
    return _NO_TEXT.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def data(text: str) -> None:
    """Print data; whoever reads along gets them at once."""
    print(text, flush=True)  # noqa: T201


def flush() -> None:
    """Hand over what is still buffered; a reader that has gone (`| head`) is no mistake."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_jobs(jobs: Sequence[Job], output: Output) -> None:
    """Print a list of jobs."""
    if output is Output.table:
        from marless.cli.job_table import job_table

        shown = console()
        shown.print(job_table(jobs, shown.width))
    else:
        show_objects([(job.job, job_fields(job)) for job in jobs], output)


def show_objects(named: Sequence[tuple[str, Mapping[str, object]]], output: Output) -> None:
    """Print several things, each with its name, in any way but as a table."""
    match output:
        case Output.json:
            data(json.dumps([fields for _, fields in named], indent=2))
        case Output.yaml:
            data(_yaml([fields for _, fields in named]))
        case _:
            for name, fields in named:
                show_object(fields, name, output)


def show_job(job: Job, output: Output) -> None:
    """Print one job."""
    if output is Output.table:
        _show_pairs(job)
    else:
        show_object(job_fields(job), job.job, output)


def show_object(fields: Mapping[str, object], name: str, output: Output) -> None:
    """Print one thing in any way but as a table."""
    match output:
        case Output.jsonl:
            data(json.dumps(fields))
        case Output.yaml:
            data(_yaml(fields))
        case Output.name:
            data(name)
        case _:
            data(json.dumps(fields, indent=2))


def log_line(line: LogLine, *, whole: bool = True) -> str:
    """A line of a job's log, for people: the time of day, how grave it is, what happened, and the rest.

    What takes several lines by itself, such as a traceback, comes below; or not at all, unless the `whole` is wanted.
    """
    fields = line.fields
    clock, level, event = (str(fields.pop(name, "")) for name in ("timestamp", "level", "event"))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    details = [f"{name}={text}" for name, text in texts.items() if "\n" not in text]
    first = " ".join([clock.partition("T")[2][:12] or clock, f"{level:<7}", event, *details]).rstrip()
    below = [textwrap.indent(text.rstrip(), "    ") for text in texts.values() if "\n" in text]
    return harmless("\n".join([first, *below]) if whole else first)


def console(*, stderr: bool = False) -> Console:
    """Prints texts as they are, in colour where wanted ($NO_COLOR), and cuts nothing off for a file or a pipe."""
    from rich.console import Console

    shown = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not shown.is_terminal:
        shown.width = _UNBOUNDED_COLUMNS
    return shown


def job_fields(job: Job) -> dict[str, Any]:  # Any: JSON
    """A job for programs."""
    return dataclasses.asdict(job) | {"state": str(job.state)}


def _yaml(value: object) -> str:
    from marless import documents

    return documents.to_yaml(json.loads(json.dumps(value))).rstrip()  # as in JSON: an enum's member is its name


def _show_pairs(job: Job) -> None:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in (
        ("job", job.job),
        ("state", job.state),
        ("reason", job.reason),
        ("env", job.env),
        ("algorithm", job.algorithm),
        ("rounds", f"{job.rounds:,}"),
        ("env steps", f"{job.env_steps:,}"),
        ("greedy return per agent", number(job.greedy_return)),
        ("random policy", number(job.random_return)),
        *([] if job.win_rate is None else [("greedy episodes won", percent(job.win_rate))]),
        *([] if job.random_win_rate is None else [("random policy won", percent(job.random_win_rate))]),
        ("cost", cost(job.summary or {})),
        ("accepted", clock(job.accepted_s)),
        ("ended", clock(job.ended_s)),
        ("resumes", str(job.resumes)),
        ("run folder", job.run_dir),
    ):
        table.add_row(name, harmless(text))
    console().print(table)


def cost(summary: Mapping[str, Any]) -> str:  # Any: JSON
    """What a job cost, for people, as its summary says; "" if that is not known."""
    usd, accounting = summary.get("cost_usd"), summary.get("accounting")
    return "" if usd is None else f"{usd:.6f} USD ({accounting})"


def number(value: float | None) -> str:
    """A return, for people; "" if it is not known."""
    return "" if value is None else f"{value:,.2f}"


def percent(share: float | None) -> str:
    """A share, for people; "" if it is not known."""
    return "" if share is None else f"{share:.0%}"


def clock(unix_s: float | None) -> str:
    """A moment in local time; "" if it has not come."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else ""


def duration(seconds: float) -> str:
    """A length of time as a watch shows it: 0:42, 12:03, 1:02:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
