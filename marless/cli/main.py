"""The `marless` command. Data go to standard output, everything else to standard error.

Exit codes: 0 success, 1 error, 2 usage or a bad job file, 100 the job failed, 103 it was cancelled, 130 Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from marless import spec as specs
from marless.errors import MarlessError, SpecError
from marless.job import advice, prepare

_EXIT = {"SUCCEEDED": 0, "FAILED": 100, "CANCELLED": 103}
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Serverless multi-agent RL."
)


class Output(StrEnum):
    """How the result is printed."""

    table = "table"
    json = "json"


@app.callback()
def _marless() -> None:
    """Train teams of agents as functions that start on demand, work, and go away."""


@app.command()
def train(
    job_file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to run.")],
    override: Annotated[list[str], typer.Option("--set", metavar="A.B=C", help="Override a field of the job.")] = [],  # noqa: B006  # typer's way
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print the summary.")] = Output.table,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    job: Annotated[str, typer.Option(help="Job id; default: the job's name and the time.")] = "",
) -> None:
    """Train on this machine: start the four services, run the job, stop them, print a summary."""
    from marless.cli import progress
    from marless.cli import train as local

    spec = specs.load(job_file, override)
    try:
        note = advice(prepare(spec))
    except SpecError as error:
        raise SpecError(f"{job_file}: {error}") from None
    job_id = job or local.new_job_id(spec.name)
    console = Console(stderr=True)
    if note:
        print(f"marless: note: {note}", file=sys.stderr)  # noqa: T201  # for people
    with progress.TrainingProgress(console, spec) as shown:
        outcome = local.train(spec, job_id=job_id, runs=runs, on_round=shown.show)
    summary = json.loads(outcome.summary_json)
    if output is Output.json:
        print(outcome.summary_json)  # noqa: T201  # the command's data
    else:
        Console().print(progress.summary_table(summary))
    _draw(Path(summary["run_dir"]))
    if outcome.state == "FAILED":
        print(f"marless: job failed: {outcome.reason}", file=sys.stderr)  # noqa: T201  # for people
    raise typer.Exit(130 if outcome.interrupted else _EXIT[outcome.state])


def _draw(folder: Path) -> None:
    """A curve that cannot be drawn is a pity, not a failure of the job."""
    from marless.cli.curve import draw

    try:
        draw(folder)
    except (OSError, MarlessError) as error:
        print(f"marless: curve.png was not drawn: {error}", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Run the app: a user's mistake is one sentence, never a traceback. Raises KeyboardInterrupt."""
    try:
        app()
    except SpecError as error:
        print(f"marless: {error}", file=sys.stderr)  # noqa: T201  # for people
        sys.exit(2)
    except MarlessError as error:
        print(f"marless: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except asyncio.CancelledError:  # the second Ctrl-C
        raise KeyboardInterrupt from None
