"""Printing: data to standard output, messages to standard error.

Tables fit the terminal: the least important columns are dropped on narrow ones, and no text is cut off.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TextIO, TypeVar

from marless.app.cli.options import Output
from marless.core.errors import some_of
from marless.core.process_environment import stdout_for_data

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from marless.app.client import Job, LogLine

_P = ParamSpec("_P")
_T = TypeVar("_T")
_UNBOUNDED_COLUMNS = 10_000
_WAITING = ("waits for ", "tries again: ")
"""How the reasons of jobs begin that do not go on at the moment."""
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except line feeds and tabs: names from files or services must not control the terminal."""
_kept: list[TextIO] = []
"""The standard output that this process was started with, once `for_data_alone` has taken it away from others."""


def say(sentence: str) -> None:
    """Print a message for the user to standard error."""
    print(f"marless: {harmless(sentence)}", file=sys.stderr)  # noqa: T201


def harmless(text: str) -> str:
    """Untrusted text with its control characters escaped, so that they cannot control the terminal."""
    return _NO_TEXT.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def data(text: str) -> None:
    """Print data to standard output, unbuffered."""
    print(text, flush=True, file=_standard_output())


def _standard_output() -> TextIO:
    return _kept[0] if _kept else sys.stdout


def for_data_alone(command: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wraps a command that runs code of others, such as environments: what that code prints goes to standard error."""

    @functools.wraps(command)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        stream = sys.stdout
        # Else it was done before, closed before the start, or replaced by who calls this command as a function.
        if not _kept and stream is sys.__stdout__ and isinstance(stream, io.TextIOWrapper):
            _kept.append(stdout_for_data())
            # A copy of this process that an environment makes by a fork, and that returns here, prints no data a
            # second time.
            os.register_at_fork(after_in_child=_kept.clear)
            stream.reconfigure(line_buffering=True)  # as standard error is, where it leads now
        return command(*args, **kwargs)

    return wrapped


def prepare() -> None:
    """Print "?" for characters that the terminal's encoding does not have, as in the locale C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def flush() -> None:
    """Flush standard output; a closed pipe (`| head`) or output (`>&-`) is no error; a full disk was reported."""
    stream = _standard_output()
    if stream is None:  # it was closed before the start
        return
    try:
        stream.flush()
    except OSError:
        # The interpreter flushes again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def show_jobs(jobs: Sequence[Job], output: Output) -> None:
    """Print a list of jobs, and to standard error what the waiting ones wait for."""
    if output is Output.table:
        shown = console()
        shown.print(job_table(jobs, shown.width))
        waiting = [job for job in jobs if not job.state.ended and job.reason.startswith(_WAITING)]
        for reason in dict.fromkeys(job.reason for job in waiting):
            say(f"{some_of([job.job for job in waiting if job.reason == reason])}: {reason}")
    else:
        show_objects([(job.job, job_fields(job)) for job in jobs], output)


def show_objects(named: Sequence[tuple[str, Mapping[str, object]]], output: Output) -> None:
    """Print several objects, each with its name, in any format except a table."""
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
    if output is not Output.table:
        show_object(job_fields(job), job.job, output)
        return
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


def show_object(fields: Mapping[str, object], name: str, output: Output) -> None:
    """Print one object in any format except a table."""
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
    """A line of a job's log for display: time of day, level, event, and the other fields.

    Fields with several lines, such as tracebacks, follow below; without `whole` they are left out.
    """
    fields = line.fields
    clock, level, event = (str(fields.pop(name, "")) for name in ("timestamp", "level", "event"))
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    details = [f"{name}={text}" for name, text in texts.items() if "\n" not in text]
    first = " ".join([clock.partition("T")[2][:12] or clock, f"{level:<7}", event, *details]).rstrip()
    below = [textwrap.indent(text.rstrip(), "    ") for text in texts.values() if "\n" in text]
    return harmless("\n".join([first, *below]) if whole else first)


def console(*, stderr: bool = False) -> Console:
    """A rich console that prints text without markup, in colour unless $NO_COLOR is set, uncut to files and pipes."""
    from rich.console import Console

    file = None if stderr else _standard_output()
    shown = Console(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)
    if not shown.is_terminal:
        shown.width = _UNBOUNDED_COLUMNS
    return shown


def job_fields(job: Job) -> dict[str, Any]:  # Any: JSON
    """A job as a JSON object."""
    return dataclasses.asdict(job) | {"state": str(job.state)}


def _yaml(value: object) -> str:
    from marless.core import documents

    return documents.to_yaml(json.loads(json.dumps(value))).rstrip()  # via JSON, so that enum members become strings


def cost(summary: Mapping[str, Any]) -> str:  # Any: JSON
    """A job's cost from its summary, for display; "" if unknown."""
    usd, accounting = summary.get("cost_usd"), summary.get("accounting")
    return "" if usd is None else f"{usd:.6f} USD ({accounting})"


def number(value: float | None, error: float | None = None) -> str:
    """A return for display, with its standard error if there is one; "" if unknown."""
    from marless.learning.data.returns import return_text

    return "" if value is None else return_text(value, error)


def percent(share: float | None) -> str:
    """A fraction as a percentage for display; "" if unknown."""
    return "" if share is None else f"{share:.0%}"


def show_table(cells: Sequence[Sequence[str]]) -> None:
    """Print a table whose first row is its header; all columns but the first are aligned to the right."""
    from rich.table import Table

    header, *body = cells
    shown = Table(box=None, pad_edge=False)
    shown.add_column(header[0])
    for name in header[1:]:
        shown.add_column(name, justify="right")
    for row in body:
        shown.add_row(*row)
    console().print(shown)


def clock(unix_s: float | None) -> str:
    """A Unix time in local time for display; "" if there is none."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else ""


def duration(seconds: float) -> str:
    """A duration for display: 0:42, 12:03, 1:02:03."""
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


_GAP = 2
"""Spaces between two columns."""


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table."""

    title: str
    cells: Sequence[str]
    right: bool = False
    """Align to the right, for numbers."""
    goes: int = 0
    """Priority for dropping: the highest is dropped first; 0: never dropped."""

    @property
    def width(self) -> int:
        """Characters of its widest cell or its title."""
        return max(map(len, (self.title, *self.cells)))


def job_table(jobs: Sequence[Job], width: int) -> Table:
    """A table with one row per job, at most `width` characters wide if the ids permit."""

    def column(title: str, of: Callable[[Job], str], *, goes: int = 0, right: bool = False) -> TableColumn:
        return TableColumn(title=title, cells=[harmless(of(job)) for job in jobs], right=right, goes=goes)

    columns = [
        column("job", lambda job: job.job),
        column("state", lambda job: job.state),
        column("rounds", lambda job: f"{job.rounds:,}", right=True, goes=1),
        column("env steps", lambda job: f"{job.env_steps:,}", right=True, goes=5),
        column("return", lambda job: number(job.greedy_return), right=True),
        column("random", lambda job: number(job.random_return), right=True, goes=3),
        column("won", lambda job: percent(job.win_rate), right=True, goes=2),
        column("env", lambda job: job.env, goes=6),
        column("algorithm", lambda job: job.algorithm, goes=7),
        column("accepted", lambda job: clock(job.accepted_s).rpartition(":")[0], goes=4),
    ]
    return fitted([each for each in columns if each.title != "won" or any(each.cells)], width)


def fitted(columns: Sequence[TableColumn], width: int) -> Table:
    """A table with as many columns as fit; text that is still too long wraps to the next line."""
    from rich.table import Table

    kept = list(columns)
    while sum(each.width + _GAP for each in kept) - _GAP > width and any(each.goes for each in kept):
        kept.remove(max(kept, key=lambda each: each.goes))
    table = Table(box=None, pad_edge=False)
    for each in kept:
        # Only the first column may be narrower than its text, and wraps.
        least = None if each is kept[0] else each.width
        table.add_column(each.title, justify="right" if each.right else "left", overflow="fold", min_width=least)
    for row in zip(*(each.cells for each in kept), strict=True):
        table.add_row(*row)
    return table
