"""Which modules `pettingzoo/<module>` may import and what of them it may call, decided by name before any import.

Making an environment runs its code, and the name may come from a stranger's job, policy file or request. So it may name
PettingZoo's own environments, and what the operator of this process lists in `MARLESS_ENV_MODULES` or `--env-modules`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from marless.errors import SpecError

VARIABLE = "MARLESS_ENV_MODULES"
USUAL = ("parallel_env", "env")
"""What a module of PettingZoo calls its constructors; the first is preferred."""
_OWN = re.compile(r"(?:pettingzoo\.(?:atari|butterfly|classic|mpe|sisl)|mpe2)\.[a-z][a-z0-9_]*_v[0-9]+")
"""PettingZoo's environments and those of mpe2, which its MPE family became: their names end in a version."""
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_PUBLIC = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_SHOWN = 80
OWN_PATH_OPTIONS = frozenset({"auto_rom_install_path"})
"""Options of PettingZoo's own environments that name a file or a directory of the machine."""


@dataclass(frozen=True)
class Place:
    """Where an environment's constructor is, of a module that may be imported."""

    module: str
    attributes: tuple[str, ...]
    """Names to look for, the first that is there counts."""
    own: bool
    """PettingZoo's own, not one that the operator allowed."""

    def check_constructor(self, name: str, found: object) -> None:
        """Refuse what the module has under this name, unless it can build environments and is the module's own.

        Raises SpecError. `parallel_env` and `env` are usually made by a wrapper of PettingZoo, so they may come from
        elsewhere.
        """
        if isinstance(found, ModuleType) or not callable(found):
            raise SpecError(f"{self.module}:{name} builds no environment: it is no function or class")
        home = getattr(found, "__module__", None)
        if name not in USUAL and not (isinstance(home, str) and _is_among(home, modules())):
            raise SpecError(
                f"{self.module}:{name} is not defined in a module that {VARIABLE} allows; name a function or class "
                "where it is defined"
            )

    def check_options(self, options: Sequence[str]) -> None:
        """Refuse options that name a file; raises SpecError. What an allowed module does with its own is its affair."""
        for option in options:
            if self.own and option in OWN_PATH_OPTIONS:
                raise SpecError(f"option {option!r} is not allowed: it names a file of the machine; leave it out")


def place(path: str) -> Place:
    """Where `<module>` or `<module>:<callable>` leads; raises SpecError for what may not be imported or called."""
    module, separator, attribute = path.partition(":")
    own = _OWN.fullmatch(module) is not None
    if not own and not (_MODULE.fullmatch(module) and _is_among(module, modules())):
        raise SpecError(_refusal(module))
    if separator and not (attribute in USUAL if own else _PUBLIC.fullmatch(attribute)):
        wanted = "'parallel_env' or 'env'" if own else "the name of a function or class"
        raise SpecError(f"{attribute[:_LONGEST_SHOWN]!r} is not allowed after {module}: give {wanted}")
    return Place(module, (attribute,) if separator else USUAL, own)


def allow(names: Sequence[str]) -> None:
    """Set what this process allows beside PettingZoo's own; for its `__main__`, with what its operator gave."""
    os.environ[VARIABLE] = ",".join(names)


def modules() -> tuple[str, ...]:
    """What the operator of this process allows: modules, each with all that is below it. Raises SpecError."""
    return parse(os.environ.get(VARIABLE, ""))


def parse(text: str) -> tuple[str, ...]:
    """Read a comma list of modules; raises SpecError for what is none."""
    if not text.strip():
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _MODULE.fullmatch(name):
            raise SpecError(f"{VARIABLE} or --env-modules: {name!r} is not the name of a module; e.g. cogrid,my_games")
    return names


def _is_among(module: str, allowed: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def _refusal(module: str) -> str:
    shown = repr(module if len(module) <= _LONGEST_SHOWN else f"{module[:_LONGEST_SHOWN]}…")
    return (
        f"module {shown} is not allowed, because importing it runs its code. Allowed are PettingZoo's own (as "
        "pettingzoo.classic.tictactoe_v3), mpe2's (as mpe2.simple_spread_v3), and packages that whoever runs this "
        f"process trusts and lists: {VARIABLE}=cogrid, or --env-modules of coordinator and actor pool"
    )
