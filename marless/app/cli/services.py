"""The commands `up` and `down`, for the services in the background of this machine, and `fleet list` and `fleet reap`.

The latter two are for workers, containers and machines that outlived their pool.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from marless.app.cli import exits
from marless.app.cli.options import RUNS, Output, OutputOption, RunsOption, positive
from marless.app.cli.output import console, duration, harmless, say, show_objects
from marless.app.cli.working import Working
from marless.core.errors import SpecError, UnavailableError, denied

if TYPE_CHECKING:
    from marless.app.cli.background import StackFolder
    from marless.core.orphans import Orphan
    from marless.fleet.launchers.base import Leftovers

DashboardOption = Annotated[
    int | None,
    typer.Option(min=1, max=65535, metavar="PORT", help="Also serve the dashboard, at this port of 127.0.0.1."),
]


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
    dashboard: DashboardOption = None,
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
        dashboard=dashboard,
    )
    if dashboard is not None:
        _tell_dashboard(dashboard, background.StackFolder.of(runs))
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


def _tell_dashboard(port: int, folder: StackFolder) -> None:
    """Make the dashboard's token, and say at which address it will be. Raises UnavailableError if it cannot be."""
    from marless.app.cli.dashboard import check_installed
    from marless.core import private_files

    check_installed()
    from marless.app.dashboard.guard import token_of

    try:
        private_files.directory(folder.path)
    except OSError as error:
        raise UnavailableError(f"{denied(error)}; the dashboard's token cannot be kept there") from None
    say(f"dashboard: http://127.0.0.1:{port}/#token={token_of(folder.dashboard_token)}")


def down(runs: RunsOption = RUNS) -> None:
    """Stop the services that `up` started; unfinished jobs continue at the next `up`."""
    from marless.app.cli import background
    from marless.app.cli.recorded import unfinished

    with Working("stopping the services"):
        was_up = background.down(runs)
    say("down" if was_up else "no services were running")
    if waiting := [job.job for job in unfinished(runs) if not (job.attached or job.run_by_somebody)]:
        say(f"these jobs continue at the next `marless up`: {', '.join(waiting)}")


fleet = typer.Typer(
    no_args_is_help=True,
    help="Workers whose pool has ended, their containers and machines, and what they have started. Their next pool "
    "ends them, too.",
)


@fleet.command("list")
def list_(output: OutputOption = Output.table) -> None:
    """List what pools that have ended left running; it is this user's, and belongs to no pool that runs."""
    from marless.core import orphans

    _show([*orphans.of_dead_pools(), *(each for of in _leftovers() for each in _of(of))], output)


@fleet.command()
def reap(output: OutputOption = Output.table) -> None:
    """End what `fleet list` lists, and print it; exit code 1 if something cannot be ended."""
    from marless.core import orphans

    leftovers = [(of, _of(of)) for of in _leftovers()]
    found = [*orphans.of_dead_pools(), *(each for _, here in leftovers for each in here)]
    orphans.end_of_dead_pools()
    for of, here in leftovers:
        try:
            if here:
                of.end(here)
        except UnavailableError as error:
            say(f"{of.what} are left: {error}")
    still = (*orphans.of_dead_pools(), *(each for of, _ in leftovers for each in _of(of)))
    # What other pools have left meanwhile was not to be ended by this command.
    left = {each.id for each in still} & {each.id for each in found}
    _show([each for each in found if each.id not in left], output)
    if left:
        say(f"{', '.join(sorted(left))}: could not be ended: a device or a network disk keeps it; try again later")
        raise typer.Exit(exits.ExitCode.ERROR)


def _leftovers() -> list[Leftovers]:
    """Where launchers may have left something; $MARLESS_LAUNCHER names the one whose options count.

    Raises SpecError for options that this one does not understand.
    """
    from marless.fleet.launchers.registry import LEFTOVERS, parse

    choice, found = parse(os.environ.get("MARLESS_LAUNCHER", "local")), []
    for name in sorted(LEFTOVERS.names()):
        try:
            find = LEFTOVERS.find(name)
        except SpecError as error:  # a package that cannot be imported keeps nobody from the others
            say(str(error))
            continue
        if of := find(choice.options if name == choice.name else None):
            found.append(of)
    return found


def _of(of: Leftovers) -> Sequence[Orphan]:
    try:
        return of.of_dead_pools()
    except UnavailableError as error:
        say(f"{of.what} are left out: {error}")
        return []


def _show(found: Sequence[Orphan], output: Output) -> None:
    if output is not Output.table:
        show_objects([(each.id, asdict(each)) for each in found], output)
    elif not found:
        say("nothing is left of pools that have ended")
    else:
        from marless.app.cli.output import TableColumn, fitted

        columns = [
            TableColumn(title="what", cells=[harmless(each.what) for each in found]),
            TableColumn(title="launcher", cells=[each.launcher for each in found], goes=2),
            TableColumn(title="id", cells=[each.id for each in found], right=True),
            TableColumn(title="pool", cells=[each.pool for each in found], right=True, goes=1),
            TableColumn(title="age", cells=[duration(each.age_s) for each in found], right=True, goes=3),
        ]
        shown = console()
        shown.print(fitted(columns, shown.width))
