"""The meaning of a net's outputs for each kind of action space; NumPy only, used by actors and learners.

Discrete: A outputs are logits; illegal actions get ILLEGAL_LOGIT. Continuous: A outputs are the means of a diagonal
Gaussian whose log standard deviations are free parameters; it acts in a space where the box is [−1, 1], and what it
samples there is scaled to the box and clipped only on its way into the environment.
"""

from __future__ import annotations

import contextlib
import json

import numpy as np

from marless.envs.base import ActionArray, Box, Discrete, FloatArray
from marless.errors import SpecError
from marless.limits import MAX_ACTIONS

ILLEGAL_LOGIT = -1e9
"""Finite, so that probability · log-probability of an illegal action is 0, not NaN."""


def free_parameters(action: Discrete | Box) -> int:
    """How many parameters a policy has beside its net: one log standard deviation per continuous component."""
    return 0 if isinstance(action, Discrete) else action.n


def describe(action: Discrete | Box) -> str:
    """The action space as PolicyState metadata: all that a player needs to know of it."""
    if isinstance(action, Discrete):
        return f"discrete:{action.n}"
    return f"box:{json.dumps([action.low, action.high], separators=(',', ':'))}"


def parse(text: str) -> Discrete | Box:
    """Read what `describe` wrote; raises ValueError for anything else."""
    kind, _, numbers = text.partition(":")
    with contextlib.suppress(TypeError, ValueError, RecursionError, SpecError):
        if kind == "discrete" and 0 < (n := int(numbers)) <= MAX_ACTIONS and numbers == str(n):
            return Discrete(n)
        if kind == "box":
            low, high = json.loads(numbers)
            if 0 < len(low) <= MAX_ACTIONS:
                return Box(low=tuple(low), high=tuple(high))
    raise ValueError(f"{text[:80]!r} is no action space")


def to_env(action: Discrete | Box, chosen: ActionArray) -> ActionArray:
    """What the environment is given: discrete as is; continuous [..., A] scaled from [−1, 1] to the box and clipped."""
    if isinstance(action, Discrete):
        return chosen
    low, high = np.asarray(action.low, np.float32), np.asarray(action.high, np.float32)
    scaled: FloatArray = low + (chosen + np.float32(1)) * (np.float32(0.5) * (high - low))
    return np.clip(scaled, low, high)
