"""Converts trajectories to frames, the rows of a replay.

A frame is one time step of one environment copy: the observations, actions and rewards of all agents. The frames of a
segment (an episode, or its first part if the rollout cut it) are consecutive. One more frame follows them with the
final observation, so that the successor of frame r is frame r + 1. Names as in `marless.learning.data.trajectory`,
without the time and copy axes:

| name           | dtype, shape of a frame           | in a segment's last frame |
|----------------|-----------------------------------|---------------------------|
| `obs/k`        | float32 [N, O]; uint8 for images  | the final observation; zeros if all agents had terminated |
| `action/k`     | int32 [N] or float32 [N, A]       | zeros |
| `reward/k`     | float32 [N]                       | zeros |
| `terminated/k` | bool [N]                          | false |
| `alive/k`      | bool [N], only with deaths or turns | there before the last step, not terminated in it, not waiting |
| `waits/k`      | bool [N], only with turns         | waiting when the segment was cut |
| `mask/k`       | bool [N, A], only with masks      | legal actions in the final observation |
| `state`        | float32 [S], only if required     | like `obs/k` |
| `memory/k`     | float32 [N, H], if in trajectories | zeros; in a segment's first frame: what policies remembered |
| `resumed`      | bool, likewise                    | false; true in the first frame of the rest of an episode |
| `first`        | bool                              | false; true in the first frame of a segment |
| `last`         | bool                              | true: no action was taken in it |
| `before`       | bool, if trajectories have images before their first step | false |

Those images are frames, too, before the first one of a segment that goes on with an episode: `before` is true in them,
and all agents are there, so that nets read the last images of a step from the frames before it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import BoolArray, Discrete, EnvSpaces

ALIGNMENT = 64
"""Bytes; each array begins at a cache line."""
FrameArrays = Mapping[str, NDArray[np.generic]]
"""Name → array [frames, …]."""
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ReplaySchema:
    """The fields of a frame: those of these agent classes (by index), with or without the global state."""

    spaces: EnvSpaces
    classes: tuple[int, ...]
    with_state: bool
    memory: tuple[int, ...] = ()
    """See `TrajectorySchema.memory`: of each class of the environment, or ()."""
    frames: tuple[int, ...] = ()
    """See `TrajectorySchema.frames`, likewise."""

    @property
    def before(self) -> int:
        """Number of frames before a segment that goes on with an episode."""
        return max((self.frames[k] for k in self.classes), default=1) - 1 if self.frames else 0

    def fields(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name → (NumPy dtype name, shape) of one frame, in the order of the arrays in a file."""
        found: dict[str, tuple[str, tuple[int, ...]]] = {}
        for k in self.classes:
            agents = self.spaces.classes[k]
            n, discrete = len(agents.agents), isinstance(agents.action, Discrete)
            found[f"obs/{k}"] = (agents.obs_dtype, (n, agents.obs_size))
            found[f"action/{k}"] = ("int32", (n,)) if discrete else ("float32", (n, agents.action.n))
            found[f"reward/{k}"] = ("float32", (n,))
            found[f"terminated/{k}"] = ("bool", (n,))
            if self.spaces.deaths or self.spaces.turns:
                found[f"alive/{k}"] = ("bool", (n,))
            if self.spaces.turns:
                found[f"waits/{k}"] = ("bool", (n,))
            if self.spaces.masks and discrete:
                found[f"mask/{k}"] = ("bool", (n, agents.action.n))
            if self.memory:
                found[f"memory/{k}"] = ("float32", (n, self.memory[k]))
        if self.with_state:
            found["state"] = ("float32", (self.spaces.state_size,))
        if self.memory or self.before:
            found["resumed"] = ("bool", ())
        before: dict[str, tuple[str, tuple[int, ...]]] = {"before": ("bool", ())} if self.before else {}
        return found | {"first": ("bool", ()), "last": ("bool", ())} | before

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in self.fields().values())

    def file_bytes(self, capacity: int) -> int:
        """Bytes of a file of `capacity` frames, including header and alignment."""
        return ALIGNMENT + sum(size for _, _, size in self._places(capacity))

    def arrays(self, buffer: memoryview, capacity: int) -> dict[str, NDArray[np.generic]]:
        """All arrays, [capacity, …], as views of a file's bytes; its first `ALIGNMENT` bytes are the header."""
        found: dict[str, NDArray[np.generic]] = {}
        offset = ALIGNMENT
        for name, shape, size in self._places(capacity):
            dtype = np.dtype(self.fields()[name][0])
            found[name] = np.frombuffer(buffer, dtype, math.prod(shape), offset).reshape(shape)
            offset += size
        return found

    def byte_ranges(self, frames: Iterable[slice], capacity: int) -> list[slice]:
        """The bytes of a file that hold these ranges of frames; adjacent ones are joined."""
        joined: list[slice] = []
        for each in sorted(frames, key=lambda each: each.start):
            if joined and joined[-1].stop == each.start:
                joined[-1] = slice(joined[-1].start, each.stop)
            else:
                joined.append(each)
        found = []
        offset = ALIGNMENT
        for name, shape, size in self._places(capacity):
            row = np.dtype(self.fields()[name][0]).itemsize * math.prod(shape[1:])
            found += [slice(offset + each.start * row, offset + each.stop * row) for each in joined]
            offset += size
        return found

    def empty(self, frames: int) -> dict[str, NDArray[np.generic]]:
        """New uninitialised arrays for this many frames."""
        return {name: np.empty((frames, *shape), dtype) for name, (dtype, shape) in self.fields().items()}

    def fingerprint(self, capacity: int) -> int:
        """A checksum of the file layout: equal for files with the same fields and capacity."""
        return zlib.crc32(f"{capacity} {sorted(self.fields().items())}".encode())

    def _places(self, capacity: int) -> list[tuple[str, tuple[int, ...], int]]:
        found = []
        for name, (dtype, shape) in self.fields().items():
            size = np.dtype(dtype).itemsize * math.prod(shape) * capacity
            found.append((name, (capacity, *shape), -(-size // ALIGNMENT) * ALIGNMENT))
        return found


@dataclass(frozen=True)
class Placing:
    """The frame for each step of a trajectory: copy by copy, in time order, with a last frame after each segment.

    Frames count from the trajectory's first frame.
    """

    row: Rows
    """int64 [B, T]: the frame of each step."""
    kept: BoolArray | None
    """bool [B, T]: the steps that are stored; None: all."""
    last: Rows
    """The last frame of each stored segment."""
    ends: tuple[Rows, Rows]
    """Copies and time steps in which the stored segments ended."""
    seen: Rows
    """The last frames whose final observation is in the trajectory's bootstrap rows."""
    boots: Rows
    """The bootstrap rows of `seen`."""
    frames: int
    """Number of frames."""
    first: Rows
    """The first frame of each stored segment."""
    before: Rows
    """[X, R]: the X frames before each of R segments that go on with an episode."""


def place(trajectory: Trajectory, room: int, before: int = 0) -> Placing:
    """Assign frames to a trajectory, at most `room`: to all of it, or to as many of its first segments as fit.

    There are `before` frames more before the first segment of each copy whose episode is resumed.
    """
    steps, batch = trajectory.steps, trajectory.batch
    cut = np.asarray(trajectory["cut"], np.bool_).T.ravel()
    # Each segment that has ended before a step adds one frame, its last view, which comes after its steps.
    row = np.arange(cut.size) + np.cumsum(cut) - cut
    resumed_B = np.zeros(batch, np.int64)
    if before:
        resumed_B[:] = trajectory["resumed"]
        row += before * np.cumsum(resumed_B).repeat(steps)
    begun = np.ones(cut.size, np.bool_)
    begun[1:] = cut[:-1]
    first = row[begun]
    where = np.flatnonzero(cut)
    last = row[where] + 1
    index = trajectory["boot_index"].astype(np.int64)
    seen, boots = row[index % batch * steps + index // batch] + 1, np.arange(len(index))
    fits = last < room
    frames, kept = int(last[-1]) + 1, None
    if not fits.all():
        frames = int(last[fits].max(initial=-1)) + 1
        kept = (row < frames).reshape(batch, steps)
        last, where = last[fits], where[fits]
        seen, boots = seen[seen < frames], boots[seen < frames]
        first = first[first < frames]
    goes_on = row.reshape(batch, steps)[resumed_B > 0, 0]
    ahead = goes_on[goes_on < frames] - np.arange(before, 0, -1)[:, None]
    ends = where // steps, where % steps
    return Placing(row.reshape(batch, steps), kept, last, ends, seen, boots, frames, first, ahead)


def write(arrays: FrameArrays, start: int, trajectory: Trajectory, placing: Placing) -> None:
    """Write a trajectory's frames into `arrays` from frame `start` on."""
    for name, array in arrays.items():
        out = array[start : start + placing.frames]
        if name in ("first", "last", "before"):
            out[...] = False
            out[getattr(placing, name)] = True
        elif name == "resumed" or name.startswith("memory/"):
            # What is known of the first time step only, [B] or [N, B, H], and zeros elsewhere.
            x_B = trajectory[name] if trajectory[name].ndim == 1 else trajectory[name].swapaxes(0, 1)
            kept_B = np.ones(len(x_B), np.bool_) if placing.kept is None else placing.kept[:, 0]
            out[...] = 0
            out[placing.row[kept_B, 0]] = x_B[kept_B]
        else:
            x_BT = _by_copy(name, trajectory[name])
            if placing.kept is None:
                out[placing.row] = x_BT
            else:
                out[placing.row[placing.kept]] = x_BT[placing.kept]
            _write_last(out, name, trajectory, placing)
            if placing.before.size:
                _write_before(out, name, trajectory, placing)


def _write_before(out: NDArray[np.generic], name: str, trajectory: Trajectory, placing: Placing) -> None:
    kind, _, k = name.partition("/")
    out[placing.before] = kind in ("alive", "mask")
    images = trajectory.arrays.get(f"before/{k}")
    if kind == "obs" and images is not None:
        resumed = np.flatnonzero(trajectory["resumed"])[: placing.before.shape[1]]
        # A class whose nets read fewer images than another's has none before those.
        out[placing.before[-len(images) :]] = images[:, :, resumed].swapaxes(1, 2)


def _write_last(out: NDArray[np.generic], name: str, trajectory: Trajectory, placing: Placing) -> None:
    kind, _, k = name.partition("/")
    if kind == "alive":
        there_BTN, over_BTN = (
            _by_copy(name, each) for each in (trajectory.there(int(k)), trajectory[f"terminated/{k}"])
        )
        out[placing.last] = np.greater(there_BTN[placing.ends], over_BTN[placing.ends])  # there, and not terminated
        if f"boot_waits/{k}" in trajectory.arrays:
            out[placing.seen] = np.greater(out[placing.seen], trajectory[f"boot_waits/{k}"][:, placing.boots].T)
        return
    out[placing.last] = kind == "mask"  # placeholder: zeros, and masks with every action legal
    if kind in ("obs", "mask", "waits"):
        out[placing.seen] = trajectory[f"boot_{name}"][:, placing.boots].swapaxes(0, 1)
    elif kind == "state":
        out[placing.seen] = trajectory["boot_state"][placing.boots]


def _by_copy(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A view [B, T, …] of an array [T, N, B, …], or [T, B, S] for the state."""
    return array.swapaxes(0, 1) if name == "state" else np.moveaxis(array, 2, 0)
