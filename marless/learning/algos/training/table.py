"""Converts the trajectories of a round to one table per agent class, feature-major: samples are on the last axis.

Shapes: N agents of the class, T time, B copies of all actors in actor order, S = T · B samples, I features + 1 (a last
row of ones, see `marless.learning.nets.layout`), K bootstrap rows. NumPy, on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError
from marless.learning.algos.training.images import RoundImages
from marless.learning.algos.training.turns import open_turns
from marless.learning.data.trajectory import Trajectory, returned

FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Table:
    """The samples of a round for a learner; the module's docstring explains the shapes."""

    obs: FloatArray
    """[N, I, S]; of images, whose F positions are in the place of the observation, [N, F + 1, S]."""
    boot_obs: FloatArray
    """[N, I, K]."""
    action: FloatArray
    """[N, 1, S] (index of a discrete action) or [N, A, S]."""
    log_prob: FloatArray
    """[N, 1, S]."""
    reward: FloatArray
    """[N, T, B]."""
    terminated: BoolArray
    """[N, T, B]."""
    cut: BoolArray
    """[T, B]."""
    boot_index: NDArray[np.int64]
    """[K], flat t · B + b."""
    alive: FloatArray | None
    """[N, 1, S], 1 or 0, samples that count: the agent acts, in a turn that is not open; None if agents never leave."""
    waits: BoolArray | None
    """[N, T, B]; None if nobody waits in these samples. See `marless.learning.algos.training.turns`."""
    open: BoolArray | None
    """[N, T, B], likewise."""
    returned: BoolArray | None
    """[N, T, B], the agent comes back: its memory is empty; None if agents never leave."""
    legal: FloatArray | None
    """[N, A, S], 1 or 0; None if every action always is."""
    boot_legal: FloatArray | None
    """[N, A, K], likewise."""
    state: FloatArray | None
    """[1, I, S]."""
    boot_state: FloatArray | None
    """[1, I, K]."""
    memory: FloatArray | None
    """[N, H, B], memory of the policies before the first step; None if episodes begin there, or nets have none."""
    images: RoundImages | None
    """What the positions of images mean; None if the class observes vectors."""


def tabulate(trajectories: Sequence[Trajectory], agent_class: int, with_state: bool, frames: int = 1) -> Table:
    """Concatenate the trajectories of all actors along the copies; raises CorruptError if their steps differ.

    Of images, nets read the last `frames` at once.
    """
    if len({trajectory.steps for trajectory in trajectories}) != 1:
        raise CorruptError(f"trajectories of {[t.steps for t in trajectories]} time steps cannot share a round")
    source = _Source(trajectories, agent_class)
    waits, unfinished = source.waiting()
    alive = source.rows("alive") if f"alive/{agent_class}" in trajectories[0].arrays else None
    if alive is not None and unfinished is not None:
        alive *= ~unfinished.reshape(alive.shape)
    first, k = trajectories[0].arrays, agent_class
    images = RoundImages.of(trajectories, k, frames)
    obs, boot_obs = source.observations(images)
    return Table(
        obs=_with_ones(obs),
        boot_obs=_with_ones([each[None] for each in boot_obs]),
        action=source.rows("action"),
        log_prob=source.rows("log_prob"),
        reward=source.over_time("reward").astype(np.float32, copy=False),
        terminated=source.over_time("terminated").astype(np.bool_, copy=False),
        cut=np.concatenate([t["cut"] for t in trajectories], axis=1).astype(np.bool_, copy=False),
        boot_index=source.boot_index(),
        alive=alive,
        waits=waits,
        open=unfinished,
        returned=source.returned() if f"alive/{k}" in first else None,
        legal=source.rows("mask") if f"mask/{k}" in first else None,
        boot_legal=source.boot_legal() if f"boot_mask/{k}" in first else None,
        state=_with_ones([t["state"][:, None] for t in trajectories]) if with_state else None,
        boot_state=_with_ones([t["boot_state"][None, None] for t in trajectories]) if with_state else None,
        memory=source.memory() if f"memory/{k}" in first else None,
        images=images,
    )


