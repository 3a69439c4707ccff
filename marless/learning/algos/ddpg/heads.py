"""Differentiable actions from a policy net's outputs, as inputs of critics, for each kind of action space.

Critics get continuous actions in units in which the box is [−1, 1], and discrete ones as one-hot vectors.
Shapes: R rows (agents), P policies, A actions or action components, M samples; feature-major, [R, A, M].
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.algos.ddpg.algorithms import DDPGConfig
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets.acting_heads import ILLEGAL_LOGIT


class Bounded:
    """Continuous actions: a = tanh z. Target actions have clipped noise in TD3, else none."""

    def __init__(self, deviation: float, limit: float) -> None:
        self._deviation = deviation
        self._limit = limit

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw noise for `act` and `target`: standard normal; zeros, without a draw, if targets are not smoothed."""
        return rng.standard_normal(shape, np.float32) if self._deviation else np.zeros(shape, np.float32)

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions as differentiable functions of the outputs."""
        return torch.tanh(output_RAM)

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions as inputs of critics, for the policies' gradient; continuous ones without noise."""
        self._action_RAM = torch.tanh(output_RAM)
        return self._action_RAM

    def gradient(self, d_action_RAM: Tensor) -> Tensor:
        """The gradient with respect to the outputs, given that with respect to the last result of `act`."""
        return bounded_gradient(self._action_RAM, d_action_RAM)

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Actions of target policies, given their outputs."""
        action_RAM = torch.tanh(output_RAM)
        return smoothed(action_RAM, noise_RAM, self._deviation, self._limit) if self._deviation else action_RAM

    def encode(self, taken_RxM: Tensor) -> Tensor:
        """Convert actions that were taken, [R, 1, M] (indices) or [R, A, M], to critics' inputs, float32 [R, A, M]."""
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
        return relaxed(output_RAM, noise_RAM, legal_RAM, self._temperature)

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        self._relaxed_RAM = self.smooth(output_RAM, noise_RAM, legal_RAM)
        return hardest(self._relaxed_RAM) if self._straight_through else self._relaxed_RAM

    def gradient(self, d_action_RAM: Tensor) -> Tensor:
        """The gradient of the action; with straight-through, of the relaxed action (Jang et al. 2017, §2.2)."""
        return relaxed_gradient(self._relaxed_RAM, d_action_RAM, self._temperature)

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Tensor:
        """Exact samples of the target policy."""
        return hardest(self.smooth(output_RAM, noise_RAM, legal_RAM))

    def encode(self, taken_RxM: Tensor) -> Tensor:
        rows, _, samples = taken_RxM.shape
        zeros_RAM = torch.zeros(rows, self._actions, samples, device=taken_RxM.device)
        return zeros_RAM.scatter_(1, taken_RxM.long(), 1.0)


Head: TypeAlias = Bounded | Relaxed
"""Computes actions of policies and target policies from their nets' outputs."""


def head(action: Discrete | Box, config: DDPGConfig) -> Head:
    """The head for an action space."""
    if isinstance(action, Discrete):
        return Relaxed(action.n, config.temperature, config.straight_through)
    return Bounded(config.smoothing if config.twin else 0.0, config.smoothing_clip)


def relaxed(logits_PAM: Tensor, gumbel_PAM: Tensor, legal_PAM: Tensor | None, temperature: float) -> Tensor:
    """A sample of the Gumbel-softmax, softmax((z + g) / τ): close to one-hot for small τ, and 0 for illegal actions.

    `gumbel` is −log(−log u) for uniform u, or 0 for the softmax without noise.
    Source: Jang et al. 2017, eq. 2.
    """
    same_shape("P, A, M", logits_PAM, gumbel_PAM)
    noisy_PAM = logits_PAM + gumbel_PAM
    if legal_PAM is not None:
        noisy_PAM = noisy_PAM.masked_fill(~legal_PAM, ILLEGAL_LOGIT)
    # Not torch.softmax: along this dimension, its last bits depend on the number of threads.
    return torch.log_softmax(noisy_PAM / temperature, dim=1).exp()


def relaxed_gradient(relaxed_PAM: Tensor, d_action_PAM: Tensor, temperature: float) -> Tensor:
    """The gradient with respect to the logits, y (∂L/∂y − Σ y ∂L/∂y) / τ, given that at the relaxed action y."""
    same_shape("P, A, M", relaxed_PAM, d_action_PAM)
    inner_P1M = (relaxed_PAM * d_action_PAM).sum(dim=1, keepdim=True)
    return (d_action_PAM - inner_P1M).mul_(relaxed_PAM).div_(temperature)


def hardest(relaxed_PAM: Tensor) -> Tensor:
    """The one-hot vector of the largest entry. For a Gumbel-softmax sample, it is an exact sample of softmax(z)."""
    return torch.zeros_like(relaxed_PAM).scatter_(1, relaxed_PAM.argmax(dim=1, keepdim=True), 1.0)


def bounded_gradient(action_PAM: Tensor, d_action_PAM: Tensor) -> Tensor:
    """The gradient with respect to z for a = tanh z, given that at a: (1 − a²) ∂L/∂a."""
    same_shape("P, A, M", action_PAM, d_action_PAM)
    return d_action_PAM - action_PAM.square() * d_action_PAM


def smoothed(action_PAM: Tensor, normal_PAM: Tensor, deviation: float, limit: float) -> Tensor:
    """Target actions with clipped noise: clip(a + clip(σ ε, −c, c), −1, 1).

    Source: Fujimoto et al. 2018, eq. 14 and algorithm 1.
    """
    same_shape("P, A, M", action_PAM, normal_PAM)
    return (action_PAM + (deviation * normal_PAM).clamp_(-limit, limit)).clamp_(-1.0, 1.0)
