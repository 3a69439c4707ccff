"""The `marless` app with all its commands. They import what they need when they are called, to keep `--help` fast.

Data go to standard output, everything else to standard error. Exit codes: `marless.app.cli.exits`.
"""

from __future__ import annotations

import errno
import functools
import sys
from typing import Annotated

import typer
from typer.main import get_command

from marless.app.cli import (
    check,
    compare,
    costs,
    credentials,
    exits,
    explain,
    fleet,
    jobs,
    local,
    output,
    plot,
    policies,
    simulate,
    submitting,
    tokens,
    up,
)
from marless.app.cli.doctor import verb
from marless.app.cli.extensions import ExtensibleGroup
from marless.app.cli.options import connected
from marless.app.cli.output import for_data_alone
from marless.core.errors import MarlessError

app = typer.Typer(
    cls=ExtensibleGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train teams of agents with multi-agent RL, as serverless functions that start on demand and stop afterwards.",
)
HERE, JOBS, POLICIES = "On this machine", "Jobs of a coordinator", "Policies"

app.command(rich_help_panel=HERE)(for_data_alone(local.train))
app.command(rich_help_panel=HERE)(for_data_alone(check.check))
app.command(rich_help_panel=HERE)(connected(for_data_alone(compare.compare)))
app.command(rich_help_panel=HERE)(up.up)
app.command(rich_help_panel=HERE)(up.down)
app.command(rich_help_panel=HERE)(tokens.tokens)
app.command(rich_help_panel=HERE)(credentials.credentials)
app.command(rich_help_panel=HERE)(for_data_alone(verb.doctor))
app.add_typer(fleet.app, name="fleet", rich_help_panel=HERE)
app.command(rich_help_panel=JOBS)(connected(for_data_alone(submitting.submit)))
app.command("list", rich_help_panel=JOBS)(connected(jobs.list_))
app.command(rich_help_panel=JOBS)(connected(jobs.get))
app.command(rich_help_panel=JOBS)(connected(jobs.watch))
app.command(rich_help_panel=JOBS)(connected(jobs.logs))
app.command(rich_help_panel=JOBS)(connected(jobs.wait))
app.command(rich_help_panel=JOBS)(connected(jobs.cancel))
app.command(rich_help_panel=JOBS)(connected(jobs.resume))
app.command(rich_help_panel=JOBS)(connected(jobs.delete))
app.command(rich_help_panel=JOBS)(connected(jobs.download))
app.command(rich_help_panel=JOBS)(connected(costs.cost))
app.command(rich_help_panel=JOBS)(connected(explain.explain))
app.command(rich_help_panel=JOBS)(connected(simulate.simulate))
app.command(rich_help_panel=JOBS)(connected(plot.plot))
app.command(rich_help_panel=POLICIES)(for_data_alone(policies.evaluate))
app.command(rich_help_panel=POLICIES)(policies.export)


def _say_version(asked: bool) -> None:
    if asked:
        import marless

        output.data(f"marless {marless.__version__}")
        raise typer.Exit


@app.callback()
def _marless(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A group of verbs; --version needs none."""


_command = functools.cache(functools.partial(get_command, app))
"""The app as one command; built once, as it takes longer than most commands do."""


def main() -> None:
    """Run the app; errors are printed as a message, without a traceback. Raises KeyboardInterrupt."""
    output.prepare()
    try:
        _command()(prog_name="marless")
    except MarlessError as error:
        output.say(str(error))
        sys.exit(exits.of_error(error))
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename:  # a file that a command writes is its own matter
            raise
        output.say(f"the output cannot be written ({error.strerror}); make room, or write it elsewhere")
        sys.exit(1)
    finally:
        output.flush()