@dataclass(frozen=True)
class _Source:
    trajectories: Sequence[Trajectory]
    agent_class: int

    def observations(self, images: RoundImages | None) -> Sequence[Sequence[NDArray[np.generic]]]:
        """The arrays "obs" and "boot_obs" of each trajectory, or the positions of their images."""
        if images is not None:
            return list(zip(*images.positions(self.trajectories, self.agent_class), strict=True))
        return [[t[f"{name}/{self.agent_class}"] for t in self.trajectories] for name in ("obs", "boot_obs")]

    def rows(self, name: str) -> FloatArray:
        """[N, R, S] float32 of arrays [T, N, b, R] or, with R = 1, [T, N, b]."""
        arrays = [t[f"{name}/{self.agent_class}"] for t in self.trajectories]
        wide = [a[..., None] if a.ndim == 3 else a for a in arrays]
        return _feature_major(wide, wide[0].shape[3])

    def over_time(self, name: str) -> NDArray[np.generic]:
        """[N, T, B] of arrays [T, N, b]."""
        arrays = [t[f"{name}/{self.agent_class}"] for t in self.trajectories]
        return np.ascontiguousarray(np.concatenate(arrays, axis=2).swapaxes(0, 1))

    def returned(self) -> BoolArray:
        """[N, T, B]."""
        there = np.concatenate([each.there(self.agent_class) for each in self.trajectories], axis=2)
        return np.ascontiguousarray(returned(there).swapaxes(0, 1))

    def waiting(self) -> tuple[BoolArray | None, BoolArray | None]:
        """The agents that wait, and the turns that are open, each [N, T, B]; None if nobody waits."""
        k = self.agent_class
        if f"waits/{k}" not in self.trajectories[0].arrays:
            return None, None
        waits_NTB = self.over_time("waits").astype(np.bool_, copy=False)
        boot_waits_NK = np.concatenate([t[f"boot_waits/{k}"] for t in self.trajectories], axis=1).astype(np.bool_)
        if not waits_NTB.any() and not boot_waits_NK.any():
            return None, None
        cut_TB = np.concatenate([t["cut"] for t in self.trajectories], axis=1).astype(np.bool_)
        return waits_NTB, open_turns(waits_NTB, boot_waits_NK, cut_TB, self.boot_index())

    def boot_legal(self) -> FloatArray:
        """[N, A, K] of arrays [N, k, A]."""
        arrays = [t[f"boot_mask/{self.agent_class}"] for t in self.trajectories]
        return np.ascontiguousarray(np.concatenate(arrays, axis=1).swapaxes(1, 2), np.float32)

    def memory(self) -> FloatArray:
        """[N, H, B] of arrays [N, b, H]."""
        arrays = [t[f"memory/{self.agent_class}"] for t in self.trajectories]
        return np.ascontiguousarray(np.concatenate(arrays, axis=1).swapaxes(1, 2), np.float32)

    def boot_index(self) -> NDArray[np.int64]:
        """Bootstrap positions in the joint [T, B], in the order of the concatenated bootstrap rows."""
        batches = [t.batch for t in self.trajectories]
        offsets = np.cumsum([0, *batches[:-1]])
        parts = []
        for trajectory, offset in zip(self.trajectories, offsets, strict=True):
            time, copy = np.divmod(trajectory["boot_index"].astype(np.int64), trajectory.batch)
            # A position counts the copies of its actor; a time step of the table has those of all actors.
            parts.append(time * sum(batches) + offset + copy)
        return np.concatenate(parts)


def _with_ones(arrays: Sequence[NDArray[np.generic]]) -> FloatArray:
    table = _feature_major(arrays, arrays[0].shape[3] + 1)
    table[:, -1] = 1
    return table


def _feature_major(arrays: Sequence[NDArray[np.generic]], rows: int) -> FloatArray:
    steps, agents = arrays[0].shape[:2]
    batch = sum(a.shape[2] for a in arrays)
    table_NRTB = np.empty((agents, rows, steps, batch), np.float32)
    start = 0
    for array_TNBR in arrays:
        stop = start + array_TNBR.shape[2]
        # Each actor's array is transposed into its place: to concatenate first would copy all samples once more.
        table_NRTB[:, : array_TNBR.shape[3], :, start:stop] = array_TNBR.transpose(1, 3, 0, 2)
        start = stop
    return table_NRTB.reshape(agents, rows, steps * batch)
