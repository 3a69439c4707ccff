"""The commands `up` and `down`: start and stop the services in the background of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from marless.cli.options import RUNS, RunsOption, positive
from marless.cli.output import say
from marless.cli.working import Working


def up(
    runs: RunsOption = RUNS,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the coordinator listens; default: a private unix socket.")
    ] = "",
    actor_workers: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Most actor workers at once.")
    ] = None,
    learner_workers: Annotated[
        int | None, typer.Option(parser=positive, metavar="N", help="Most learner workers at once.")
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, and stop the services on Ctrl-C.")] = False,
) -> None:
    """Start the four services and keep them alive; go on with the jobs of --runs that have not ended.

    Prints the coordinator's address. Every option of a service has a MARLESS_* variable, which is handed on.
    """
    import asyncio

    from marless.cli import background

    workers = {"MARLESS_ACTOR_WORKERS": actor_workers, "MARLESS_LEARNER_WORKERS": learner_workers}
    settings = background.Settings(
        runs=runs, listen=listen, environment={name: str(value) for name, value in workers.items() if value}
    )
    if foreground:
        asyncio.run(background.supervise(settings))
        return
    with Working("starting four services"):
        standing, before = background.up(settings)
    if before:
        say(f"up already, since process {standing.pid}; `marless down` first to change its options")
    else:
        say("up; `marless submit JOB.yaml` hands it a job, `marless down` stops it, `marless doctor` looks after it")
    print(standing.coordinator)  # noqa: T201  # the command's data


def down(runs: RunsOption = RUNS) -> None:
    """Stop the services that `up` started; jobs go on at the next `up`."""
    from marless.cli import background
    from marless.cli.runs import unfinished

    with Working("stopping the services"):
        was_up = background.down(runs)
    say("down" if was_up else "nothing was up")
    if waiting := [job.job for job in unfinished(runs) if not (job.attached or job.run_by_somebody)]:
        say(f"at the next `marless up` these jobs go on: {', '.join(waiting)}")
