"""`marless new`: makes a package that adds an environment, an algorithm or another extension, from a template.

A template is a package that works (examples/extensions/), whose names are replaced.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer

from marless.app.cli.output import say
from marless.core.errors import SpecError, shown

NAME = re.compile(r"(?=.{2,40}$)[a-z][a-z0-9]*(_[a-z0-9]+)*")
UNUSABLE = frozenset({"build", "dist", "tests"})
"""Folders of a project that are no package: build backends leave the first two out of wheels without a word."""


class ExtensionKind(StrEnum):
    """What can be added to marless; each has a template of its name, and a page in docs/extending/."""

    environment = "environment"
    algorithm = "algorithm"
    net = "net"
    module = "module"
    scaling = "scaling"
    similarity = "similarity"
    schedule = "schedule"
    sink = "sink"
    launcher = "launcher"
    command = "command"


NAMES = {
    ExtensionKind.environment: "marless.learning.envs.registry:environments",
    ExtensionKind.algorithm: "marless.learning.algos.registry:ALGORITHMS.names",
    ExtensionKind.net: "marless.learning.nets.kinds:KINDS.names",
    ExtensionKind.module: "marless.learning.nets.module_kind:MODULES.names",
    ExtensionKind.scaling: "marless.jobs.scaling.base:SCALING_POLICIES.names",
    ExtensionKind.similarity: "marless.learning.similarity.measures:SIMILARITIES.names",
    ExtensionKind.schedule: "marless.jobs.schedules.base:SCHEDULES.names",
    ExtensionKind.sink: "marless.jobs.sinks.base:SINKS.names",
    ExtensionKind.launcher: "marless.fleet.launchers.registry:LAUNCHERS.names",
}
"""Where the names are known that a kind has already; imported when they are asked for. Commands are in the app."""


def new(
    context: typer.Context,
    kind: Annotated[ExtensionKind, typer.Argument(help="What to add to marless.")],
    name: Annotated[str, typer.Argument(help="Its name, and that of its package: my_game.")],
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to make it; empty or not there yet. Default: ./NAME.")
    ] = None,
) -> None:
    """Make a Python package that adds something of your own to marless: code that works, a test and a job."""
    package = name.replace("-", "_")
    _check_name(kind, package, _taken(kind, context))
    folder = to or Path(package)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise SpecError(f"{folder}: it is not empty; choose another folder with --to")
        write_package(kind, package, folder)
    except OSError as error:
        raise SpecError(f"{folder}: cannot be written ({error.strerror}); choose another folder with --to") from None
    say(f"{folder} written; {folder / 'README.md'} says how to install, test and use it")


def _taken(kind: ExtensionKind, context: typer.Context) -> Collection[str]:
    """The names that things of this kind have, of marless and of all packages that are installed."""
    if kind is ExtensionKind.command:
        commands: typer.core.TyperGroup = context.find_root().command  # type: ignore[assignment]  # it has verbs
        return commands.list_commands(context)
    names: Collection[str] = resolve_name(NAMES[kind])()
    return names


def _check_name(kind: ExtensionKind, package: str, taken: Collection[str]) -> None:
    """Raise SpecError unless a package, an entry point and a job can have this name, and none has it yet."""
    if not NAME.fullmatch(package) or keyword.iskeyword(package):
        raise SpecError(
            f"{shown(package)} cannot be the name of a package: choose 2 to 40 lower-case letters, digits and single _ "
            "that begin with a letter, such as my_game"
        )
    if package in UNUSABLE:
        raise SpecError(f"{package} is a folder that projects have for another purpose; choose another name")
    if package in taken:
        raise SpecError(f"{kind} {package}: the name is taken; choose another one")
    found = find_spec(package)
    if found and found.origin:  # a folder without modules is no package
        raise SpecError(f"Python has a module {package} already ({found.origin}); choose another name")
    with suppress(PackageNotFoundError):
        # Its modules have other names, as PyYAML's `yaml`; installing this one would remove them.
        version = distribution(package).version
        raise SpecError(f"a package {package} {version} is installed already; choose another name")


def write_package(kind: ExtensionKind, package: str, folder: Path) -> None:
    """Write the template of a kind into `folder`, with the name of the package in place of the template's."""
    from marless.jobs.spec import EXAMPLES

    template = EXAMPLES / "extensions" / kind
    written = f"my_{kind}"
    # The kind stays in names of classes, so that none is that of a class of marless: FrameEnvironment is no Frame.
    titled = "".join(part.capitalize() for part in package.removesuffix(f"_{kind}").split("_"))
    changes = {
        written: package,
        written.replace("_", "-"): package.replace("_", "-"),
        f"My{kind.capitalize()}": f"{titled}{kind.capitalize()}",
    }
    for path in sorted(template.rglob("*")):
        inside = path.relative_to(template)
        if path.is_dir() or any(part.startswith((".", "__")) for part in inside.parent.parts):  # caches of tools
            continue
        place, text = f"{inside}", path.read_text("utf-8")
        for old, own in changes.items():
            place, text = place.replace(old, own), text.replace(old, own)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")
