"""`mpe/simple_crypto`: two agents share a key and keep a secret from a third, which hears them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from marless.learning.envs.mpe.engine import AgentRole, Landmarks, ParticleEnv
from marless.learning.envs.mpe.options import ParticleOptions

MARKS = 2


@dataclass(frozen=True, kw_only=True)
class CryptoOptions(ParticleOptions):
    """Options of `simple_crypto`."""


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

    def __init__(self, options: CryptoOptions, batch: int, dtype: DTypeLike = np.float32) -> None:
        roles = tuple(
            AgentRole(name=name, agents=(f"{name}_0",), obs_size=size, moves=False, speaks=True)
            for name, size in (("eve", self.words), ("bob", 2 * self.words), ("alice", 2 * self.words))
        )
        super().__init__(roles, (Landmarks(count=MARKS),), options, batch, dtype)
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
