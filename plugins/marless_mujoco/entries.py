"""The factories of `mujoco/<task>`, as entry points of the group `marless.envs` name them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from marless.learning.envs.base import BatchedEnv
from marless.learning.envs.registry import Factory, Options, read_options
from marless_mujoco import options as tasks
from marless_mujoco.options import TaskOptions

TASKS: Mapping[str, tuple[str, str, type[TaskOptions]]] = MappingProxyType(
    {
        "ant": ("running", "Ant", tasks.AntOptions),
        "half_cheetah": ("running", "HalfCheetah", tasks.HalfCheetahOptions),
        "hopper": ("running", "Hopper", tasks.HopperOptions),
        "humanoid": ("running", "Humanoid", tasks.HumanoidOptions),
        "humanoid_standup": ("running", "HumanoidStandup", tasks.HumanoidStandupOptions),
        "inverted_double_pendulum": ("reaching", "InvertedDoublePendulum", tasks.InvertedDoublePendulumOptions),
        "inverted_pendulum": ("reaching", "InvertedPendulum", tasks.InvertedPendulumOptions),
        "pusher": ("reaching", "Pusher", tasks.PusherOptions),
        "reacher": ("reaching", "Reacher", tasks.ReacherOptions),
        "swimmer": ("running", "Swimmer", tasks.SwimmerOptions),
        "walker2d": ("running", "Walker2d", tasks.Walker2dOptions),
    }
)
"""Name → module and class, which are imported when the task is made, and its options."""


def __getattr__(name: str) -> Factory:
    """The factory of a task; raises AttributeError for an unknown one."""
    if name in TASKS:
        return partial(_made, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _made(name: str, options: Options, batch: int) -> BatchedEnv:
    module, task, options_type = TASKS[name]
    read = read_options(options_type, options)
    made: BatchedEnv = getattr(importlib.import_module(f"marless_mujoco.{module}"), task)(read, batch)
    return made
