"""Saves of environments that cannot save themselves: the seeds and actions of their episodes, which are played again.

Where the copies of an environment share a random generator, no episode can be played again by itself. `Apart` gives
each copy an environment of its own, in which an episode follows from the seed of its reset and the actions since;
copies are stepped one after another, which takes longer than all at once. Suffixes as in `marless.learning.envs.base`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, told
from marless.core.limits import MAX_CARRY_BYTES
from marless.learning.envs.base import (
    ActionArray,
    AgentClass,
    Arrays,
    BatchedEnv,
    BoolArray,
    Discrete,
    Frame,
    Transition,
    Truncatable,
    saved,
)

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


class SavedByLog(ABC, Truncatable):
    """Base of environments whose episodes are saved as their seeds and actions, and played again copy by copy."""

    batch: int
    _log: EpisodeLog

    @abstractmethod
    def _replay(self, b: int) -> None:
        """Play the present episode of copy b again; an exception tells how it went otherwise."""

    @abstractmethod
    def _current_frame(self) -> Frame:
        """What is observed now."""

    def save(self) -> Arrays:
        return self._log.save()

    def load(self, arrays: Arrays) -> Frame:
        """Play the saved episodes again; raises SpecError if a copy does not play its episode as it did before."""
        self._log.load(arrays)
        self._cut_B[:] = False
        for b in range(self.batch):
            with replaying(b):
                self._replay(b)
        return self._current_frame()


class Apart(Truncatable):
    """B environments of one copy as one of B copies, whose save is the seeds and actions of the present episodes.

    `make` makes one of them. Every episode begins with a reset, whose seed depends on the seed of this environment's
    reset, the copy, and the number of the episode. Errors of the environment that is wrapped pass through.
    """

    def __init__(self, make: Callable[[], BatchedEnv], batch: int) -> None:
        self._envs = [make() for _ in range(batch)]
        self.spaces = self._envs[0].spaces
        self.batch = batch
        self._log = EpisodeLog(self.spaces.classes, batch)
        self._cut_B = np.zeros(batch, np.bool_)

    def reset(self, seed: int) -> Frame:
        """Start a new episode in every copy."""
        self._log.begin(seed)
        self._cut_B[:] = False
        return _frame([self._begun(b) for b in range(self.batch)])

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        """Let all agents act in every copy, one copy after another."""
        taken = [env.step(tuple(each[:, b : b + 1] for each in actions)) for b, env in enumerate(self._envs)]
        # Joined, as copies, before any environment is reset: its final frame is not valid longer.
        step = _transition(taken)
        cut_B = self._cut_B & ~step.ended
        # An episode that is a part of a whole ends without a reset: the environment goes on to the next part by itself.
        over_B = step.whole | cut_B
        self._cut_B[:] = False
        self._log.add(actions, over_B)
        if over_B.any():
            going_on = zip(taken, over_B, strict=True)
            frames = [self._begun(b) if over else each.frame for b, (each, over) in enumerate(going_on)]
            step = replace(step, frame=_frame(frames), truncated=step.truncated | cut_B, ended=step.ended | cut_B)
        return step

    def save(self) -> Arrays:
        return self._log.save()

    def load(self, arrays: Arrays) -> Frame:
        """Play the saved episodes again; raises SpecError if a copy does not play its episode as it did before."""
        self._log.load(arrays)
        self._cut_B[:] = False
        return _frame([self._replayed(b) for b in range(self.batch)])

    def close(self) -> None:
        """Close every copy."""
        for env in self._envs:
            env.close()

    def _begun(self, b: int) -> Frame:
        return self._envs[b].reset(self._log.seed(b))

    def _replayed(self, b: int) -> Frame:
        """Play the present episode of copy b again; returns its last frame."""
        with replaying(b):
            frame = self._begun(b)
            for t in range(int(self._log.steps[b])):
                step = self._envs[b].step(tuple(each[:, b : b + 1] for each in self._log.actions(t)))
                if step.whole[0]:
                    raise SpecError(f"it ended after {t + 1} steps")
                frame = step.frame
            return frame


def _transition(taken: Sequence[Transition]) -> Transition:
    """The transitions of single copies as one of all of them; it holds no array of theirs."""
    return Transition(
        frame=_frame([each.frame for each in taken]),
        final=_frame([each.final for each in taken]),
        rewards=_classes([each.rewards for each in taken]),
        terminated=_classes([each.terminated for each in taken]),
        truncated=np.concatenate([each.truncated for each in taken]),
        ended=np.concatenate([each.ended for each in taken]),
        won=_joined([each.won for each in taken]),
        team_reward=_joined([each.team_reward for each in taken]),
        broken=_joined([each.broken for each in taken]),
        unfinished=_joined([each.unfinished for each in taken]),
    )


def _frame(frames: Sequence[Frame]) -> Frame:
    """The frames of single copies as one of all of them; it holds no array of theirs."""
    masks = [each.masks for each in frames if each.masks is not None]
    alive = [each.alive for each in frames if each.alive is not None]
    waits = [each.waits for each in frames if each.waits is not None]
    return Frame(
        obs=_classes([each.obs for each in frames]),
        state=_joined([each.state for each in frames]),
        masks=_classes(masks) if masks else None,
        alive=_classes(alive) if alive else None,
        waits=_classes(waits) if waits else None,
    )


def _classes(copies: Sequence[tuple[NDArray[Any], ...]]) -> tuple[NDArray[Any], ...]:  # Any: of each dtype
    """Per agent class, the arrays [N, 1, …] of all copies as [N, B, …]."""
    return tuple(np.concatenate(each, axis=1) for each in zip(*copies, strict=True))


def _joined(copies: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:  # Any: of each dtype
    """The arrays [1, …] of all copies as [B, …]; None if there are none."""
    found = [each for each in copies if each is not None]
    return np.concatenate(found) if found else None
