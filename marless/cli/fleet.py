"""The commands `fleet list` and `fleet reap`: workers that outlived their pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from marless.cli import exits
from marless.cli.options import Output, OutputOption
from marless.cli.output import console, duration, harmless, say, show_objects

if TYPE_CHECKING:
    from marless.fleet.orphans import Orphan

app = typer.Typer(
    no_args_is_help=True,
    help="Workers of this machine whose pool has ended, and what they have started. Their next pool ends them, too.",
)


@app.command("list")
def list_(output: OutputOption = Output.table) -> None:
    """List what pools that have ended left running; it is this user's, and belongs to no pool that runs."""
    from marless.fleet import orphans

    _show(orphans.of_dead_pools(), output)


@app.command()
def reap(output: OutputOption = Output.table) -> None:
    """End what `fleet list` lists, and print it; exit code 1 if something cannot be ended."""
    from marless.fleet import orphans

    found = orphans.of_dead_pools()
    orphans.end_of_dead_pools()
    left = {each.id for each in orphans.of_dead_pools()}
    _show([each for each in found if each.id not in left], output)
    if left:
        say(f"{', '.join(sorted(left))}: could not be killed: a device or a network disk keeps it; try again later")
        raise typer.Exit(exits.ExitCode.ERROR)


def _show(found: Sequence[Orphan], output: Output) -> None:
    if output is not Output.table:
        show_objects([(each.id, asdict(each)) for each in found], output)
    elif not found:
        say("nothing is left of pools that have ended")
    else:
        from marless.cli.job_table import Column, fitted

        columns = [
            Column(title="what", cells=[harmless(each.what) for each in found]),
            Column(title="launcher", cells=[each.launcher for each in found], goes=2),
            Column(title="id", cells=[each.id for each in found], right=True),
            Column(title="pool", cells=[each.pool for each in found], right=True, goes=1),
            Column(title="age", cells=[duration(each.age_s) for each in found], right=True, goes=3),
        ]
        shown = console()
        shown.print(fitted(columns, shown.width))
