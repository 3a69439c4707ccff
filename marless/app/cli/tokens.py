"""The command `tokens`: manages the directory of tokens that authorise calls to the services."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marless.app.cli.output import say
from marless.rpc.roles import Role


def tokens(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the tokens; created if missing.")],
    rotate: Annotated[
        list[Role], typer.Option(metavar="ROLE", help="Make a new token for this role; the old one stays valid.")
    ] = [],  # noqa: B006  # typer's way
    retire: Annotated[
        list[Role], typer.Option(metavar="ROLE", help="Remove all tokens of this role but the newest.")
    ] = [],  # noqa: B006  # typer's way
) -> None:
    """Make a directory with a token for each role: client, operator, actor, learner, service.

    Services take it as --tokens ($MARLESS_TOKENS), and read it again when it changes. No token is ever printed.
    """
    from marless.rpc import tokens as files

    files.create(directory)
    for role in rotate:
        files.rotate(directory, role)
        say(f"{role}: a new token was made; the old one stays valid until `marless tokens {directory} --retire {role}`")
    for role in retire:
        files.retire(directory, role)
        say(f"{role}: only the newest token is valid now")
    print(directory)  # noqa: T201  # the command's data
