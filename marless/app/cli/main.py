"""The `marless` app with all its commands. They import what they need when they are called, to keep `--help` fast.

Data go to standard output, everything else to standard error. Exit codes: `marless.app.cli.exits`.

Commands of plug-ins and other packages are entry points of the group marless.commands (docs/extending/command.md); they
are imported when one of them is called, or when all commands are listed, as for `marless --help`.
"""

from __future__ import annotations

import errno
import functools
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from marless.app.cli import (
    check,
    compare,
    costs,
    credentials,
    dashboard,
    discover,
    exits,
    explain,
    frontier,
    jobs,
    local,
    new,
    output,
    plot,
    policies,
    ps,
    services,
    simulate,
    submitting,
)
from marless.app.cli.doctor import verb
from marless.app.cli.options import connected
from marless.app.cli.output import for_data_alone
from marless.core.errors import MarlessError, SpecError, told

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "marless.commands"
PANEL = "Other packages"
"""Where `marless --help` shows commands that do not say where."""


class ExtensibleGroup(TyperGroup):
    """The commands of marless, which nobody can replace, and after them those of other packages."""

    def invoke(self, ctx: Any) -> Any:  # Any: typer has no public name for the base of its contexts
        """Run a command; an error about what may be a setting of a job says how settings are given."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if hint := _hint(getattr(error, "message", "")):
                error.message = f"{error.message.rstrip('.')}. {hint}"  # type: ignore[attr-defined]  # a usage error
            raise

    def list_commands(self, ctx: Any) -> list[str]:  # Any: typer has no public name for the base of its contexts
        """The names of all commands, ours first; imports none."""
        from marless.core.registry import declared  # imported here: a command of marless needs no entry point

        return [*super().list_commands(ctx), *sorted(declared(GROUP).keys() - self.commands.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # Any: as above, and for its commands
        """The command of this name, imported if it is not ours; None if there is none."""
        if ours := super().get_command(ctx, cmd_name):
            return ours
        from marless.core.registry import declaration

        entry = declaration(GROUP, cmd_name)
        return _command_of(entry) if entry else None


def _hint(message: object) -> str:
    """How to give a setting of a job, for a message about an option or argument that may be one."""
    from marless.core.settings import HABITS

    if found := re.search(r"unexpected extra argument.* \(([\w.]+=[^\s)]+)", str(message)):
        return f"A setting of the job is given as: --set {found[1]}"
    option = re.match(r"No such option: --([\w-]+)", str(message))
    name = option[1].replace("-", "_") if option else ""
    setting = {"seed": "seed", "algorithm": "algorithm", "env": "env", "name": "name"}.get(name) or HABITS.get(name)
    return f"A setting of the job is given as: --set {setting}=VALUE" if setting and " " not in setting else ""


def _command_of(entry: EntryPoint) -> Any:  # Any: typer has no public name for the base of its commands
    """The command of an entry point; if it cannot be made, one that says why, so that all others work."""
    from marless.core.registry import loaded

    # With a callback it is a group of verbs, also as long as there is one only.
    among = typer.Typer(add_completion=False, callback=lambda: None)
    try:
        theirs = loaded("command", entry)
        if isinstance(theirs, typer.Typer):
            among.add_typer(theirs, name=entry.name)
        else:
            among.command(entry.name)(theirs)
        group: Any = get_command(among)  # Any: as above
    except SpecError as error:
        return _refusing(entry.name, error)
    except Exception as error:  # noqa: BLE001  # typer raises many kinds for a declaration that it does not understand
        return _refusing(entry.name, SpecError(f"command {entry.name}: {entry.value} is no command: {told(error)}"))
    command = group.commands[entry.name]
    command.rich_help_panel = command.rich_help_panel or PANEL
    return command


def _refusing(name: str, error: SpecError) -> TyperCommand:
    """A command that raises this error, whatever is given to it."""

    def refuse(**_: object) -> None:
        raise error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return TyperCommand(name, callback=refuse, help=str(error), context_settings=anything, rich_help_panel=PANEL)


app = typer.Typer(
    cls=ExtensibleGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train teams of agents with multi-agent RL, as serverless functions that start on demand and stop afterwards.",
)
FIRST, HERE, JOBS, POLICIES = "First steps", "On this machine", "Jobs of a coordinator", "Policies"

app.command(rich_help_panel=FIRST)(discover.init)
app.command(rich_help_panel=FIRST)(new.new)
app.command(rich_help_panel=FIRST)(discover.envs)
app.command(rich_help_panel=FIRST)(discover.algorithms)
app.command(rich_help_panel=FIRST)(discover.settings)
app.command(rich_help_panel=HERE)(for_data_alone(local.train))
app.command(rich_help_panel=HERE)(for_data_alone(check.check))
app.command(rich_help_panel=HERE)(connected(for_data_alone(compare.compare)))
app.command(rich_help_panel=HERE)(for_data_alone(frontier.frontier))
app.command(rich_help_panel=HERE)(services.up)
app.command(rich_help_panel=HERE)(services.down)
app.command(rich_help_panel=HERE)(connected(dashboard.dashboard))
app.command(rich_help_panel=HERE)(ps.ps)
app.command(rich_help_panel=HERE)(credentials.tokens)
app.command(rich_help_panel=HERE)(credentials.credentials)
app.command(rich_help_panel=HERE)(for_data_alone(verb.doctor))
app.add_typer(services.fleet, name="fleet", rich_help_panel=HERE)
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
app.command(rich_help_panel=POLICIES)(policies.card)


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
