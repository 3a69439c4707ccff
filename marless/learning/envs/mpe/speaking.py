"""The games of mpe2 in which agents speak: to guide a listener, to exchange goals, and to keep a secret."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv, length, planes
from marless.learning.envs.mpe.options import ParticleOptions

MARKS = 3


class SimpleSpeakerListener(ParticleEnv):
    """Cooperative: the speaker sees the goal's colour and says a word; the listener hears it and walks.

    Both agents' reward is −(distance of listener and goal)². The speaker cannot move, and observes the goal's colour.
    The listener cannot speak, and observes its velocity, the landmarks relative to it, and the speaker's last message.
    """

    rewards = "cooperative"
    goals = 1
    words = 3
    colours_3M = 0.15 + 0.5 * np.eye(MARKS)  # noqa: N815  # a shape suffix
    """Red, green and blue of each landmark."""

    def __init__(self, options: ParticleOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
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
        self._colour_rows[...] = self.colours_3M[:, self._goal_GB[0]]

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B[1]
        self._rel_rows[...] = self._rel_NM2B[1, :MARKS]
        self._said_rows[...] = self._said_NWB[0]

    def _score(self) -> None:
        self._rewards_NB[...] = -np.square(self._agents_N2B[1] - self._goal_G2B[0]).sum(axis=0)


@dataclass(frozen=True, kw_only=True)
class ReferenceOptions(ParticleOptions):
    """Options of `simple_reference`."""

    local_ratio: float = 0.5
    """Weight λ of one distance in an agent's reward; the weight of the mean of both distances is 1 − λ."""


class SimpleReference(ParticleEnv):
    """Cooperative: each agent knows the goal of the other agent only; both speak and walk at the same time.

    Reward of agent i: −λ·d_i − (1 − λ)·(d_0 + d_1)/2, where d_i is the distance of the *other* agent to the goal that i
    knows. Observation: own velocity, the landmarks relative to it, the colour of the goal that it knows, and the other
    agent's last message. A discrete action is move + 5·word.
    """

    rewards = "cooperative"
    goals = 2
    words = 10
    colours_3M = 0.25 + 0.5 * np.eye(MARKS)  # noqa: N815  # a shape suffix
    """Red, green and blue of each landmark."""

    def __init__(self, options: ReferenceOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        size = 2 + 2 * MARKS + 3 + self.words
        role = AgentRole(name="agent", agents=("agent_0", "agent_1"), obs_size=size, speaks=True)
        super().__init__((role,), (Landmarks(count=MARKS),), options, batch, dtype)
        self._local_ratio = options.local_ratio
        (rows_NOB,) = self._role_rows()
        self._vel_rows, self._rel_rows = rows_NOB[:, :2], planes(rows_NOB, 2, MARKS)
        self._colour_rows, self._said_rows = rows_NOB[:, 8:11], rows_NOB[:, 11:]

    def _prepare_episode(self) -> None:
        super()._prepare_episode()
        self._colour_rows[...] = self.colours_3M[:, self._goal_GB].transpose(1, 0, 2)

    def _write_rows(self) -> None:
        self._vel_rows[...] = self._vel_N2B
        self._rel_rows[...] = self._rel_NM2B[:, :MARKS]
        self._said_rows[...] = self._said_NWB[::-1]

    def _score(self) -> None:
        near_NB = -length(self._agents_N2B[::-1] - self._goal_G2B)
        np.multiply(near_NB, self._local_ratio, out=self._rewards_NB)
        self._rewards_NB += (1.0 - self._local_ratio) * near_NB.mean(axis=0)


class SimpleCrypto(ParticleEnv):
    """Competitive: Alice sends Bob a secret over a channel that Eve hears; nobody moves.

    Secret and key are each one of two symbols, one-hot among four words. Alice observes the secret and the key, Bob the
    key and what Alice said last, Eve only what Alice said. A listener's error is the squared distance between what it
    says and the secret, and 0 if it says nothing. Eve's reward is −(her error), Alice's and Bob's is Eve's error
    − Bob's error.
    """

    rewards = "competitive"
    goals = 2
    words = 4

    def __init__(self, options: ParticleOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        roles = tuple(
            AgentRole(name=name, agents=(f"{name}_0",), obs_size=size, moves=False, speaks=True)
            for name, size in (("eve", self.words), ("bob", 2 * self.words), ("alice", 2 * self.words))
        )
        super().__init__(roles, (Landmarks(count=2),), options, batch, dtype)
        self._secret_WB = np.zeros((self.words, batch))
        (eve_OB,), (bob_OB,), (self._alice_OB,) = self._role_rows()
        self._eve_heard, self._bob_heard, self._bob_key = eve_OB, bob_OB[self.words :], bob_OB[: self.words]

    def _prepare_episode(self) -> None:
        super()._prepare_episode()
        secret_WB, key_WB = np.eye(self.words)[:, self._goal_GB].transpose(1, 0, 2)
        self._secret_WB[...] = secret_WB
        self._alice_OB[: self.words], self._alice_OB[self.words :] = secret_WB, key_WB
        self._bob_key[...] = key_WB

    def _look(self) -> None:
        self._write_rows()  # nobody sees where anything is

    def _write_rows(self) -> None:
        self._eve_heard[...] = self._said_NWB[2]
        self._bob_heard[...] = self._said_NWB[2]

    def _score(self) -> None:
        said_2WB = self._said_NWB[:2]
        error_2B = np.square(said_2WB - self._secret_WB).sum(axis=1)
        error_2B *= said_2WB.any(axis=1)
        self._rewards_NB[0] = -error_2B[0]
        self._rewards_NB[1:] = error_2B[0] - error_2B[1]
