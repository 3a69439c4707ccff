"""The command `plot`: training curves of one or several jobs in one picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from marless.app.cli.completion import job_ids
from marless.app.cli.options import CoordinatorOptions
from marless.app.cli.output import data
from marless.app.cli.recorded import find
from marless.app.cli.working import Working


class Over(StrEnum):
    """Quantities for the horizontal axis."""

    env_steps = "env-steps"
    rounds = "rounds"
    seconds = "seconds"


def plot(
    at: CoordinatorOptions,
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOB_OR_FOLDER...", help="Job ids or run folders.", autocompletion=job_ids)
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Or .svg, .pdf; default: JOB.png, or curves.png for several jobs."),
    ] = None,
    over: Annotated[Over, typer.Option(help="What the horizontal axis counts.")] = Over.env_steps,
) -> None:
    """Draw the returns of one or several jobs and of the random policy; print the picture's path."""
    from marless.app.cli import picture

    sources = list(dict.fromkeys(jobs))
    picture.check(to or Path("curves.png"))
    with Working("reading", "jobs") as working:
        found = []
        for done, source in enumerate(sources):
            working.told(done, len(sources), source)
            found.append(find(source, at))
    target = to or Path("curves.png" if len(found) > 1 else f"{found[0].job}.png")
    with Working("drawing"):
        picture.draw_returns(found, target, over)
    data(str(target))
