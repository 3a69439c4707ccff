"""The factories of `wall_model/llwm` and `wall_model/vwm`, as entry points of the group `marless.envs` name them."""

from __future__ import annotations

from marless.learning.envs.base import BatchedEnv
from marless.learning.envs.registry import Options, read_options
from marless_wall_model.env import WallModel
from marless_wall_model.options import WallModelOptions


def llwm(options: Options, batch: int) -> BatchedEnv:
    """Flows whose agents observe the logarithmic law through the point that they see; raises SpecError."""
    return WallModel("llwm", read_options(WallModelOptions, options), batch)


def vwm(options: Options, batch: int) -> BatchedEnv:
    """Flows whose agents observe velocity, slope and height in their own wall units; raises SpecError."""
    return WallModel("vwm", read_options(WallModelOptions, options), batch)
