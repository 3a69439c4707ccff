"""Finds and builds PettingZoo environments."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np

from marless.core.errors import SpecError, shown, unknown_name
from marless.core.installing import how_to_install
from marless.learning.envs import allowed
from marless.learning.envs.allowed import installed, unknown_environment
from marless.learning.envs.base import BatchedEnv, random_actions

try:
    from gymnasium import error as gymnasium_error
    from pettingzoo import AECEnv
    from pettingzoo.utils import conversions

    from marless.learning.envs.gymnasium.images import LOOKS, ImageLook
    from marless.learning.envs.gymnasium.masks import parse_choice
    from marless.learning.envs.pettingzoo.adapter import TURNS, PettingZooEnv
    from marless.learning.envs.pettingzoo.agents import ParallelEnv
except ModuleNotFoundError as missing:
    raise SpecError(f"needs {missing.name}, which is not installed; pip install 'marless[pettingzoo]'") from None

_INSTALLED_BY: Mapping[str, str] = MappingProxyType(
    {
        "pettingzoo.atari": "pettingzoo[atari]",
        "pettingzoo.butterfly": "pettingzoo[butterfly]",
        "pettingzoo.classic": "pettingzoo[classic]",
        "pettingzoo.sisl": "pettingzoo[sisl]",
        "mpe2": "marless[mpe]",
        "cogrid": "marless[overcooked]",
    }
)
"""pip requirement that installs each module; messages recommend nothing else."""

_RENDERED = "render_mode"
"""Option of environments that says whether, and how, they draw."""
_STILL = 20
"""Steps after which images are taken to stay the same. Most change in the first."""
_OURS = (*LOOKS, TURNS)
"""Options that are not the environment's own."""
_CONVERTED = conversions.aec_to_parallel_wrapper, conversions.turn_based_aec_to_parallel_wrapper


def adapt(place: allowed.ConstructorPlace, options: Mapping[str, Any], batch: int, mask: object) -> BatchedEnv:
    """Make `batch` copies of the environment at `place`, with masks as the job's `env.mask` says.

    Raises SpecError if it cannot be found, built or used.
    """
    given = {name: value for name, value in options.items() if name not in _OURS}
    look = ImageLook.parse({name: value for name, value in options.items() if name in LOOKS})
    place.check_options(list(given))
    module = _imported(place)
    construct = _constructor(place, module)
    known = _known_options(module, construct)
    for option in given:
        if known and option not in known:
            raise SpecError(unknown_name("option", option, [*known, *_OURS]))
    turns = options.get(TURNS)
    if not isinstance(turns, bool | None):
        raise SpecError(f"{TURNS} must be true or false, got {shown(turns)}")
    envs = [_build(construct, given, own=place.own) for _ in range(batch)]
    # What PettingZoo has converted shows every agent something in each step.
    waiting = not isinstance(envs[0], _CONVERTED) if turns is None else turns
    adapted = partial(PettingZooEnv, mask=parse_choice(mask), look=look, turns=waiting)
    if given.get(_RENDERED) is None and _blind(adapted(envs[:1])):
        _check_drawn(adapted, construct, {**given, _RENDERED: "rgb_array"}, own=place.own)
    return adapted(envs)


def _check_drawn(
    adapted: Callable[[list[ParallelEnv]], PettingZooEnv],
    construct: Callable[..., Any],
    rendered: Mapping[str, Any],
    *,
    own: bool,
) -> None:
    """Raise SpecError if agents that see nothing of what they do would see it with the options `rendered`.

    So it is with pistonball and cooperative_pong, whose agents would learn to act without seeing, in silence. A game
    that has no such option, or stands still with it, too, is as it is meant to be.
    """
    try:
        env = adapted([_build(construct, rendered, own=own)])
    except SpecError:
        return
    blind = _blind(env)
    env.close()
    if not blind:
        raise SpecError(
            f"what its agents observe stays the same for {_STILL} steps of random actions, because it draws only for "
            f"those who render it; set env.options: {{{_RENDERED}: rgb_array}}"
        )


