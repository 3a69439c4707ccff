"""Sums of what the agents of a class have observed in a round, for the statistics that normalise it.

Samples of all agents of the class count, actor by actor in the order of their indexes, whoever has played them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import EnvSpaces, FloatArray
from marless.learning.nets import normalising
from marless.learning.nets.normalising import Sums

STATE = "state"
"""Key of the global state among observations by class."""


def observation_sums(trajectories: Sequence[Trajectory], k: int) -> Sums:
    """The sums of the observations of class `k`, float64 [I, 3]; agents that are absent or wait observe nothing."""
    dies = f"alive/{k}" in trajectories[0].arrays
    return normalising.added(
        (each[f"obs/{k}"].astype(np.float32, copy=False), each.alive(k) if dies else None) for each in trajectories
    )


def state_sums(trajectories: Sequence[Trajectory]) -> Sums:
    """The sums of the global state, float64 [S, 3]."""
    return normalising.added((each["state"].astype(np.float32, copy=False), None) for each in trajectories)


class ObservationStatistics:
    """The sums of all observations that a learner with a replay has ever inserted, by class, and of the state."""

    def __init__(self, spaces: EnvSpaces, classes: Sequence[int], clip: float | None, *, with_state: bool) -> None:
        """Start with nothing observed; normalised observations are limited to `clip`."""
        self._clip = clip
        sizes: dict[int | str, int] = {k: spaces.classes[k].obs_size for k in classes}
        if with_state:
            sizes[STATE] = spaces.state_size
        self._sums = {key: np.zeros((size, 3)) for key, size in sizes.items()}

    def of(self, k: int) -> Sums:
        """The sums of class `k`, a copy."""
        return self._sums[k].copy()

    def begin(self, k: int, sums: Sums) -> None:
        """Go on from those of a policy that has been trained, if nothing has been observed here."""
        if not self._sums[k].any():
            self._sums[k] = sums.copy()

    def add(self, trajectories: Sequence[Trajectory]) -> None:
        """Add a round."""
        for key in self._sums:
            self._sums[key] += state_sums(trajectories) if isinstance(key, str) else observation_sums(trajectories, key)

    def write(self, x_xIM: FloatArray, key: int | str) -> None:
        """Normalise observations of a class, or states, feature-major [..., I, M], in place."""
        centre_I, scale_I = normalising.centre_and_scale(self._sums[key])
        x_xIM -= centre_I[:, None]
        x_xIM *= scale_I[:, None]
        if self._clip is not None:
            np.clip(x_xIM, -self._clip, self._clip, out=x_xIM)

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Copies of the sums, by the name under which a learner publishes them."""
        return {_name(key): sums.copy() for key, sums in self._sums.items()}

    def restore(self, arrays: Mapping[str, NDArray[np.generic]]) -> None:
        """The inverse of `arrays`; raises CorruptError for sums that are missing or do not fit."""
        found = {key: arrays.get(_name(key)) for key in self._sums}
        for key, sums in found.items():
            if sums is None or sums.shape != self._sums[key].shape or sums.dtype != np.float64:
                raise CorruptError(f"the state of a replay has no sums {_name(key)} of {self._sums[key].shape}")
            self._sums[key] = sums.astype(np.float64, copy=True)


def _name(key: int | str) -> str:
    return f"seen.{key}"
