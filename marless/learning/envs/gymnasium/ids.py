"""Finds what `gymnasium/<id>` means among the environments that are registered, and what may be made of them.

The name may come from an untrusted job. Made are environments whose code is Gymnasium's or ale-py's own, and those of
modules that the operator of this process allows (`envs.allowed`): `<module>:<id>` imports one, which registers its ids,
or `<module>:<callable>` names its function or class.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from marless.core.errors import SpecError, shown, unknown_name
from marless.core.installing import how_to_install
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs import allowed

_OWN = ("gymnasium.envs.", "ale_py.")
"""Where the code of environments lies that need no permission."""
_FILES = re.compile(r"(?:^|_)(?:files?|path|paths|dir|directory|folder|rom|roms)(?:_|$)|^game$")
"""Options of these that name a file or a directory of the machine; `game` is one of Atari's, from a folder of ROMs."""
_INSTALLED_BY: Mapping[str, str] = MappingProxyType(
    {
        "gymnasium.envs.box2d": "gymnasium[box2d]",
        "gymnasium.envs.mujoco": "gymnasium[mujoco]",
        "gymnasium.envs.phys2d": "gymnasium[jax]",
        "gymnasium.envs.tabular": "gymnasium[jax]",
        "ale_py": "gymnasium[atari]",
    }
)
"""pip requirement of each family; messages recommend nothing else."""
_REMEMBERS = "gymnasium.envs.box2d.bipedal_walker"
"""A module whose environments keep one Box2D world over episodes, which then depend on those before them."""
_VERSION = re.compile(r"(.+?)(?:-v(\d+))?")
_ATARI = "ALE/"


def find(path: str) -> EnvSpec:
    """What `<id>`, `<module>:<id>` or `<module>:<callable>` means; raises SpecError for what may not be made."""
    module, separator, name = path.rpartition(":")
    if separator:
        return _of_module(module, name)
    if path.startswith(_ATARI):
        if importlib.util.find_spec("ale_py") is None:
            needed = _INSTALLED_BY["ale_py"]
            raise SpecError(f"Atari's games need ale_py, which is not installed: pip install '{needed}'")
        # ale-py registers its games when it is imported.
        gymnasium.register_envs(importlib.import_module("ale_py"))
    spec = gymnasium.registry.get(path)
    if spec is None:
        if versions := _versions(path):
            raise SpecError(f"unknown environment of Gymnasium {shown(path)}; the newest version is {versions[-1]!r}")
        known = unknown_name("environment of Gymnasium", path, ids())
        raise SpecError(f"{known}; one that a package registers is <package>:<id>")
    _check_home(spec)
    return spec


def is_own(spec: EnvSpec) -> bool:
    """True for an environment of Gymnasium or ale-py, False for one of a module that the operator allowed."""
    return _home(spec).startswith(_OWN)


def constructor(spec: EnvSpec) -> Callable[..., Any]:
    """What builds the environment; raises SpecError if something that it imports is not installed."""
    if callable(spec.entry_point):
        return spec.entry_point
    try:
        found: Callable[..., Any] = load_env_creator(str(spec.entry_point))
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise missing(spec, error) from None
    return found


def missing(spec: EnvSpec, error: Exception) -> SpecError:
    """The error for an environment that needs what is not installed; its command comes from a table."""
    home = _home(spec)
    family = next((name for name in _INSTALLED_BY if f"{home}.".startswith(f"{name}.")), "")
    needed = f"needs {error.name!r}" if isinstance(error, ImportError) and error.name else "needs a package"
    hint = f": {how_to_install(family, _INSTALLED_BY[family])}" if family else f": {error}"
    return SpecError(f"{spec.id} {needed}, which is not installed{hint}")


def check_options(spec: EnvSpec, options: Sequence[str]) -> None:
    """Raise SpecError for options that name files, in own environments; those of others are not checked."""
    for option in options:
        if is_own(spec) and _FILES.search(option):
            raise SpecError(f"option {shown(option)} is not allowed: it names a file of the machine; leave it out")


def fresh_only(spec: EnvSpec) -> str:
    """Why episodes cannot be played again; "" if nothing is known against it."""
    if _home(spec) == _REMEMBERS:
        return f"{spec.id} cannot play an episode again: it keeps its physics over episodes"
    return f"{spec.id} is registered as nondeterministic" if spec.nondeterministic else ""


def newer(spec: EnvSpec) -> str:
    """The id of the newest version of this environment; "" if it is the newest."""
    newest = _versions(spec.id)[-1:]
    return "" if newest in ([], [spec.id]) else newest[0]


def ids() -> list[str]:
    """The registered ids that may be made."""
    every = gymnasium.registry.values()
    return [each.id for each in every if (home := _home(each)) and (is_own(each) or allowed.is_listed(home))]


def _of_module(module: str, name: str) -> EnvSpec:
    allowed.check_listed(module)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"module {shown(module)} cannot be imported: {error}; install it, or add its folder to PYTHONPATH"
        ) from None
    spec = gymnasium.registry.get(name)
    if spec is not None:
        _check_home(spec)
        return spec
    place = allowed.ConstructorPlace(module, (name,), own=False)
    found = getattr(imported, name, None)
    if found is None or not allowed.is_public(name):
        raise SpecError(
            f"{module} neither registers {shown(name)} nor defines it; name an id that it registers, or a function or "
            "class of it"
        )
    place.check_constructor(name, found)
    return EnvSpec(id=name, entry_point=found)


def _check_home(spec: EnvSpec) -> None:
    """Raise SpecError unless the code of an environment may run."""
    home = _home(spec)
    if is_own(spec) or (home and allowed.is_listed(home)):
        return
    if home == "gymnasium.envs":  # ids that are kept for their message only
        instead = f"; use {newest}" if (newest := newer(spec)) else ""
        raise SpecError(f"{spec.id} is no longer part of Gymnasium{instead}")
    raise SpecError(
        f"{spec.id} is an environment of the module {shown(home)}, which is not allowed, because it runs that module's "
        f"code; whoever runs this process may allow it: {ENV_MODULES}={home.partition('.')[0]}"
    )


def _home(spec: EnvSpec) -> str:
    """The module that has the code of an environment; "" if it is not known."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(getattr(entry, "__module__", ""))


def _versions(name: str) -> list[str]:
    """The registered ids that may be made and differ from this name in the version only, the newest last."""
    wanted = _split(name)[0]
    return sorted((each for each in ids() if _split(each)[0] == wanted), key=lambda each: _split(each)[1])


def _split(name: str) -> tuple[str, int]:
    found = _VERSION.fullmatch(name)
    return (found[1], int(found[2] or 0)) if found else (name, 0)
