"""An environment that notes its episodes: `simple_spread`, slower if a test likes; installed as `witness` is."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from marless.learning.envs import registry
from marless.learning.envs.base import ActionArray, BatchedEnv, Frame, Transition


class Counted:
    """Appends a JSON line to the file `notes` whenever episodes end: the process, the number of copies, and for each
    episode that has ended the return of each agent. A step takes `step_s` seconds more than it does by itself. If it
    `breaks`, a fault ends the first episode of the first copy, at its last step.
    """

    def __init__(self, inner: BatchedEnv, notes: Path, step_s: float, *, breaks: bool = False) -> None:
        self.spaces = inner.spaces
        self.batch = inner.batch
        self._inner = inner
        self._notes = notes
        self._step_s = step_s
        self._breaks = breaks

    def reset(self, seed: int) -> Frame:
        """As the environment within."""
        self._returns_NB = np.zeros((len(self.spaces.agents), self.batch))
        self._first = True
        return self._inner.reset(seed)

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """As the environment within."""
        time.sleep(self._step_s)
        transition = self._inner.step(actions)
        self._returns_NB += np.concatenate(transition.rewards)
        if transition.ended.any():
            ended = self._returns_NB[:, transition.ended].T.tolist()
            with self._notes.open("a") as file:
                file.write(json.dumps({"pid": os.getpid(), "copies": self.batch, "returns": ended}) + "\n")
            self._returns_NB[:, transition.ended] = 0.0
        if self._breaks:
            broken_B = transition.ended & (np.arange(self.batch) == 0) & self._first
            self._first &= not broken_B.any()
            return replace(transition, truncated=transition.truncated | broken_B, broken=broken_B)
        return transition

    def close(self) -> None:
        """As the environment within."""
        self._inner.close()


def make(options: Mapping[str, Any], batch: int) -> BatchedEnv:  # Any: YAML values
    """`notes` is a path, `step_s` and `breaks` as above; if `unbounded`, it does not say how many steps an episode has
    at most; the other options are those of `simple_spread`.
    """
    rest = {name: value for name, value in options.items() if name not in ("notes", "step_s", "breaks", "unbounded")}
    inner = registry.make("mpe/simple_spread", rest, batch)
    made = Counted(inner, Path(options["notes"]), options.get("step_s", 0.0), breaks=bool(options.get("breaks", False)))
    if options.get("unbounded"):
        made.spaces = replace(made.spaces, max_steps=None)
    return made
