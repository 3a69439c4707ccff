"""Names of PettingZoo's environments as people write them. They are looked up among file names; nothing is imported."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from marless.core.errors import SpecError, shown, unknown_name

FAMILIES = ("pettingzoo.atari", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "mpe2")
"""Packages of environments; mpe2 is the successor of PettingZoo's MPE family."""
_ENVIRONMENT = re.compile(r"([a-z][a-z0-9_]*)_v[0-9]+")
_WITH_FAMILY = re.compile(rf"(?:atari|butterfly|classic|mpe|sisl)\.{_ENVIRONMENT.pattern}")


def module(name: str) -> str:
    """The module of `multiwalker_v9`, `sisl.multiwalker_v9` or `pettingzoo.sisl.multiwalker_v9`; others are returned.

    Raises SpecError for a name without a family that no installed family has.
    """
    if _WITH_FAMILY.fullmatch(name):
        return f"pettingzoo.{name}"
    if not _ENVIRONMENT.fullmatch(name):
        return name
    found = [each for each in installed() if each.rpartition(".")[2] == name]
    if not found:
        raise SpecError(unknown(name))
    return found[0]


def installed() -> list[str]:
    """The modules of all environments of the families that are installed, whether or not theirs can be imported."""
    return [each for family in FAMILIES for each in _members(family)]


def unknown(name: str) -> str:
    """The message for an environment that no installed family has; it names the installed version if there is one."""
    everything = installed()
    if not everything:
        return f"environment {shown(name)} needs pettingzoo, which is not installed: pip install 'marless[pettingzoo]'"
    wanted = _without_version(name)
    versions = [each for each in everything if wanted and _without_version(each) == wanted]
    if versions:
        return f"unknown environment {shown(name)}; the installed version is {versions[0]!r}"
    family = name.rpartition(".")[0]
    return unknown_name("environment", name, _members(family) if family in FAMILIES else everything)


def _members(family: str) -> Iterable[str]:
    top, _, folder = family.partition(".")
    spec = importlib.util.find_spec(top)  # of a top-level package, which is not imported for that
    places = spec.submodule_search_locations if spec else None
    files = sorted(file for place in places or () for file in Path(place, folder).glob("*.py"))
    return [f"{family}.{file.stem}" for file in files if _ENVIRONMENT.fullmatch(file.stem)]


def _without_version(name: str) -> str:
    found = _ENVIRONMENT.fullmatch(name.rpartition(".")[2])
    return found[1] if found else ""
