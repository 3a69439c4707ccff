"""Differentiable actions from a policy net's outputs, as inputs of critics, for each kind of action space.

Critics get continuous actions in units in which the box is [−1, 1], and discrete ones as one-hot vectors.
Shapes: R rows (agents), P policies, A actions or action components, K outputs (A, or 2A of squashed Gaussians), M
samples; feature-major, [R, A, M].
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.algos.ddpg.algorithms import DeterministicConfig, ReplayActorCriticConfig, SoftConfig
from marless.learning.algos.training.policy_batching import same_shape
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets.acting_heads import ILLEGAL_LOGIT, LOG_STD_BOUNDS


@dataclass(frozen=True)
class Chosen:
    """Actions of policies, as inputs of critics."""

    action: Tensor
    """float32 [R, A, M]."""
    entropy: Tensor | None = None
    """float32 [R, 1, M], of soft policies: −log π of a continuous action, or the exact entropy over discrete ones."""


class Head(Protocol):
    """Computes actions of policies and target policies from their nets' outputs."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Draw the noise of `act` and `target`, [..., A, M]."""

    def smooth(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        """Actions and entropies as functions of the outputs that autograd can differentiate twice."""

    def act(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        """Actions for the policies' gradient."""

    def gradient(self, d_action_RAM: Tensor, d_entropy_R1M: Tensor | None) -> Tensor:
        """The gradient with respect to the outputs, [R, K, M], given those with respect to the last result of `act`.

        The second is for soft policies only.
        """

    def target(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        """Actions in the successor states."""

    def encode(self, taken_RxM: Tensor) -> Tensor:
        """Convert actions that were taken, [R, 1, M] (indices) or [R, A, M], to critics' inputs, float32 [R, A, M]."""


class Bounded:
    """Continuous actions: a = tanh z. Target actions have clipped noise in TD3, else none."""

    def __init__(self, deviation: float, limit: float, *, inverts: bool = False) -> None:
        """Make the head of TD3's noise; with `inverts`, gradients are those of `inverted_gradient`."""
        self._deviation = deviation
        self._limit = limit
        self._through = inverted_gradient if inverts else bounded_gradient

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Standard normal; zeros, without a draw, if targets are not smoothed."""
        return rng.standard_normal(shape, np.float32) if self._deviation else np.zeros(shape, np.float32)

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        return Chosen(torch.tanh(output_RAM))

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        """Without noise."""
        self._action_RAM = torch.tanh(output_RAM)
        return Chosen(self._action_RAM)

    def gradient(self, d_action_RAM: Tensor, d_entropy_R1M: Tensor | None) -> Tensor:
        return self._through(self._action_RAM, d_action_RAM)

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        action_RAM = torch.tanh(output_RAM)
        return Chosen(smoothed(action_RAM, noise_RAM, self._deviation, self._limit) if self._deviation else action_RAM)

    def encode(self, taken_RxM: Tensor) -> Tensor:
        return taken_RxM


class Relaxed:
    """Discrete actions: Gumbel-softmax samples; one-hot in targets and, if `straight_through`, in forward passes."""

    def __init__(self, actions: int, temperature: float, straight_through: bool, *, soft: bool = False) -> None:
        """Make the head of so many actions; with `soft`, choices have their entropy."""
        self._actions = actions
        self._temperature = temperature
        self._straight_through = straight_through
        self._soft = soft

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Gumbel noise, −log of a standard exponential variable."""
        # float32 exponentials may be 0, and are limited to the smallest normal number
        return -np.log(np.maximum(rng.standard_exponential(shape, np.float32), np.finfo(np.float32).tiny))

    def smooth(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        entropy_R1M = entropy(output_RAM, legal_RAM) if self._soft else None
        return Chosen(relaxed(output_RAM, noise_RAM, legal_RAM, self._temperature), entropy_R1M)

    def act(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        smooth = self.smooth(output_RAM, noise_RAM, legal_RAM)
        self._relaxed_RAM, self._output_RAM, self._legal_RAM = smooth.action, output_RAM, legal_RAM
        return replace(smooth, action=hardest(smooth.action)) if self._straight_through else smooth

    def gradient(self, d_action_RAM: Tensor, d_entropy_R1M: Tensor | None) -> Tensor:
        """The same; with straight-through it is that of the relaxed action (Jang et al. 2017, §2.2)."""
        gradient_RAM = relaxed_gradient(self._relaxed_RAM, d_action_RAM, self._temperature)
        if d_entropy_R1M is None:
            return gradient_RAM
        return gradient_RAM.add_(entropy_gradient(self._output_RAM, self._legal_RAM, d_entropy_R1M))

    def target(self, output_RAM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        """Exact samples of the policy."""
        smooth = self.smooth(output_RAM, noise_RAM, legal_RAM)
        return replace(smooth, action=hardest(smooth.action))

    def encode(self, taken_RxM: Tensor) -> Tensor:
        rows, _, samples = taken_RxM.shape
        zeros_RAM = torch.zeros(rows, self._actions, samples, device=taken_RxM.device)
        return zeros_RAM.scatter_(1, taken_RxM.long(), 1.0)


class Squashed:
    """Continuous actions of soft policies: a = tanh(m + σ ε), for outputs m and log σ."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """ε, standard normal."""
        return rng.standard_normal(shape, np.float32)

    def smooth(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        mean_RAM, free_RAM = output_RKM.chunk(2, dim=1)
        log_std_RAM = free_RAM.clamp(*LOG_STD_BOUNDS)
        sample_RAM = mean_RAM + log_std_RAM.exp() * noise_RAM
        return Chosen(torch.tanh(sample_RAM), squashed_entropy(sample_RAM, log_std_RAM, noise_RAM))

    def act(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        choice = self.target(output_RKM, noise_RAM, legal_RAM)
        self._action_RAM, self._output_RKM, self._noise_RAM = choice.action, output_RKM, noise_RAM
        return choice

    def gradient(self, d_action_RAM: Tensor, d_entropy_R1M: Tensor | None) -> Tensor:
        """−log π grows by −2a per unit of the sample before tanh, and by 1 per unit of log σ."""
        assert d_entropy_R1M is not None
        _, free_RAM = self._output_RKM.chunk(2, dim=1)
        low, high = LOG_STD_BOUNDS
        d_sample_RAM = bounded_gradient(self._action_RAM, d_action_RAM) - 2 * self._action_RAM * d_entropy_R1M
        std_RAM = free_RAM.clamp(low, high).exp()
        d_log_std_RAM = d_sample_RAM * std_RAM * self._noise_RAM + d_entropy_R1M
        # a deviation at its limit does not move by a small change of the output
        return torch.cat([d_sample_RAM, d_log_std_RAM * ((free_RAM > low) & (free_RAM < high))], dim=1)

    def target(self, output_RKM: Tensor, noise_RAM: Tensor, legal_RAM: Tensor | None) -> Chosen:
        return self.smooth(output_RKM, noise_RAM, legal_RAM)

    def encode(self, taken_RxM: Tensor) -> Tensor:
        return taken_RxM


def head(action: Discrete | Box, config: ReplayActorCriticConfig) -> Head:
    """The head for an action space."""
    soft = isinstance(config, SoftConfig)
    if isinstance(action, Discrete):
        return Relaxed(action.n, config.temperature, config.straight_through, soft=soft)
    if soft:
        return Squashed()
    own = DeterministicConfig.model_validate(config)
    return Bounded(own.smoothing if own.twin else 0.0, own.smoothing_clip, inverts=own.inverted_gradients)


def entropy(logits_PAM: Tensor, legal_PAM: Tensor | None) -> Tensor:
    """H = −Σ p log p of the softmax over the legal actions, [P, 1, M]."""
    log_p_PAM = _log_softmax(logits_PAM, legal_PAM)
    return -(log_p_PAM.exp() * log_p_PAM).sum(dim=1, keepdim=True)


def entropy_gradient(logits_PAM: Tensor, legal_PAM: Tensor | None, d_entropy_P1M: Tensor) -> Tensor:
    """The gradient with respect to the logits, −p (log p + H) ∂L/∂H, given that at the entropy H."""
    log_p_PAM = _log_softmax(logits_PAM, legal_PAM)
    p_PAM = log_p_PAM.exp()
    negative_P1M = (p_PAM * log_p_PAM).sum(dim=1, keepdim=True)
    return p_PAM * (negative_P1M - log_p_PAM) * d_entropy_P1M


def _log_softmax(logits_PAM: Tensor, legal_PAM: Tensor | None) -> Tensor:
    legal = logits_PAM if legal_PAM is None else logits_PAM.masked_fill(~legal_PAM, ILLEGAL_LOGIT)
    return torch.log_softmax(legal, dim=1)


def squashed_entropy(sample_PAM: Tensor, log_std_PAM: Tensor, noise_PAM: Tensor) -> Tensor:
    """−log π(a) of a = tanh u, u = m + σ ε: Σ ε²/2 + log σ + log(2π)/2 + log(1 − tanh² u), [P, 1, M].

    log(1 − tanh² u) = 2 (log 2 − u − softplus(−2u)), which does not overflow (Haarnoja et al. 2018, appendix C).
    """
    same_shape("P, A, M", sample_PAM, log_std_PAM, noise_PAM)
    slope_PAM = 2 * (math.log(2) - sample_PAM - torch.nn.functional.softplus(-2 * sample_PAM))
    terms_PAM = 0.5 * noise_PAM.square() + log_std_PAM + 0.5 * math.log(2 * math.pi) + slope_PAM
    return terms_PAM.sum(dim=1, keepdim=True)


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


def inverted_gradient(action_PAM: Tensor, d_action_PAM: Tensor) -> Tensor:
    """What takes the place of `bounded_gradient`: ∂L/∂a times the share of the box that lies ahead of the action.

    Descent moves a towards the bound 1 where ∂L/∂a < 0: then (1 − a)/2, else (1 + a)/2. The true gradient vanishes at
    both bounds, so that a policy that has once gone too far stays there; this one vanishes only towards the bound.
    Source: Hausknecht & Stone 2016, eq. 11, there for the gradient at the outputs of a net without tanh.
    """
    same_shape("P, A, M", action_PAM, d_action_PAM)
    return d_action_PAM * (0.5 + 0.5 * action_PAM * d_action_PAM.sign())


def smoothed(action_PAM: Tensor, normal_PAM: Tensor, deviation: float, limit: float) -> Tensor:
    """Target actions with clipped noise: clip(a + clip(σ ε, −c, c), −1, 1).

    Source: Fujimoto et al. 2018, eq. 14 and algorithm 1.
    """
    same_shape("P, A, M", action_PAM, normal_PAM)
    return (action_PAM + (deviation * normal_PAM).clamp_(-limit, limit)).clamp_(-1.0, 1.0)
