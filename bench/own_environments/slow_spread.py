"""`mpe/simple_spread` whose every step takes at least 10 ms, as of a simulator outside of this process.

Found by the entry point beside it, if this folder is on PYTHONPATH.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from marless.learning.envs.base import ActionArray, BatchedEnv, Transition
from marless.learning.envs.mpe.moving import SimpleSpread, SpreadOptions
from marless.learning.envs.registry import read_options

STEP_S = 0.01


class SlowSpread(SimpleSpread):
    """A `SimpleSpread` whose steps wait."""

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        time.sleep(STEP_S)
        return super().step(actions)


def make(options: Mapping[str, Any], batch: int) -> BatchedEnv:  # Any: YAML values
    """Options are those of `simple_spread`."""
    return SlowSpread(read_options(SpreadOptions, options), batch)
