"""An environment whose steps take as long as a test likes: `simple_spread`, held up for as long as a file is there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marless.learning.envs import registry
from marless.learning.envs.base import ActionArray, Arrays, BatchedEnv, Frame, Saved, Transition

STEP_S = 0.02


class Waiting:
    """`hangs`: one step lasts until the file has gone; else each takes 20 ms until then."""

    def __init__(self, inner: BatchedEnv, hold: Path, *, hangs: bool) -> None:
        assert isinstance(inner, Saved)
        self.spaces = inner.spaces
        self.batch = inner.batch
        self._inner = inner
        self._hold = hold
        self._hangs = hangs

    def reset(self, seed: int) -> Frame:
        """As the environment within."""
        return self._inner.reset(seed)

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """As the environment within, later."""
        while self._hold.exists():
            if self._hangs:
                self._hold.with_name(f"{os.getpid()}.hangs").touch()
            time.sleep(STEP_S)
            if not self._hangs:
                break
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
    """`hold` is the file, `hangs` as above, `making_s` how long it takes to be made; the other options are those of
    `simple_spread`.
    """
    time.sleep(options.get("making_s", 0.0))
    rest = {name: value for name, value in options.items() if name not in ("hold", "hangs", "making_s")}
    inner = registry.make("mpe/simple_spread", rest, batch)
    return Waiting(inner, Path(options["hold"]), hangs=bool(options.get("hangs")))
