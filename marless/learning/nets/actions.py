"""The interpretation of a net's outputs for each kind of action space; NumPy only, used by actors and learners.

Discrete: A outputs are logits; illegal actions get ILLEGAL_LOGIT. Continuous: A outputs are the means of a diagonal
Gaussian whose log standard deviations are free parameters. Its samples are in units in which the box is [−1, 1]; they
are converted only for the environment, which is as if it did so itself: their probabilities stay those of the Gaussian.
"""

from __future__ import annotations

import contextlib
import json

from marless.core.errors import SpecError
from marless.core.limits import MAX_ACTIONS
from marless.learning.envs import boxes
from marless.learning.envs.base import ActionArray, Box, Discrete

ILLEGAL_LOGIT = -1e9
"""Finite, so that probability · log-probability of an illegal action is 0, not NaN."""


def free_parameters(action: Discrete | Box) -> int:
    """Number of parameters of a policy besides its net: one log standard deviation per continuous component."""
    return 0 if isinstance(action, Discrete) else action.n


def describe(action: Discrete | Box) -> str:
    """Encode an action space as text, for the metadata of a policy state."""
    if isinstance(action, Discrete):
        return f"discrete:{action.n}"
    return f"box:{json.dumps([action.low, action.high], separators=(',', ':'))}"


def parse(text: str) -> Discrete | Box:
    """The inverse of `describe`; raises ValueError for invalid text."""
    kind, _, numbers = text.partition(":")
    with contextlib.suppress(TypeError, ValueError, RecursionError, SpecError):
        # `int` also takes signs, spaces and underscores: only the very text that `describe` writes is an action space.
        if kind == "discrete" and 0 < (n := int(numbers)) <= MAX_ACTIONS and numbers == str(n):
            return Discrete(n)
        if kind == "box":
            low, high = json.loads(numbers)
            if 0 < len(low) <= MAX_ACTIONS:
                return Box(low=tuple(low), high=tuple(high))
    raise ValueError(f"{text[:80]!r} is no action space")


def to_env(action: Discrete | Box, chosen: ActionArray) -> ActionArray:
    """Convert actions for the environment, continuous ones [..., A] as `marless.learning.envs.boxes` says."""
    return chosen if isinstance(action, Discrete) else boxes.into(action, chosen)
