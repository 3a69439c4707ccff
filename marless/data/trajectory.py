"""Trajectories: the output of one actor invocation, as time-major arrays per agent class.

Names on the wire and in code, for agent class k (its index) and shape suffixes T time, N agents, B copies, O, A, S as
in `marless.envs.base`, K bootstrap rows:

| name            | dtype, shape            | meaning |
|-----------------|-------------------------|---------|
| `obs/k`         | float32 [T, N, B, O]    | observations before acting |
| `action/k`      | int32 [T, N, B] or float32 [T, N, B, A] | actions (continuous: before clipping to the box) |
| `log_prob/k`    | float32 [T, N, B]       | log-probability of the action under the acting policy |
| `reward/k`      | float32 [T, N, B]       | |
| `terminated/k`  | bool [T, N, B]          | the agent has terminated in this step |
| `alive/k`       | bool [T, N, B]          | only if the environment has deaths |
| `mask/k`        | bool [T, N, B, A]       | only if the environment has masks |
| `boot_obs/k`    | float32 [N, K, O]       | final observations of the segments that were cut |
| `boot_mask/k`   | bool [N, K, A]          | their legal actions; only if the environment has masks |
| `cut`           | bool [T, B]             | the segment ends after this step (episode ended, or rollout did) |
| `boot_index`    | int32 [K]               | flat index t·B + b of each cut that must bootstrap, ascending |
| `state`         | float32 [T, B, S]       | global state; only if the algorithm requires it |
| `boot_state`    | float32 [K, S]          | likewise |

The value after step t is 0 where the agent terminated; the critic's value of the bootstrap row where the segment was
cut by a time limit or by the end of the rollout; and the critic's value of `obs[t + 1]` otherwise. So termination and
truncation stay separate, and a reset observation is never used as a successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from marless.envs.base import Discrete, EnvSpaces
from marless.errors import CorruptError, shown, some_of

Arrays = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Trajectory:
    """The arrays of one actor invocation; see the module's table for names, dtypes and shapes."""

    arrays: Arrays

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        return self.arrays[name]

    @property
    def steps(self) -> int:
        """T, time steps per copy."""
        return int(self.arrays["cut"].shape[0])

    @property
    def batch(self) -> int:
        """B, environment copies."""
        return int(self.arrays["cut"].shape[1])

    @property
    def env_steps(self) -> int:
        """T · B: all agents act once in one copy."""
        return self.steps * self.batch


@dataclass(frozen=True)
class TrajectorySchema:
    """The dtypes and shapes of a job's trajectories; K, the number of bootstrap rows, varies between trajectories."""

    spaces: EnvSpaces
    steps: int
    batch: int
    with_state: bool

    def bytes_with(self, boot_rows: int) -> int:
        """Bytes of a trajectory with this many bootstrap rows."""
        return sum(np.dtype(dtype).itemsize * prod(shape) for dtype, shape in self.shapes(boot_rows).values())

    def shapes(self, boot_rows: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name → (NumPy dtype name, shape) for a trajectory with `boot_rows` bootstrap rows."""
        t, b, k = self.steps, self.batch, boot_rows
        expected: dict[str, tuple[str, tuple[int, ...]]] = {
            "cut": ("bool", (t, b)),
            "boot_index": ("int32", (k,)),
        }
        if self.with_state:
            expected["state"] = ("float32", (t, b, self.spaces.state_size))
            expected["boot_state"] = ("float32", (k, self.spaces.state_size))
        for i, agents in enumerate(self.spaces.classes):
            tnb = (t, len(agents.agents), b)
            discrete = isinstance(agents.action, Discrete)
            expected[f"obs/{i}"] = ("float32", (*tnb, agents.obs_size))
            expected[f"action/{i}"] = ("int32", tnb) if discrete else ("float32", (*tnb, agents.action.n))
            expected[f"log_prob/{i}"] = ("float32", tnb)
            expected[f"reward/{i}"] = ("float32", tnb)
            expected[f"terminated/{i}"] = ("bool", tnb)
            expected[f"boot_obs/{i}"] = ("float32", (tnb[1], k, agents.obs_size))
            if self.spaces.deaths:
                expected[f"alive/{i}"] = ("bool", tnb)
            if self.spaces.masks and discrete:
                expected[f"mask/{i}"] = ("bool", (*tnb, agents.action.n))
                expected[f"boot_mask/{i}"] = ("bool", (tnb[1], k, agents.action.n))
        return expected

    def check_shapes(self, given: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise CorruptError, naming the array, unless these are the names, dtypes and shapes of a trajectory.

        The running time depends only on the number of arrays, not on the sizes that they claim.
        """
        rows = dict(given).get("boot_index", ("", ()))[1]
        expected = self.shapes(rows[0] if len(rows) == 1 and 0 <= rows[0] <= self.steps * self.batch else 0)
        if given.keys() != expected.keys():
            odd = sorted(given.keys() ^ expected.keys())
            raise CorruptError(
                f"trajectory: arrays {shown(odd)} are missing or unknown; the job declares {some_of(sorted(expected))}"
            )
        for name, (dtype, shape) in expected.items():
            if given[name] != (dtype, shape):
                found = f"{given[name][0]}{list(given[name][1])}"
                raise CorruptError(f"trajectory: {name} is {shown(found)[1:-1]}, the job declares {dtype}{list(shape)}")

    def check(self, trajectory: Trajectory) -> None:
        """Raise CorruptError, naming the array, unless the trajectory has exactly these arrays with valid values."""
        arrays = trajectory.arrays
        self.check_shapes({name: (array.dtype.name, array.shape) for name, array in arrays.items()})
        if odd := self.not_finite(arrays):
            raise CorruptError(f"trajectory: {odd}")
        for name, array in arrays.items():
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                raise CorruptError(f"trajectory: {name} holds bytes that are neither 0 nor 1")
        self._check_indices(arrays)

    def not_finite(self, arrays: Arrays) -> str:
        """A description of the first NaN or infinite value: its array, agent and step; "" if there is none."""
        for name, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                first = np.argwhere(~np.isfinite(array))[0]
                kind, _, k = name.partition("/")
                boots = kind.startswith("boot_")
                whose = f" of {self.spaces.classes[int(k)].agents[first[0 if boots else 1]]}" if k else ""
                when = " where a segment was cut" if boots else f" at step {first[0]}"
                return f"{name} holds NaN or infinite values, the first{whose}{when}"
        return ""

    def _check_indices(self, arrays: Arrays) -> None:
        index = arrays["boot_index"].astype(np.int64)
        if index.size and (index[0] < 0 or index[-1] >= self.steps * self.batch or (np.diff(index) <= 0).any()):
            raise CorruptError("trajectory: boot_index is not an ascending list of positions within [T, B]")
        if not arrays["cut"].reshape(-1)[index].all():
            raise CorruptError("trajectory: boot_index names a step at which no segment was cut")
        for i, agents in enumerate(self.spaces.classes):
            action = arrays[f"action/{i}"]
            if (
                isinstance(agents.action, Discrete)
                and action.size
                and not (action.min() >= 0 and action.max() < agents.action.n)
            ):
                raise CorruptError(f"trajectory: action/{i} leaves the range 0…{agents.action.n - 1}")
