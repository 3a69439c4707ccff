"""The command `doctor`, and the findings that it shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from marless.app.cli import exits
from marless.app.cli.options import RUNS, Output, OutputOption, RunsOption
from marless.app.cli.output import console, show_objects
from marless.app.cli.working import Working


class Level(StrEnum):
    """Severity of a finding."""

    ok = "ok"
    warn = "warn"
    """Jobs can run, but not as well as possible, or not all of them."""
    fail = "fail"
    """Jobs cannot run on this machine, or not reliably."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the doctor's report."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; "" if nothing."""


def ok(check: str, found: str) -> Finding:
    """A finding that needs no action."""
    return Finding(check=check, level=Level.ok, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    """A finding of something that could be improved."""
    return Finding(check=check, level=Level.warn, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """A finding of a problem that must be solved."""
    return Finding(check=check, level=Level.fail, found=found, advice=advice)


_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    job_file: Annotated[
        Path | None, typer.Argument(metavar="[JOB.yaml]", help="Compare the memory with what this job needs.")
    ] = None,
    runs: RunsOption = RUNS,
    deep: Annotated[bool, typer.Option("--deep", help="Also ask torch for GPUs, which takes seconds.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Check this machine, and say what to do; exit code 1 if a problem keeps jobs from running."""
    from rich.table import Table
    from rich.text import Text

    from marless.app.cli.doctor.examination import examine
    from marless.jobs import spec as specs
    from marless.jobs.examining import examined
    from marless.jobs.job import prepare

    with Working("examining this machine"):
        job = prepare(specs.load(job_file, []), examined) if job_file else None
        findings = list(examine(runs, job, deep=deep))
    if output is Output.table:
        table = Table(show_header=False, box=None, pad_edge=False)
        for finding in findings:
            table.add_row(Text(finding.level, style=_COLOURS[finding.level]), finding.check, finding.found)
            if finding.advice:
                table.add_row("", "", Text(f"→ {finding.advice}", style="bold"))
        console().print(table)
    else:
        show_objects([(finding.check, asdict(finding)) for finding in findings], output)
    if any(finding.level is Level.fail for finding in findings):
        raise typer.Exit(exits.ExitCode.ERROR)
