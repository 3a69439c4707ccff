"""Builds Gymnasium environments, in the wrappers that a job may name.

Wrappers are options: `env.options: {wrappers: [ClipAction, {name: ClipReward, max_reward: 1}]}`. They are Gymnasium's,
and applied in their order, the first one innermost. Left out are those that take functions, write files, open windows,
or remember something over episodes, which could then not be played again.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from marless.core.errors import SpecError, shown, told, unknown_name
from marless.learning.envs.base import BatchedEnv

try:
    import gymnasium
    from gymnasium import error as gymnasium_error
    from gymnasium import wrappers
    from gymnasium.envs.registration import EnvSpec

    from marless.learning.envs.gymnasium import ids
    from marless.learning.envs.gymnasium.adapter import GymnasiumEnv
    from marless.learning.envs.gymnasium.masks import parse_choice
except ModuleNotFoundError as missing:
    raise SpecError(f"needs {missing.name}, which is not installed; pip install 'marless[gymnasium]'") from None

OURS = ("max_episode_steps", "wrappers")
"""Options of every environment, besides its own."""
_NO_OPTIONS: Mapping[str, str] = {
    "render_mode": "films set it",
    "id": "it is the environment's name",
    "disable_env_checker": "marless checks every step itself",
}
_MOST_EPISODE_STEPS = 10**6
_SKIPPING = frozenset({"AtariPreprocessing", "MaxAndSkipObservation", "RepeatAction"})
"""Wrappers of whose steps one is several of the environment."""
_WRAPPERS = _SKIPPING | {
    "ClipAction",
    "ClipReward",
    "DelayObservation",
    "DiscretizeAction",
    "DiscretizeObservation",
    "FilterObservation",
    "FlattenObservation",
    "FrameStackObservation",
    "GrayscaleObservation",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "StickyAction",
    "TimeAwareObservation",
}
_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "NormalizeObservation": "set model.normalise_observations",
        "NormalizeReward": "algorithms scale rewards themselves, where they need it",
        "TimeLimit": "set the option max_episode_steps",
        "RecordVideo": "films are made by marless evaluate --render",
    }
)
"""Wrappers that are refused, and what there is in their place."""


def adapt(path: str, options: Mapping[str, Any], batch: int, mask: object, *, filmed: bool = False) -> BatchedEnv:
    """Make `batch` copies of the environment that `path` names, with masks as the job's `env.mask` says.

    `filmed`: copy 0 can draw itself. Raises SpecError if the environment cannot be found, built or used.
    """
    spec = ids.find(path)
    given = {name: value for name, value in options.items() if name not in OURS}
    limit, around = _limit(options.get("max_episode_steps")), _parse_wrappers(options.get("wrappers", ()))
    _check_options(spec, given)
    if filmed:
        given["render_mode"] = "rgb_array"

    def build() -> Any:
        env = _build(spec, given, limit)
        for wrapper in around:
            env = wrapper.around(env)
        return env

    skips = any(each.name in _SKIPPING for each in around)
    newest = ids.newer(spec)
    return GymnasiumEnv(
        [build() for _ in range(batch)],
        parse_choice(mask),
        fresh_only=ids.fresh_only(spec),
        max_steps=None if skips else limit or spec.max_episode_steps,
        notes=[f"{spec.id} is out of date; the newest version is {newest}"] if newest else (),
    )


def _limit(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 < value <= _MOST_EPISODE_STEPS:
        raise SpecError(
            f"max_episode_steps must be a whole number from 1 to {_MOST_EPISODE_STEPS:,}, got {shown(value)}"
        )
    return value


def _check_options(spec: EnvSpec, options: Mapping[str, Any]) -> None:
    for option in options:
        if option in _NO_OPTIONS:
            raise SpecError(f"{option} is no option: {_NO_OPTIONS[option]}; leave it out")
    ids.check_options(spec, list(options))
    known = _known_options(ids.constructor(spec))
    for option in options:
        if known and option not in known:
            usable = [each for each in (*known, *OURS) if each not in _NO_OPTIONS]
            raise SpecError(unknown_name("option", option, usable))


def _build(spec: EnvSpec, options: Mapping[str, Any], limit: int | None) -> Any:
    try:
        with warnings.catch_warnings():  # that a version is out of date is a note
            warnings.simplefilter("ignore")
            return gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True, **options)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ids.missing(spec, error) from None
    except Exception as error:
        raise SpecError(f"cannot be built with options {shown(dict(options))}: {told(error)}") from error


def _known_options(construct: Callable[..., Any]) -> list[str]:
    """Names of the options, those of its bases included that a class hands on; [] if they are unknown."""
    names: dict[str, None] = {}
    bases = [each for each in construct.__mro__ if "__init__" in vars(each)] if isinstance(construct, type) else []
    for each in (*bases,) or (construct,):
        try:
            parameters = inspect.signature(each).parameters.values()
        except (TypeError, ValueError):  # as of a class written in C
            return []
        names |= {p.name: None for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            return list(names)
    return []


@dataclass(frozen=True)
class _Wrapper:
    """A wrapper with its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def around(self, env: Any) -> Any:
        """The environment in this wrapper; raises SpecError if they do not fit."""
        try:
            return getattr(wrappers, self.name)(env, **self.arguments)
        except (TypeError, ValueError, AssertionError, ImportError, gymnasium_error.Error) as error:
            raise SpecError(f"wrapper {self.name} cannot be applied: {told(error)}") from error


def _parse_wrappers(value: object) -> tuple[_Wrapper, ...]:
    """Read the option `wrappers`: a list of names, or of mappings {name: NAME, argument: value}; raises SpecError."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SpecError(
            f"wrappers must be a list, as [ClipAction, {{name: ClipReward, max_reward: 1}}], got {shown(value)}"
        )
    return tuple(_parsed(each) for each in value)


def _parsed(value: object) -> _Wrapper:
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(name := given.get("name"), str):
        raise SpecError(f"a wrapper is a name, or a mapping with one and its arguments, got {shown(value)}")
    if name in _INSTEAD:
        raise SpecError(f"wrapper {name} is not supported; {_INSTEAD[name]}")
    if name not in _WRAPPERS:
        raise SpecError(unknown_name("wrapper", name, _WRAPPERS))
    parameters = inspect.signature(getattr(wrappers, name)).parameters.values()
    known = {each.name: each.default is each.empty for each in parameters if each.name != "env"}
    arguments = {key: argument for key, argument in given.items() if key != "name"}
    for argument in arguments:
        if argument not in known:
            raise SpecError(unknown_name(f"argument of {name}", str(argument), known))
    if left := [key for key, needed in known.items() if needed and key not in arguments]:
        raise SpecError(f"wrapper {name} needs {left[0]}: {{name: {name}, {left[0]}: …}}")
    return _Wrapper(name, {key: _argument(key, argument) for key, argument in arguments.items()})


def _argument(key: str, value: Any) -> Any:
    """An argument as Gymnasium takes it: bounds of several components are arrays, all other lists tuples."""
    if not isinstance(value, list):
        return value
    return np.asarray(value, np.float32) if key.startswith(("min_", "max_")) else tuple(value)
