"""`mpe/simple_spread` whose every step takes at least 10 ms, as of a simulator outside of this process.

Found by the entry point beside it, if this folder is on PYTHONPATH.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from marless.learning.envs import registry
from marless.learning.envs.base import ActionArray, Arrays, BatchedEnv, Frame, Saved, Transition

STEP_S = 0.01


class SlowSpread:
    """The environment within, whose steps wait."""

    def __init__(self, inner: BatchedEnv) -> None:
        assert isinstance(inner, Saved)
        self.spaces, self.batch = inner.spaces, inner.batch
        self._inner = inner

    def reset(self, seed: int) -> Frame:
        """As the environment within."""
        return self._inner.reset(seed)

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """As the environment within, later."""
        time.sleep(STEP_S)
        return self._inner.step(actions)

    def save(self) -> Arrays:
        """As the environment within."""
        return self._inner.save()

    def load(self, arrays: Arrays) -> Frame:
        """As the environment within."""
        return self._inner.load(arrays)

    def close(self) -> None:
        """As the environment within."""
        self._inner.close()


def make(options: Mapping[str, Any], batch: int) -> BatchedEnv:  # Any: YAML values
    """Options are those of `simple_spread`."""
    return SlowSpread(registry.make("mpe/simple_spread", options, batch))
