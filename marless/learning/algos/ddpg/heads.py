"""Differentiable actions from a policy net's outputs, as inputs of critics, for each kind of action space.

Shapes: R rows (agents), A actions or action components, M samples. Critics get continuous actions in units in which the
box is [−1, 1], and discrete ones as one-hot vectors.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.algos.ddpg import losses
from marless.learning.algos.ddpg.config import DDPGConfig
from marless.learning.envs.base import Box, Discrete


class DeterministicHead(Protocol):
    """Computes actions of policies and target policies from their nets' outputs."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw the noise for `act` and `target`, float32."""
        ...

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions as differentiable functions of the outputs."""
        ...

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions as inputs of critics, for the policies' gradient."""
        ...

    def gradient(self, d_action_RAM: Tensor) -> Tensor:
        """The gradient with respect to the outputs, given that with respect to the last result of `act`."""
        ...

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions of target policies, given their outputs."""
        ...

    def encode(self, taken_RxM: Tensor) -> Tensor:
        """Convert actions that were taken, [R, 1, M] (indices) or [R, A, M], to critics' inputs, float32 [R, A, M]."""
        ...


class Bounded:
    """Continuous actions: a = tanh z. Target actions have clipped noise in TD3, else none."""

    def __init__(self, deviation: float, limit: float) -> None:
        self._deviation = deviation
        self._limit = limit

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Standard normal noise; zeros, without a draw, if target actions are not smoothed."""
        return rng.standard_normal(shape, np.float32) if self._deviation else np.zeros(shape, np.float32)

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        return torch.tanh(output_RAM)

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """See `DeterministicHead`; without noise."""
        self._action_RAM = torch.tanh(output_RAM)
        return self._action_RAM

    def gradient(self, d_action_RAM: Tensor) -> Tensor:
        return losses.bounded_gradient(self._action_RAM, d_action_RAM)

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        action_RAM = torch.tanh(output_RAM)
        return losses.smoothed(action_RAM, noise_RAM, self._deviation, self._limit) if self._deviation else action_RAM

    def encode(self, taken_RxM: Tensor) -> Tensor:
        return taken_RxM


class Relaxed:
    """Discrete actions: Gumbel-softmax samples; one-hot in targets and, if `straight_through`, in forward passes."""

    def __init__(self, actions: int, temperature: float, straight_through: bool) -> None:
        self._actions = actions
        self._temperature = temperature
        self._straight_through = straight_through

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Gumbel noise, −log of a standard exponential variable."""
        # float32 exponentials may be 0, and are limited to the smallest normal number
        return -np.log(np.maximum(rng.standard_exponential(shape, np.float32), np.finfo(np.float32).tiny))

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        return losses.relaxed(output_RAM, noise_RAM, legal_RAM, self._temperature)

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        self._relaxed_RAM = self.smooth(output_RAM, noise_RAM, legal_RAM)
        return losses.hardest(self._relaxed_RAM) if self._straight_through else self._relaxed_RAM

    def gradient(self, d_action_RAM: Tensor) -> Tensor:
        """The gradient of the action; with straight-through, of the relaxed action (Jang et al. 2017, §2.2)."""
        return losses.relaxed_gradient(self._relaxed_RAM, d_action_RAM, self._temperature)

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """See `DeterministicHead`: exact samples of the target policy."""
        return losses.hardest(self.smooth(output_RAM, noise_RAM, legal_RAM))

    def encode(self, taken_RxM: Tensor) -> Tensor:
        rows, _, samples = taken_RxM.shape
        zeros_RAM = torch.zeros(rows, self._actions, samples, device=taken_RxM.device)
        return zeros_RAM.scatter_(1, taken_RxM.long(), 1.0)


def head(action: Discrete | Box, config: DDPGConfig) -> DeterministicHead:
    """The head for an action space."""
    if isinstance(action, Discrete):
        return Relaxed(action.n, config.temperature, config.straight_through)
    return Bounded(config.smoothing if config.twin else 0.0, config.smoothing_clip)
