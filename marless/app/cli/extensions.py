"""Commands of plug-ins and other packages: entry points of the group marless.commands (docs/extending/command.md).

A package's commands are imported when one of them is called, or when all commands are listed, as for `marless --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from marless.core.errors import SpecError, told

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "marless.commands"
PANEL = "Other packages"
"""Where `marless --help` shows commands that do not say where."""


class ExtensibleGroup(TyperGroup):
    """The commands of marless, which nobody can replace, and after them those of other packages."""

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
        return _command(entry) if entry else None


def _command(entry: EntryPoint) -> Any:  # Any: typer has no public name for the base of its commands
    """The command of an entry point; if it cannot be made, one that says why, so that all others work."""
    from marless.core.registry import loaded

    among = typer.Typer(add_completion=False, callback=_group)
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


def _group() -> None:
    """A group of verbs, also as long as there is one only."""


def _refusing(name: str, error: SpecError) -> TyperCommand:
    """A command that raises this error, whatever is given to it."""

    def refuse(**_: object) -> None:
        raise error

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return TyperCommand(name, callback=refuse, help=str(error), context_settings=anything, rich_help_panel=PANEL)
