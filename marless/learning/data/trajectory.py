"""Trajectories: the output of one actor invocation, as time-major arrays per agent class.

Names on the wire and in code, for agent class k (its index) and shape suffixes T time, N agents, B copies, O, A, S as
in `marless.learning.envs.base`, K bootstrap rows:

| name            | dtype, shape            | meaning |
|-----------------|-------------------------|---------|
| `obs/k`         | float32 [T, N, B, O]    | observations before acting; uint8 if the class observes images |
| `action/k`      | int32 [T, N, B] or float32 [T, N, B, A] | actions (continuous: before clipping to the box) |
| `log_prob/k`    | float32 [T, N, B]       | log-probability of the action under the acting policy |
| `reward/k`      | float32 [T, N, B]       | |
| `team_reward`   | float32 [T, B]          | only if the environment gives the team a reward of its own |
| `terminated/k`  | bool [T, N, B]          | the agent has terminated in this step |
| `alive/k`       | bool [T, N, B]          | the agent acts; only if the environment has deaths or turns |
| `waits/k`       | bool [T, N, B]          | it is in the episode, and waits; only if the environment has turns |
| `mask/k`        | bool [T, N, B, A]       | only if the environment has masks |
| `boot_obs/k`    | float32 [N, K, O]       | final observations of the segments that were cut; uint8, likewise |
| `boot_mask/k`   | bool [N, K, A]          | their legal actions; only if the environment has masks |
| `boot_waits/k`  | bool [N, K]             | the agents that wait then; only if the environment has turns |
| `cut`           | bool [T, B]             | the segment ends after this step (episode ended, or rollout did) |
| `boot_index`    | int32 [K]               | flat index t·B + b of each cut that must bootstrap, ascending |
| `state`         | float32 [T, B, S]       | global state; only if the algorithm requires it |
| `boot_state`    | float32 [K, S]          | likewise |
| `resumed`       | bool [B]                | the first step continues an episode; only if episodes are carried |
| `before/k`      | uint8 [F − 1, N, B, O]  | the images before the first step; only if carried, and nets read F > 1 |
| `memory/k`      | float32 [N, B, H]       | memory of policies at first (nets, then last action); only if carried |

The value after step t is 0 where the agent terminated; the critic's value of the bootstrap row where the segment was
cut by a time limit or by the end of the rollout; and the critic's value of `obs[t + 1]` otherwise. So termination and
truncation stay separate, and a reset observation is never used as a successor.

An agent that waits after step t has no value there: what follows its turn is the rewards until its next one, and the
critic's value of the observation that it gets then. If that turn lies beyond the segment's cut, its value is unknown.

An agent that was truncated in step t while others go on is not alive in step t + 1, but `obs[t + 1]` is its final
observation: its return is cut there, and bootstraps from that observation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, shown, some_of
from marless.learning.envs.base import ActionArray, BoolArray, Discrete, EnvSpaces, FloatArray, Frame, Transition

Arrays = Mapping[str, NDArray[np.generic]]
_FROM_ENVIRONMENT = ("obs/", "reward/", "state", "boot_obs/", "boot_state")


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

    def alive(self, k: int) -> BoolArray:
        """bool [T, N, B]: the agents of class k that act; all if the environment has no deaths."""
        return self._flags("alive", k, absent=True)

    def waits(self, k: int) -> BoolArray:
        """bool [T, N, B]: the agents of class k that wait; none if the environment has no turns."""
        return self._flags("waits", k, absent=False)

    def there(self, k: int) -> BoolArray:
        """bool [T, N, B]: the agents of class k in the episode, whether they act or wait."""
        return self.alive(k) | self.waits(k) if f"waits/{k}" in self.arrays else self.alive(k)

    def _flags(self, kind: str, k: int, *, absent: bool) -> BoolArray:
        found = self.arrays.get(f"{kind}/{k}")
        if found is None:
            return np.full(self.arrays[f"reward/{k}"].shape, absent)
        return found.astype(np.bool_, copy=False)


@dataclass(frozen=True)
class TrajectorySchema:
    """The dtypes and shapes of a job's trajectories; K, the number of bootstrap rows, varies between trajectories."""

    spaces: EnvSpaces
    steps: int
    batch: int
    with_state: bool
    carried: bool = False
    """True if episodes continue over rounds: trajectories then tell in which copies one was resumed."""
    memory: tuple[int, ...] = ()
    """H, numbers that each policy remembers at the first step, per class; () if nothing, or if not carried."""

    frames: tuple[int, ...] = ()
    """F, how many images the nets of each class read at once; () if one, or if not carried."""

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
        if self.spaces.team_reward:
            expected["team_reward"] = ("float32", (t, b))
        if self.carried:
            expected["resumed"] = ("bool", (b,))
        for i, frames in enumerate(self.frames):
            if frames > 1:
                agents = self.spaces.classes[i]
                expected[f"before/{i}"] = ("uint8", (frames - 1, len(agents.agents), b, agents.obs_size))
        for i, units in enumerate(self.memory):
            expected[f"memory/{i}"] = ("float32", (len(self.spaces.classes[i].agents), b, units))
        for i, agents in enumerate(self.spaces.classes):
            tnb = (t, len(agents.agents), b)
            discrete = isinstance(agents.action, Discrete)
            expected[f"obs/{i}"] = (agents.obs_dtype, (*tnb, agents.obs_size))
            expected[f"action/{i}"] = ("int32", tnb) if discrete else ("float32", (*tnb, agents.action.n))
            expected[f"log_prob/{i}"] = ("float32", tnb)
            expected[f"reward/{i}"] = ("float32", tnb)
            expected[f"terminated/{i}"] = ("bool", tnb)
            expected[f"boot_obs/{i}"] = (agents.obs_dtype, (tnb[1], k, agents.obs_size))
            if self.spaces.deaths or self.spaces.turns:
                expected[f"alive/{i}"] = ("bool", tnb)
            if self.spaces.turns:
                expected[f"waits/{i}"] = ("bool", tnb)
                expected[f"boot_waits/{i}"] = ("bool", (tnb[1], k))
            if self.spaces.masks and discrete:
                expected[f"mask/{i}"] = ("bool", (*tnb, agents.action.n))
                expected[f"boot_mask/{i}"] = ("bool", (tnb[1], k, agents.action.n))
        return expected

    def check_shapes(self, given: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """Raise CorruptError, naming the array, unless these are the names, dtypes and shapes of a trajectory.

        The running time depends only on the number of arrays, not on the sizes that they claim.
        """
        rows = dict(given).get("boot_index", ("", ()))[1]
        # How many bootstrap rows there are is a claim of the sender. An impossible one is taken for 0, so
        # that the message names boot_index.
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
        self.check_shapes({name: (array.dtype.name, array.shape) for name, array in trajectory.arrays.items()})
        self.check_values(trajectory)

    def check_values(self, trajectory: Trajectory) -> None:
        """Check, as `check` does, a trajectory whose arrays have these names, dtypes and shapes."""
        arrays = trajectory.arrays
        if odd := self.not_finite(arrays):
            raise CorruptError(f"trajectory: {odd}")
        for name, array in arrays.items():
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                raise CorruptError(f"trajectory: {name} holds bytes that are neither 0 nor 1")
        self._check_indices(arrays)

    def are_valid(self, stacked: Arrays) -> bool:
        """True if all of several trajectories pass `check_values`; their arrays are stacked along a new first axis."""
        for array in stacked.values():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return False
            if array.dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
                return False
        index, cut = stacked["boot_index"].astype(np.int64), stacked["cut"]
        if index.size and (index[:, 0].min() < 0 or index[:, -1].max() >= self.steps * self.batch):
            return False
        if (np.diff(index, axis=1) <= 0).any():
            return False
        if not np.take_along_axis(cut.reshape(len(cut), -1), index, axis=1).all():
            return False
        actions = ((stacked[f"action/{i}"], agents.action) for i, agents in enumerate(self.spaces.classes))
        return all(
            not array.size or (array.min() >= 0 and array.max() < action.n)
            for array, action in actions
            if isinstance(action, Discrete)
        )

    def not_finite(self, arrays: Arrays) -> str:
        """A description of the first NaN or infinite value: its array, agent, copy and step; "" if there is none.

        Of several arrays, one that comes from the environment is named first, as the others follow from it.
        """
        for name in sorted(arrays, key=lambda name: not name.startswith(_FROM_ENVIRONMENT)):
            array = arrays[name]
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"{name} holds NaN or infinite values, the first{self._where(name, array)}"
        return ""

    def _where(self, name: str, array: NDArray[np.generic]) -> str:
        """Agent, copy and step of the first element that is not finite."""
        first = np.argwhere(~np.isfinite(array))[0]
        kind, _, k = name.partition("/")
        boots, memory = kind.startswith("boot_"), kind == "memory"
        whose = f" of {self.spaces.classes[int(k)].agents[first[0 if boots or memory else 1]]}" if k else ""
        if boots:
            return f"{whose} where a segment was cut"
        copy = first[1] if memory or not k else first[2]
        return f"{whose} in copy {copy} at step {0 if memory else first[0]}"

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


def returned(there_Tx: BoolArray) -> BoolArray:
    """Where agents come back, in flags with the time first: there (acting or waiting) in a step, not in the one before.

    Policies know nothing then of what the agent did before it left: its memory and its last action are as at the start
    of an episode. The first step of the flags is never a return.
    """
    found = np.zeros_like(there_Tx)
    np.greater(there_Tx[1:], there_Tx[:-1], out=found[1:])
    return found


class Recorder:
    """Records a trajectory step by step into preallocated arrays."""

    def __init__(self, schema: TrajectorySchema) -> None:
        self._schema = schema
        self._begins: dict[int, BoolArray] = {}
        self._arrays: dict[str, NDArray[np.generic]] = {
            name: np.empty(shape, dtype)
            for name, (dtype, shape) in schema.shapes(boot_rows=0).items()
            if not name.startswith("boot_")
        }
        self._boots: dict[str, list[NDArray[np.generic]]] = {
            # No rows at first, so that there is something to concatenate where nothing was cut.
            name: [np.empty(shape, dtype)]
            for name, (dtype, shape) in schema.shapes(boot_rows=0).items()
            if name.startswith("boot_")
        }

    def begun(
        self,
        resumed_B: BoolArray,
        memory: Sequence[FloatArray],
        before: Mapping[int, tuple[NDArray[np.generic], BoolArray]] = MappingProxyType({}),
    ) -> None:
        """Record, if the schema has it, in which copies an episode goes on, and the memory at the first step.

        `before` has by class the images before the first step, [F − 1, N, B, O], and who begins with it, bool [N, B]:
        of those, `saw` repeats the first image.
        """
        for k, (frames, begins_NB) in before.items():
            self._arrays[f"before/{k}"][...] = frames
            self._begins[k] = begins_NB
        if self._schema.carried:
            self._arrays["resumed"][...] = resumed_B
        for k in range(len(self._schema.memory)):
            self._arrays[f"memory/{k}"][...] = memory[k]

    def saw(self, t: int, frame: Frame) -> None:
        """Record the observations before step t; raises SpecError for images of another size or dtype."""
        self._check_images(t, frame)
        for k, begins_NB in self._begins.items() if t == 0 else ():
            self._arrays[f"before/{k}"][:, begins_NB] = frame.obs[k][begins_NB]
        for k in range(len(frame.obs)):
            self._arrays[f"obs/{k}"][t] = frame.obs[k]
            if frame.alive is not None:
                self._arrays[f"alive/{k}"][t] = frame.alive[k]
            if frame.waits is not None:
                self._arrays[f"waits/{k}"][t] = frame.waits[k]
            if frame.masks is not None and f"mask/{k}" in self._arrays:
                self._arrays[f"mask/{k}"][t] = frame.masks[k]
        if self._schema.with_state and frame.state is not None:
            self._arrays["state"][t] = frame.state

    def did(self, t: int, k: int, action: ActionArray, log_prob_NB: FloatArray) -> None:
        """Record the actions of class k in step t."""
        self._arrays[f"action/{k}"][t] = action
        self._arrays[f"log_prob/{k}"][t] = log_prob_NB

    def got(self, t: int, transition: Transition) -> None:
        """Record the result of step t; where a segment is cut, its final observation becomes a bootstrap row.

        Raises SpecError for images of another size or dtype.
        """
        for k in range(len(transition.rewards)):
            self._arrays[f"reward/{k}"][t] = transition.rewards[k]
            self._arrays[f"terminated/{k}"][t] = transition.terminated[k]
        if transition.team_reward is not None:
            self._arrays["team_reward"][t] = transition.team_reward
        last = t == self._schema.steps - 1
        self._arrays["cut"][t] = transition.ended | last
        # At the end of the rollout, episodes that go on are cut, too, and bootstrap as truncated ones do.
        copies = np.flatnonzero(transition.truncated | ~transition.ended if last else transition.truncated)
        if copies.size:
            self._check_images(t + 1, transition.final)
            self._bootstrap(t, copies, transition.final)

    def _check_images(self, t: int, frame: Frame) -> None:
        """NumPy would take numbers of another dtype modulo 256, and say of another size neither whose nor when."""
        for agents, obs_NBO in zip(self._schema.spaces.classes, frame.obs, strict=True):
            shape = (len(agents.agents), self._schema.batch, agents.obs_size)
            if agents.image is not None and (obs_NBO.dtype.name, obs_NBO.shape) != (agents.obs_dtype, shape):
                raise SpecError(
                    f"the environment is broken: before step {t} {agents.name} observes "
                    f"{obs_NBO.dtype.name}{list(obs_NBO.shape)}, and its images are {agents.obs_dtype}{list(shape)}"
                )

    def _bootstrap(self, t: int, copies: NDArray[np.intp], final: Frame) -> None:
        self._boots["boot_index"].append((t * self._schema.batch + copies).astype(np.int32))
        for k, obs_NBO in enumerate(final.obs):
            # Indexing by numbers copies, as it must: the final frame is valid until the next step only.
            self._boots[f"boot_obs/{k}"].append(obs_NBO[:, copies])
            if final.waits is not None:
                self._boots[f"boot_waits/{k}"].append(final.waits[k][:, copies])
            if final.masks is not None and f"boot_mask/{k}" in self._boots:
                self._boots[f"boot_mask/{k}"].append(final.masks[k][:, copies])
        if self._schema.with_state and final.state is not None:
            self._boots["boot_state"].append(final.state[copies])

    def trajectory(self) -> Trajectory:
        """The recorded trajectory; do not use the recorder afterwards. Raises SpecError for NaN and infinite values."""
        boots = {name: np.concatenate(rows, axis=1 if "/" in name else 0) for name, rows in self._boots.items()}
        if odd := self._schema.not_finite(self._arrays | boots):
            raise SpecError(f"the environment or its policies are broken: {odd}")
        return Trajectory(self._arrays | boots)
