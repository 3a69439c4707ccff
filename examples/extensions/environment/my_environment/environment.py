"""An environment, written as array operations over all copies: two walkers on a line of cells try to meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from marless.core.errors import SpecError
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    Discrete,
    EnvSpaces,
    Frame,
    Transition,
    load_generator,
    save_generator,
    saved,
)


class MyEnvironment:
    """Two walkers step left, stay or step right; -1 a step for both until they stand on one cell."""

    def __init__(self, cells: int, batch: int) -> None:
        walkers = AgentClass("walker", ("walker_0", "walker_1"), obs_size=2, action=Discrete(3))
        self.spaces = EnvSpaces(classes=(walkers,), state_size=2, max_steps=20)
        self.batch = batch
        self._cells = cells

    def reset(self, seed: int) -> Frame:
        """Begin an episode in every copy. All random numbers come from the seed, so that a round can be repeated."""
        self._rng = np.random.default_rng(seed)
        self._place = self._rng.integers(self._cells, size=(2, self.batch))
        self._steps = np.zeros(self.batch, np.int64)
        return self._view()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let both walkers act in every copy; `actions` holds one array [agents, copies] per agent class."""
        self._place = np.clip(self._place + actions[0] - 1, 0, self._cells - 1)
        self._steps += 1
        met = self._place[0] == self._place[1]
        truncated = ~met & (self._steps == self.spaces.max_steps)
        ended = met | truncated
        final = self._view()
        fresh = self._rng.integers(self._cells, size=(2, self.batch))
        self._place = np.where(ended, fresh, self._place)
        self._steps[ended] = 0
        return Transition(
            frame=self._view(),  # what agents see next: ended copies have begun anew
            final=final,  # what they saw before that
            rewards=(np.full((2, self.batch), -1.0),),
            terminated=(np.stack([met, met]),),  # a goal or a death: nothing comes after it
            truncated=truncated,  # out of time: the value of `final` still counts
            ended=ended,
        )

    def save(self) -> Arrays:
        """Copies of all that later steps depend on, so that episodes go on in the next round or after a crash."""
        return {"place": self._place.copy(), "steps": self._steps.copy(), "random": save_generator(self._rng)}

    def load(self, arrays: Arrays) -> Frame:
        """Continue from what `save` returned."""
        self._place = saved(arrays, "place", "int64", (2, self.batch)).copy()
        self._steps = saved(arrays, "steps", "int64", (self.batch,)).copy()
        self._rng = load_generator(saved(arrays, "random", "uint64", (6,)))
        return self._view()

    def close(self) -> None:
        """Nothing to release; an environment that starts processes ends them here."""

    def _view(self) -> Frame:
        place = (self._place / self._cells).astype(np.float32)
        return Frame(obs=(np.stack([place, place[::-1]], axis=-1),), state=place.T)


def make(options: Mapping[str, Any], batch: int) -> MyEnvironment:  # Any: options are YAML values
    """What marless calls: `env.options` of the job, and the number of copies."""
    unknown = options.keys() - {"cells"}
    if unknown:
        raise SpecError(f"unknown options {sorted(unknown)}; known: cells")
    return MyEnvironment(options.get("cells", 9), batch)
