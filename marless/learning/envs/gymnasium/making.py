"""Builds Gymnasium environments."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from marless.core.errors import SpecError, shown, told, unknown_name
from marless.learning.envs.base import BatchedEnv

try:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec

    from marless.learning.envs.gymnasium import ids, wrapping
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


def adapt(path: str, options: Mapping[str, Any], batch: int, mask: object, *, filmed: bool = False) -> BatchedEnv:
    """Make `batch` copies of the environment that `path` names, with masks as the job's `env.mask` says.

    `filmed`: copy 0 can draw itself. Raises SpecError if the environment cannot be found, built or used.
    """
    spec = ids.find(path)
    given = {name: value for name, value in options.items() if name not in OURS}
    limit, wrappers = _limit(options.get("max_episode_steps")), wrapping.parse(options.get("wrappers", ()))
    _check_options(spec, given)
    if filmed:
        given["render_mode"] = "rgb_array"

    def build() -> Any:
        env = _build(spec, given, limit)
        for wrapper in wrappers:
            env = wrapper.around(env)
        return env

    skips = any(each.name in wrapping.SKIPPING for each in wrappers)
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
