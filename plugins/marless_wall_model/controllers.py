"""Controllers to compare learned policies with: each chooses the actions of all agents of an environment.

The log-law controller is written by hand: it raises an agent's stress in proportion to how far u* lies above the
logarithmic law. It knows u* and y* also where agents observe only 1/κ_m and B_m.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from marless.learning.envs.base import FloatArray, Frame
from marless_wall_model.env import WallModel

GAIN = 0.1
"""Of the log-law controller: fraction of the largest change, for each unit by which u* is too high."""
Controller = Callable[[WallModel, Frame, np.random.Generator], FloatArray]
"""Chooses factors, float32 [N, B, 1], for the flows as they are now, of which agents observe the frame."""


def no_op(env: WallModel, frame: Frame, rng: np.random.Generator) -> FloatArray:
    """The controller that never changes a stress."""
    return np.ones((len(env.spaces.agents), env.batch, 1), np.float32)


def at_random(env: WallModel, frame: Frame, rng: np.random.Generator) -> FloatArray:
    """The controller that draws each factor uniformly."""
    change = env.options.change
    return rng.uniform(1 - change, 1 + change, (len(env.spaces.agents), env.batch, 1)).astype(np.float32)


def log_law(env: WallModel, frame: Frame, rng: np.random.Generator) -> FloatArray:
    """The controller that is written by hand."""
    excess_NB = np.stack([flow.sense().excess() for flow in env.flows], axis=1)
    return (1 + env.options.change * np.clip(GAIN * excess_NB, -1, 1)).astype(np.float32)[..., None]


CONTROLLERS: Mapping[str, Controller] = MappingProxyType({"no-op": no_op, "random": at_random, "log-law": log_law})


def episode_returns(env: WallModel, controller: Controller, episodes: int, seed: int) -> list[float]:
    """The returns of whole episodes under a controller, each the mean over agents; flows that blow up do not count."""
    rng = np.random.default_rng(seed)
    frame = env.reset(seed)
    earned_B, returns = np.zeros(env.batch), list[float]()
    while len(returns) < episodes:
        moved = env.step((controller(env, frame, rng),))
        frame = moved.frame
        earned_B += moved.rewards[0].mean(axis=0)
        assert moved.broken is not None  # flows may blow up
        returns += earned_B[moved.ended & ~moved.broken].tolist()
        earned_B[moved.ended] = 0.0
    return returns[:episodes]