def _blind(env: PettingZooEnv) -> bool:
    """True if agents observe images, and each saw the same one in all steps of its episode, whatever was done."""
    pictured = [k for k, agents in enumerate(env.spaces.classes) if agents.image]
    if not pictured:
        return False
    env.without_state()
    random, seen_twice = np.random.default_rng(0), False
    frame = env.reset(0)
    for _ in range(_STILL):
        before = [frame.obs[k].copy() for k in pictured]
        moved = env.step(random_actions(env.spaces, frame, random))
        assert moved.final.alive is not None  # the adapter's agents may die
        for k, seen in zip(pictured, before, strict=True):
            there = moved.final.alive[k]  # those who have just left are shown zeros
            if (moved.final.obs[k] != seen)[there].any():
                return False
            seen_twice |= bool(there.any())
        frame = moved.frame
    return seen_twice


def _imported(place: allowed.ConstructorPlace) -> ModuleType:
    name = place.module
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise SpecError(_not_found(place, error.name or name)) from None
    except ImportError as error:
        if place.own and name not in installed():  # a family that has moved, such as pettingzoo.mpe
            raise SpecError(unknown_environment(name)) from None
        raise SpecError(f"{name} cannot be imported: {error}") from None


def _constructor(place: allowed.ConstructorPlace, module: ModuleType) -> Callable[..., ParallelEnv]:
    for name in place.attributes:
        if hasattr(module, name):
            constructor: Callable[..., ParallelEnv] = getattr(module, name)
            place.check_constructor(name, constructor)
            return constructor
    if place.attributes == allowed.USUAL:
        raise SpecError(
            f"{place.module} has neither 'parallel_env' nor 'env'; name what builds it: <module>:<callable>"
        )
    raise SpecError(f"{place.module} has no {place.attributes[0]!r}; name what builds it: <module>:<callable>")


def _not_found(place: allowed.ConstructorPlace, missing: str) -> str:
    """The message for a module that cannot be imported because `missing` is not installed.

    Its commands come from `_INSTALLED_BY` alone, because the module's name may be untrusted input.
    """
    module = place.module
    known = next((name for name in _INSTALLED_BY if f"{module}.".startswith(f"{name}.")), "")
    hint = f": {how_to_install(known, _INSTALLED_BY[known])}" if known else ""
    if not f"{module}.".startswith(f"{missing}."):
        return f"{module} needs {missing!r}, which is not installed{hint}"
    parent = missing.rpartition(".")[0]
    if not parent:
        return (
            f"there is no module {missing!r} on this machine{hint or '; install it, or add its folder to PYTHONPATH'}"
        )
    if place.own:
        return unknown_environment(module)
    siblings = pkgutil.iter_modules(getattr(importlib.import_module(parent), "__path__", ()))
    return unknown_name("module", missing, [f"{parent}.{each.name}" for each in siblings if each.name[0] != "_"])


def _build(construct: Callable[..., Any], options: Mapping[str, Any], *, own: bool) -> ParallelEnv:
    """A parallel environment; `own` are those of PettingZoo's own packages."""
    try:
        env = construct(**options)
    except (TypeError, ValueError, AssertionError, ImportError, gymnasium_error.Error) as error:
        raise SpecError(f"cannot be built with options {shown(dict(options))}: {error}") from error
    if isinstance(env, AECEnv):
        simultaneous = env.metadata.get("is_parallelizable", False)
        env = conversions.aec_to_parallel(env) if simultaneous else conversions.turn_based_aec_to_parallel(env)
    if own and isinstance(env, conversions.aec_to_parallel_wrapper):
        # PettingZoo draws what each agent sees before its move, and drops it: half of all the drawing of a step. Only
        # of its own games is it known that nothing else depends on who looks.
        env.aec_env.last = partial(env.aec_env.last, observe=False)
    return env


def _known_options(module: ModuleType, construct: Callable[..., Any]) -> list[str]:
    """Names of the options, from the signature behind PettingZoo's usual `**kwargs` wrappers; [] if it is unknown."""
    for candidate in (construct, getattr(module, "raw_env", construct)):
        try:
            parameters = inspect.signature(candidate).parameters.values()
        except (TypeError, ValueError):  # as of a class written in C
            return []
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return [p.name for p in parameters]
    return []
