"""Saves of episodes as their seeds and actions, for environments that cannot save their own state.

An episode of a deterministic environment follows from its seed and the actions since. So a save holds these, and a load
plays the episodes again, which takes as long as they took (without the policies). Suffixes as in
`marless.learning.envs.base`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, told
from marless.core.limits import MAX_CARRY_BYTES
from marless.learning.envs.base import ActionArray, AgentClass, Arrays, BoolArray, Discrete, saved

_FIRST_STEPS = 64
"""Steps for which there is room at first."""


class EpisodeLog:
    """The seed of the present episode of each copy, and the actions in it so far.

    | name       | dtype, shape of a save | meaning |
    |------------|------------------------|---------|
    | `seed`     | uint64 [1]             | the seed of `begin` |
    | `episode`  | int64 [B]              | how many episodes of the copy have ended since |
    | `steps`    | int64 [B]              | env steps of the present episode so far |
    | `action/k` | uint8, uint16, int32 or float32 [steps of all copies, N(, A)] | its actions, copy by copy |

    Discrete actions have the smallest of these types that holds them.
    """

    def __init__(self, classes: Sequence[AgentClass], batch: int) -> None:
        self._batch = batch
        self._seed = 0
        self._episode_B = np.zeros(batch, np.int64)
        self._steps_B = np.zeros(batch, np.int64)
        self._choices = [c.action.n if isinstance(c.action, Discrete) else 0 for c in classes]
        self._actions: list[NDArray[np.generic]] = [_room(c, batch) for c in classes]
        """Per class, [time, N, B(, A)]."""

    def begin(self, seed: int) -> None:
        """Begin the first episode of every copy."""
        self._seed = seed % 2**64
        self._episode_B[:] = 0
        self._steps_B[:] = 0

    @property
    def steps(self) -> NDArray[np.int64]:
        """int64 [B], env steps of the present episode so far."""
        return self._steps_B

    def seed(self, b: int) -> int:
        """The seed of the present episode of copy b, from 0 to 2³¹ − 1; it depends on the first seed, b and the number
        of the episode only.
        """
        sequence = np.random.SeedSequence((self._seed, b, int(self._episode_B[b])))
        return int(sequence.generate_state(1)[0] >> 1)

    def add(self, actions: Sequence[ActionArray], ended_B: BoolArray) -> None:
        """Add a step of all copies; where it has ended an episode, the next one begins."""
        self._grow(int(self._steps_B.max()) + 1)
        # Longer episodes are played on without being kept: only a save of them is refused.
        kept = np.flatnonzero(self._steps_B < self._longest)
        for known, action in zip(self._actions, actions, strict=True):
            # NumPy puts the axis of index arrays that are apart from each other first: [kept, N(, A)].
            known[self._steps_B[kept], :, kept] = action[:, kept].swapaxes(0, 1)
        self._steps_B += 1
        self._steps_B[ended_B] = 0
        self._episode_B += ended_B

    def actions(self, t: int) -> tuple[ActionArray, ...]:
        """The actions in step t of each present episode, one array per class, as an environment takes them."""
        return tuple(
            known[t].astype(np.int32 if choices else np.float32, copy=False)
            for known, choices in zip(self._actions, self._choices, strict=True)
        )

    def save(self) -> Arrays:
        """Copies of seeds and actions; raises SpecError if an episode is so long that not all of it was kept."""
        if self._steps_B.max() > self._longest:
            raise SpecError(
                f"an episode of {int(self._steps_B.max()):,} steps is too long to be saved as its actions: they take "
                f"more than {MAX_CARRY_BYTES // 2**20} MiB; set actors.episodes: fresh"
            )
        arrays: dict[str, NDArray[np.generic]] = {
            "seed": np.array([self._seed], np.uint64),
            "episode": self._episode_B.copy(),
            "steps": self._steps_B.copy(),
        }
        taken_BT = self._taken()
        for k, known in enumerate(self._actions):
            arrays[f"action/{k}"] = np.moveaxis(known, 2, 0)[taken_BT]
        return arrays

    def load(self, arrays: Arrays) -> None:
        """Continue as the log that was saved; raises CorruptError for arrays that no save of such copies holds."""
        seed = saved(arrays, "seed", "uint64", (1,))
        episode_B = saved(arrays, "episode", "int64", (self._batch,))
        steps_B = saved(arrays, "steps", "int64", (self._batch,))
        # As numbers of Python, because a sum of numbers that nobody has checked may overflow int64.
        rows = sum(steps_B.tolist())
        if min(episode_B.min(), steps_B.min()) < 0:
            raise CorruptError("saved environment: its numbers of episodes or steps are negative")
        # Compared with the actions that are there before room is made for as many as are claimed.
        given = [self._given(arrays, k, rows) for k in range(len(self._actions))]
        self._grow(int(steps_B.max()))
        if steps_B.max() > self._longest:
            raise CorruptError("saved environment: its episodes are longer than those that can be saved")
        self._seed = int(seed[0])
        self._episode_B[:], self._steps_B[:] = episode_B, steps_B
        taken_BT = self._taken()
        for known, action in zip(self._actions, given, strict=True):
            np.moveaxis(known, 2, 0)[taken_BT] = action

    def _given(self, arrays: Arrays, k: int, rows: int) -> NDArray[np.generic]:
        """The actions of class k in a save."""
        known, choices = self._actions[k], self._choices[k]
        action = saved(arrays, f"action/{k}", known.dtype.name, (rows, known.shape[1], *known.shape[3:]))
        if (choices and action.max(initial=0) >= choices) or (action.dtype.kind == "i" and action.min(initial=0) < 0):
            raise CorruptError(f"saved environment: action/{k} leaves the range 0…{choices - 1}")
        return action

    @property
    def _longest(self) -> int:
        """Steps for which there is room."""
        return len(self._actions[0])

    def _taken(self) -> BoolArray:
        """bool [B, time]: the step is part of the present episode."""
        return np.arange(self._longest) < self._steps_B[:, None]

    def _grow(self, steps: int) -> None:
        """Make room for as many steps, or for as many as the limit on the size of a carry allows."""
        if steps <= self._longest:
            return
        most = MAX_CARRY_BYTES // sum(known[0].nbytes for known in self._actions)
        wanted = min(max(steps, 2 * self._longest), most)
        if wanted > self._longest:
            wider = [np.zeros((wanted, *known.shape[1:]), known.dtype) for known in self._actions]
            for new, known in zip(wider, self._actions, strict=True):
                new[: len(known)] = known
            self._actions = wider


def _room(agents: AgentClass, batch: int) -> NDArray[np.generic]:
    """An array [time, N, B(, A)] for the actions of a class."""
    shape, space = (_FIRST_STEPS, len(agents.agents), batch), agents.action
    if not isinstance(space, Discrete):
        return np.zeros((*shape, space.n), np.float32)
    dtype = np.uint8 if space.n <= 2**8 else np.uint16 if space.n <= 2**16 else np.int32
    return np.zeros(shape, dtype)


@contextmanager
def replaying(b: int) -> Iterator[None]:
    """Turn the errors of an environment that plays the episode of copy b again into a SpecError with an advice."""
    try:
        yield
    except CorruptError:
        raise
    except Exception as error:
        raise SpecError(
            f"copy {b} does not play its episode again as it did before: {told(error)}. It is not deterministic under "
            "its seed; set actors.episodes: fresh"
        ) from error
