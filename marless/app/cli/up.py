"""The commands `up` and `down`: start and stop the services in the background of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from marless.app.cli.options import RUNS, RunsOption, positive
from marless.app.cli.output import say
from marless.app.cli.working import Working


def up(
    runs: RunsOption = RUNS,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the coordinator listens; default: a private unix socket.")
    ] = "",
    advertise: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="What clients dial, if it is not what --listen says.")
    ] = "",
    actor_workers: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Largest number of actor workers.")
    ] = None,
    learner_workers: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Largest number of learner workers.")
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(metavar="NAME[,KEY=VALUE]...", help="What starts the workers; default: local, as processes."),
    ] = "",
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay in the foreground; Ctrl-C stops the services.")
    ] = False,
) -> None:
    """Start the four services in the background; continue the jobs of --runs that have not ended.

    Prints the coordinator's address. MARLESS_* variables set the options of the services.
    """
    import asyncio

    from marless.app.cli import background

    chosen = {
        "MARLESS_ACTOR_WORKERS": actor_workers,
        "MARLESS_LEARNER_WORKERS": learner_workers,
        "MARLESS_LAUNCHER": launcher,
    }
    settings = background.StackSettings(
        runs=runs,
        listen=listen,
        advertise=advertise,
        environment={name: str(value) for name, value in chosen.items() if value},
    )
    if foreground:
        asyncio.run(background.supervise(settings))
        return
    with Working("starting four services"):
        standing, before = background.up(settings)
    for advice in background.StackFolder.of(runs).warnings():
        say(f"note: {advice}")
    if before:
        say(f"up already (process {standing.pid}); run `marless down` first to change options")
    else:
        say(
            "up; `marless submit JOB.yaml` submits a job, `marless down` stops the services, `marless doctor` checks "
            "them"
        )
    print(standing.coordinator)  # noqa: T201  # the command's data


def down(runs: RunsOption = RUNS) -> None:
    """Stop the services that `up` started; unfinished jobs continue at the next `up`."""
    from marless.app.cli import background
    from marless.app.cli.runs import unfinished

    with Working("stopping the services"):
        was_up = background.down(runs)
    say("down" if was_up else "no services were running")
    if waiting := [job.job for job in unfinished(runs) if not (job.attached or job.run_by_somebody)]:
        say(f"these jobs continue at the next `marless up`: {', '.join(waiting)}")
