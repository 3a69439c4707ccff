"""Copies of an environment that cannot save itself, each in an environment of its own, so that episodes can go on.

An environment of many copies shares a random generator among them, so an episode cannot be played again by itself. In
an environment of one copy it can: it follows from the seed of its reset and the actions since. Copies are stepped one
after another, which takes longer than all at once. Suffixes as in `marless.learning.envs.base`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.learning.envs.base import ActionArray, Arrays, BatchedEnv, BoolArray, Frame, Transition
from marless.learning.envs.replayed import EpisodeLog, replaying


class Apart:
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
        ended_B = step.ended | cut_B
        self._cut_B[:] = False
        self._log.add(actions, ended_B)
        if ended_B.any():
            going_on = zip(taken, ended_B, strict=True)
            frames = [self._begun(b) if over else each.frame for b, (each, over) in enumerate(going_on)]
            step = replace(step, frame=_frame(frames), truncated=step.truncated | cut_B, ended=ended_B)
        return step

    def truncate(self, chosen_B: BoolArray) -> None:
        self._cut_B[:] = chosen_B

    def save(self) -> Arrays:
        return self._log.save()

    def load(self, arrays: Arrays) -> Frame:
        """See `marless.learning.envs.base.Saved`; raises SpecError if a copy does not play its episode as it did
        before.
        """
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
                if step.ended[0]:
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
