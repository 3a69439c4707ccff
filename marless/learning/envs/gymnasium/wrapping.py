"""The wrappers that a job may name: `env.options: {wrappers: [ClipAction, {name: ClipReward, max_reward: 1}]}`.

They are Gymnasium's, and applied in their order, the first one innermost. Left out are those that take functions, write
files, open windows, or remember something over episodes, which could then not be played again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium import wrappers

from marless.core.errors import SpecError, shown, told, unknown_name

SKIPPING = frozenset({"AtariPreprocessing", "MaxAndSkipObservation", "RepeatAction"})
"""Wrappers of whose steps one is several of the environment."""
KNOWN = SKIPPING | {
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


@dataclass(frozen=True)
class Wrapper:
    """A wrapper with its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def around(self, env: Any) -> Any:
        """The environment in this wrapper; raises SpecError if they do not fit."""
        try:
            return getattr(wrappers, self.name)(env, **self.arguments)
        except (TypeError, ValueError, AssertionError, ImportError, gymnasium_error.Error) as error:
            raise SpecError(f"wrapper {self.name} cannot be applied: {told(error)}") from error


def parse(value: object) -> tuple[Wrapper, ...]:
    """Read the option `wrappers`: a list of names, or of mappings {name: NAME, argument: value}; raises SpecError."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise SpecError(
            f"wrappers must be a list, as [ClipAction, {{name: ClipReward, max_reward: 1}}], got {shown(value)}"
        )
    return tuple(_parsed(each) for each in value)


def _parsed(value: object) -> Wrapper:
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(name := given.get("name"), str):
        raise SpecError(f"a wrapper is a name, or a mapping with one and its arguments, got {shown(value)}")
    if name in _INSTEAD:
        raise SpecError(f"wrapper {name} is not supported; {_INSTEAD[name]}")
    if name not in KNOWN:
        raise SpecError(unknown_name("wrapper", name, KNOWN))
    parameters = inspect.signature(getattr(wrappers, name)).parameters.values()
    known = {each.name: each.default is each.empty for each in parameters if each.name != "env"}
    arguments = {key: argument for key, argument in given.items() if key != "name"}
    for argument in arguments:
        if argument not in known:
            raise SpecError(unknown_name(f"argument of {name}", str(argument), known))
    if left := [key for key, needed in known.items() if needed and key not in arguments]:
        raise SpecError(f"wrapper {name} needs {left[0]}: {{name: {name}, {left[0]}: …}}")
    return Wrapper(name, {key: _argument(key, argument) for key, argument in arguments.items()})


def _argument(key: str, value: Any) -> Any:
    """An argument as Gymnasium takes it: bounds of several components are arrays, all other lists tuples."""
    if not isinstance(value, list):
        return value
    return np.asarray(value, np.float32) if key.startswith(("min_", "max_")) else tuple(value)
