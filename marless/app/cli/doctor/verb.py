"""The command `doctor`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli import exits
from marless.app.cli.options import RUNS, Output, OutputOption, RunsOption
from marless.app.cli.output import console, show_objects
from marless.app.cli.working import Working

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marless.app.cli.doctor.finding import Finding
    from marless.jobs.job import PreparedJob

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
    from marless.app.cli.doctor.examination import examine
    from marless.app.cli.doctor.finding import Level

    with Working("examining this machine"):
        findings = list(examine(runs, _job(job_file) if job_file else None, deep=deep))
    if output is Output.table:
        _show(findings)
    else:
        show_objects([(finding.check, asdict(finding)) for finding in findings], output)
    if any(finding.level is Level.fail for finding in findings):
        raise typer.Exit(exits.ExitCode.ERROR)


def _job(file: Path) -> PreparedJob:
    from marless.jobs import spec as specs
    from marless.jobs.examining import examined
    from marless.jobs.job import prepare

    return prepare(specs.load(file, []), examined)


def _show(findings: Sequence[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for finding in findings:
        table.add_row(Text(finding.level, style=_COLOURS[finding.level]), finding.check, finding.found)
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", style="bold"))
    console().print(table)
