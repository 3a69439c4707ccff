"""`mpe/simple_speaker_listener`: a speaker tells a listener which landmark to go to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, planes
from marless.learning.envs.mpe.options import ParticleOptions

MARKS = 3
COLOURS_3M = 0.15 + 0.5 * np.eye(MARKS)
"""Red, green and blue of each landmark."""


@dataclass(frozen=True, kw_only=True)
class SpeakerListenerOptions(ParticleOptions):
    """Options of `simple_speaker_listener`."""


class SimpleSpeakerListener(ParticleEnv):
    """Cooperative: the speaker sees the goal's colour and says a word; the listener hears it and walks.

    Both agents' reward is −(distance of listener and goal)². The speaker cannot move, and observes the goal's colour.
    The listener cannot speak, and observes its velocity, the landmarks relative to it, and the speaker's last message.
    """

    rewards = "cooperative"
    goals = 1
    words = 3

    def __init__(self, options: SpeakerListenerOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        roles = (
            AgentRole(name="speaker", agents=("speaker_0",), obs_size=3, moves=False, speaks=True, size=0.075),
            AgentRole(name="listener", agents=("listener_0",), obs_size=2 + 2 * MARKS + self.words, size=0.075),
        )
        super().__init__(roles, (Landmarks(count=MARKS, size=0.04),), options, batch, dtype)
        speaker_1OB, listener_1OB = self._role_rows()
        self._colour_rows = speaker_1OB[0]
        self._vel_rows, self._rel_rows = listener_1OB[0, :2], planes(listener_1OB, 2, MARKS)[0]
        self._said_rows = listener_1OB[0, 2 + 2 * MARKS :]

    def _prepare_episode(self) -> None:
        super()._prepare_episode()
        self._colour_rows[...] = COLOURS_3M[:, self._goal_GB[0]]

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B[1]
        self._rel_rows[...] = self._rel_NM2B[1, :MARKS]
        self._said_rows[...] = self._said_NWB[0]

    def _score(self) -> None:
        self._rewards_NB[...] = -np.square(self._agents_N2B[1] - self._goal_G2B[0]).sum(axis=0)
