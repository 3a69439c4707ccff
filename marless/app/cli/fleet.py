"""The commands `fleet list` and `fleet reap`: workers, containers and machines that outlived their pool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from marless.app.cli import exits
from marless.app.cli.options import Output, OutputOption
from marless.app.cli.output import console, duration, harmless, say, show_objects
from marless.core.errors import SpecError, UnavailableError

if TYPE_CHECKING:
    from marless.core.orphans import Orphan
    from marless.fleet.launchers.ec2.leftover_machines import LeftoverMachines
    from marless.fleet.launchers.engine import Engine

ENGINE_S = 15.0
"""Seconds that a container engine may take to answer a call."""
app = typer.Typer(
    no_args_is_help=True,
    help="Workers whose pool has ended, their containers and machines, and what they have started. Their next pool "
    "ends them, too.",
)


@app.command("list")
def list_(output: OutputOption = Output.table) -> None:
    """List what pools that have ended left running; it is this user's, and belongs to no pool that runs."""
    from marless.core import orphans

    _show([*orphans.of_dead_pools(), *_containers(_engine()), *_of_cloud(_cloud())], output)


@app.command()
def reap(output: OutputOption = Output.table) -> None:
    """End what `fleet list` lists, and print it; exit code 1 if something cannot be ended."""
    from marless.core import orphans

    engine, cloud = _engine(), _cloud()
    found = [*orphans.of_dead_pools(), *(containers := _containers(engine)), *(machines := _of_cloud(cloud))]
    orphans.end_of_dead_pools()
    for each in containers:
        if engine:
            engine.remove(each.id)
    if cloud and machines:
        _end(cloud, machines)
    still = (*orphans.of_dead_pools(), *_containers(engine), *_of_cloud(cloud))
    # What other pools have left meanwhile was not to be ended by this command.
    left = {each.id for each in still} & {each.id for each in found}
    _show([each for each in found if each.id not in left], output)
    if left:
        say(f"{', '.join(sorted(left))}: could not be ended: a device or a network disk keeps it; try again later")
        raise typer.Exit(exits.ExitCode.ERROR)


def _engine() -> Engine | None:
    """The container engine that pools use here; None if there is none, or nothing here has ever used one."""
    from marless.fleet.launchers.engine import DEFAULT, Engine
    from marless.fleet.launchers.options import parse

    try:
        url = parse(os.environ.get("MARLESS_LAUNCHER", "local")).options.get("engine", "")
        if not url and not os.environ.get("DOCKER_HOST") and not Path(DEFAULT.removeprefix("unix://")).exists():
            return None
        return Engine(url, ENGINE_S)
    except SpecError:
        return None  # without the SDK, or with TLS, no pool of this machine has started a container


def _containers(engine: Engine | None) -> list[Orphan]:
    from marless.fleet.launchers import containers

    try:
        return list(containers.of_dead_pools(engine)) if engine else []
    except UnavailableError as error:
        say(f"containers are left out: {error}")
        return []


def _cloud() -> LeftoverMachines | None:
    """The machines of the group that $MARLESS_LAUNCHER names; None if it names another launcher. Raises SpecError."""
    from marless.fleet.launchers import options

    choice = options.parse(os.environ.get("MARLESS_LAUNCHER", ""))
    if choice.name != "ec2":
        return None
    from marless.fleet.launchers.ec2 import leftover_machines, settings

    settings.check_installed()
    return leftover_machines.LeftoverMachines(settings.read("services.actor_pool.worker", choice.options))


def _of_cloud(cloud: LeftoverMachines | None) -> list[Orphan]:
    try:
        return cloud.of_dead_pools() if cloud else []
    except UnavailableError as error:
        say(f"machines are left out: {error}")
        return []


def _end(cloud: LeftoverMachines, machines: Sequence[Orphan]) -> None:
    try:
        cloud.end(machines)
    except UnavailableError as error:
        say(f"machines are left: {error}")


def _show(found: Sequence[Orphan], output: Output) -> None:
    if output is not Output.table:
        show_objects([(each.id, asdict(each)) for each in found], output)
    elif not found:
        say("nothing is left of pools that have ended")
    else:
        from marless.app.cli.job_table import TableColumn, fitted

        columns = [
            TableColumn(title="what", cells=[harmless(each.what) for each in found]),
            TableColumn(title="launcher", cells=[each.launcher for each in found], goes=2),
            TableColumn(title="id", cells=[each.id for each in found], right=True),
            TableColumn(title="pool", cells=[each.pool for each in found], right=True, goes=1),
            TableColumn(title="age", cells=[duration(each.age_s) for each in found], right=True, goes=3),
        ]
        shown = console()
        shown.print(fitted(columns, shown.width))
