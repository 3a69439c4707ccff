"""The allow-list of `pettingzoo/<module>` and `gymnasium/<module>:<id>`: which modules may be imported and called.

It is decided by name, before any import.

Making an environment runs its code, and the name may come from an untrusted job, policy file or request. Allowed are
PettingZoo's own environments, whose names are looked up among the files of its families, and the modules that the
operator of this process lists in `MARLESS_ENV_MODULES` or `--env-modules`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from marless.core.errors import SpecError, shown, unknown_name
from marless.core.process_environment import ENV_MODULES, MODULE_NAME, env_modules

USUAL = ("parallel_env", "env")
"""The usual names of constructors in PettingZoo's modules; the first is preferred."""
_OWN = re.compile(r"(?:pettingzoo\.(?:atari|butterfly|classic|mpe|sisl)|mpe2)\.[a-z][a-z0-9_]*_v[0-9]+")
"""PettingZoo's environments and those of mpe2, the successor of its MPE family: their names end in a version."""
_PUBLIC = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_SHOWN = 80
MASK_OPTION = "env.mask"
"""The option by which a job's `env.mask` reaches the adapter, wherever options go: to workers, policies, evaluations.

It is no identifier, so it cannot be an option of an environment itself.
"""
FILM_OPTION = "env.film"
"""The option by which a film asks an environment of Gymnasium to draw itself; it is no option of a job."""
OWN_PATH_OPTIONS = frozenset({"auto_rom_install_path"})
"""Options of PettingZoo's own environments that name a file or a directory of the machine."""


@dataclass(frozen=True)
class ConstructorPlace:
    """The location of an environment's constructor in an allowed module."""

    module: str
    attributes: tuple[str, ...]
    """Names to look for, in order of preference."""
    own: bool
    """True for one of PettingZoo's own environments, False for a module that the operator allowed."""

    def check_constructor(self, name: str, found: object) -> None:
        """Raise SpecError unless `found`, the module's attribute `name`, is a callable defined in an allowed module.

        `parallel_env` and `env` may be defined elsewhere, because they are usually made by a wrapper of PettingZoo.
        """
        if isinstance(found, ModuleType) or not callable(found):
            raise SpecError(f"{self.module}:{name} builds no environment: it is no function or class")
        home = getattr(found, "__module__", None)
        if name not in USUAL and not (isinstance(home, str) and _is_among(home, env_modules())):
            raise SpecError(
                f"{self.module}:{name} is not defined in a module that {ENV_MODULES} allows; name a function or class "
                "where it is defined"
            )

    def check_options(self, options: Sequence[str]) -> None:
        """Raise SpecError for options of PettingZoo's own environments that name files; others are not checked."""
        for option in options:
            if self.own and option in OWN_PATH_OPTIONS:
                raise SpecError(f"option {option!r} is not allowed: it names a file of the machine; leave it out")


def place(path: str) -> ConstructorPlace:
    """Parse `<module>` or `<module>:<callable>`; raises SpecError for what may not be imported or called.

    Of PettingZoo's own environments, the packages before the name may be left out.
    """
    module, separator, attribute = path.partition(":")
    if not is_listed(module):
        module = _module_of(module)
    own = _OWN.fullmatch(module) is not None
    if not own and not is_listed(module):
        raise SpecError(
            f"module {_cut(module)} is not allowed, because importing it runs its code. Allowed are PettingZoo's own "
            "(as multiwalker_v9 or pettingzoo.classic.tictactoe_v3), mpe2's (as mpe2.simple_spread_v3), and packages "
            "that whoever runs this process trusts and lists: "
            f"{ENV_MODULES}=cogrid, or --env-modules of coordinator and actor pool"
        )
    if separator and not (attribute in USUAL if own else _PUBLIC.fullmatch(attribute)):
        wanted = "'parallel_env' or 'env'" if own else "the name of a function or class"
        raise SpecError(f"{attribute[:_LONGEST_SHOWN]!r} is not allowed after {module}: give {wanted}")
    return ConstructorPlace(module, (attribute,) if separator else USUAL, own)


def is_listed(module: str) -> bool:
    """True for a module that the operator of this process allows."""
    return MODULE_NAME.fullmatch(module) is not None and _is_among(module, env_modules())


def check_listed(module: str) -> None:
    """Raise SpecError unless the operator of this process allows the module."""
    if not is_listed(module):
        raise SpecError(
            f"module {_cut(module)} is not allowed, because importing it runs its code; whoever runs this process may "
            f"allow it: {ENV_MODULES}=NAME, or --env-modules of coordinator and actor pool"
        )


def is_public(name: str) -> bool:
    """True for a name that a function or class may have that a job calls."""
    return _PUBLIC.fullmatch(name) is not None


def _is_among(module: str, allowed: Sequence[str]) -> bool:
    # With the dot, so that a package that is allowed does not allow another one whose name begins like its own.
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _cut(module: str) -> str:
    return repr(module if len(module) <= _LONGEST_SHOWN else f"{module[:_LONGEST_SHOWN]}…")


FAMILIES = ("pettingzoo.atari", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "mpe2")
"""Packages of environments; mpe2 is the successor of PettingZoo's MPE family."""
_ENVIRONMENT = re.compile(r"([a-z][a-z0-9_]*)_v[0-9]+")
_WITH_FAMILY = re.compile(rf"(?:atari|butterfly|classic|mpe|sisl)\.{_ENVIRONMENT.pattern}")


def _module_of(name: str) -> str:
    """The module of `multiwalker_v9`, `sisl.multiwalker_v9` or `pettingzoo.sisl.multiwalker_v9`; others are returned.

    Raises SpecError for a name without a family that no installed family has.
    """
    if _WITH_FAMILY.fullmatch(name):
        return f"pettingzoo.{name}"
    if not _ENVIRONMENT.fullmatch(name):
        return name
    found = [each for each in installed() if each.rpartition(".")[2] == name]
    if not found:
        raise SpecError(unknown_environment(name))
    return found[0]


def installed() -> list[str]:
    """The modules of all environments of the families that are installed, whether or not theirs can be imported."""
    return [each for family in FAMILIES for each in _members(family)]


def unknown_environment(name: str) -> str:
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
