"""What a net's outputs mean for each kind of action space, and how actions are chosen from them, greedy and exploring.

Discrete: A outputs are logits; illegal actions get ILLEGAL_LOGIT. Continuous: A outputs are the means of a diagonal
Gaussian whose log standard deviations are free parameters. Its samples are in units in which the box is [−1, 1]; they
are converted only for the environment, which is as if it did so itself: their probabilities stay those of the Gaussian.
So are those of a squashed Gaussian, whose tanh is the action in the box: ratios of probabilities are the same before
and after it, and finite at the bounds. `marless.learning.nets.beta` has the Beta distribution.

NumPy only; learners use it, too. Shapes: N agents (of parameters also 1, if all share them), B environment copies, A
actions or action components. A head may write into the outputs it is given.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, shown
from marless.core.limits import MAX_ACTIONS
from marless.learning.envs.base import ActionArray, BoolArray, Box, Discrete, FloatArray
from marless.learning.nets.beta import ActingBeta
from marless.learning.nets.layout import checked

HALF_LOG_2PI = np.float32(0.9189385332046727)
ILLEGAL_LOGIT = -1e9
"""Finite, so that probability · log-probability of an illegal action is 0, not NaN."""
STOCHASTIC, EPSILON_GREEDY, DETERMINISTIC = "stochastic", "epsilon_greedy", "deterministic"
EPSILON_STOCHASTIC = "epsilon_stochastic"
DETERMINISTIC_OR_RANDOM, SQUASHED = "deterministic_or_random", "squashed"
SQUASHED_NORMAL, BETA = "squashed_normal", "beta"
"""Values of the metadata key "acts": how actions are chosen."""
VALUES = "values"
"""The metadata key of the number of outputs that are values."""
EXPLORATION = "exploration"
"""Name of the array with the exploration parameters of non-stochastic policies, float32: ε of ε-greedy ones, [1]; σ of
deterministic ones, [1], followed, in DETERMINISTIC_OR_RANDOM, by the probability of a uniformly random action, [2];
that probability alone of SQUASHED ones, [1]."""
LOG_STD_BOUNDS = (-20.0, 2.0)
"""Limits of the log deviations of squashed Gaussians (Haarnoja et al. 2018, in the authors' code)."""


class ActingHead(Protocol):
    """A way to choose actions."""

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        """Exploring actions, int32 [N, B] or (normalised) float32 [N, B, A], and log-probabilities, float32 [N, B].

        Log-probabilities are 0 for policies that are not stochastic, whose learners do not use them.
        """

    def greedy(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        """The best actions."""

    def outputs(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray | None]:
        """Logits or Q values [N, B, A]; or means of recorded actions, with the log deviations, [N, A] or [N, B, A], if
        there are any.
        """

    def unit(self, action: ActionArray) -> ActionArray:
        """Recorded actions in units in which the box is [−1, 1]."""


class _AsRecorded:
    """Actions are recorded in the units of `ActingHead.unit`."""

    def unit(self, action: ActionArray) -> ActionArray:
        return action


class _DiscreteHead(_AsRecorded):
    """Outputs say how good each discrete action is; legal actions are compared only."""

    def greedy(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> NDArray[np.int32]:
        best_NB: NDArray[np.int32] = _legal(output_NAB, mask_NBA).argmax(axis=1).astype(np.int32)
        return best_NB

    def outputs(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray | None]:
        return _legal(output_NAB, mask_NBA).transpose(0, 2, 1), None


class ActingCategorical(_DiscreteHead):
    """Outputs are logits of discrete actions."""

    def __init__(self) -> None:
        self._offset_NB = np.empty((0, 0), np.intp)

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        logits_NAB = _legal(output_NAB, mask_NBA)
        # The largest logit becomes 0, so `exp` cannot overflow, and the total is at least
        # 1, of which a logarithm exists.
        logits_NAB -= logits_NAB.max(axis=1, keepdims=True)
        cumulative_NAB = np.exp(logits_NAB).cumsum(axis=1)
        # Not a sum of its own: it could be rounded to more than the last cumulative value, and a threshold above all of
        # them would choose an action that does not exist.
        total_NB = cumulative_NAB[:, -1]
        # Inverse transform sampling with a threshold in (0, total], so that no action of probability 0 is drawn.
        threshold_NB = rng.random(total_NB.shape, np.float32)
        np.subtract(1, threshold_NB, out=threshold_NB)
        threshold_NB *= total_NB
        action_NB = (cumulative_NAB < threshold_NB[:, None]).sum(axis=1, dtype=np.int32)
        agents, choices, batch = logits_NAB.shape
        if self._offset_NB.shape != (agents, batch):
            self._offset_NB = np.arange(agents)[:, None] * (choices * batch) + np.arange(batch)
        log_prob_NB = logits_NAB.take(action_NB * np.intp(batch) + self._offset_NB)
        log_prob_NB -= np.log(total_NB)
        return action_NB, log_prob_NB


class EpsilonCategorical(_DiscreteHead):
    """Outputs are logits of discrete actions; exploration takes a random legal action with probability ε."""

    def __init__(self, epsilon_N1: FloatArray) -> None:
        self._policy, self._random = ActingCategorical(), EpsilonGreedy(epsilon_N1)

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        sampled_NB, _ = self._policy.sample(output_NAB, mask_NBA, rng)
        own_NB = sampled_NB.astype(np.int32, copy=False)
        return self._random.mixed(own_NB, output_NAB.shape[1], mask_NBA, rng), np.zeros(own_NB.shape, np.float32)


class ActingGaussian(_AsRecorded):
    """Outputs are the means of a diagonal Gaussian with free log standard deviations."""

    def __init__(self, log_std_NA: FloatArray) -> None:
        self._log_std_NA = log_std_NA

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        log_std_NA1 = self._log_std_NA[:, :, None]
        noise_NAB = rng.standard_normal(output_NAB.shape, dtype=np.float32)
        # The noise is (action − mean) / σ already: computed from the action, it would suffer
        # from rounding and from small σ.
        log_prob_NB: FloatArray = np.square(noise_NAB).sum(axis=1)
        log_prob_NB *= -0.5
        log_prob_NB -= (log_std_NA1 + HALF_LOG_2PI).sum(axis=1)
        noise_NAB *= np.exp(log_std_NA1)
        action_NAB = np.add(output_NAB, noise_NAB, out=noise_NAB)
        return np.ascontiguousarray(action_NAB.transpose(0, 2, 1)), log_prob_NB

    def greedy(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        return np.ascontiguousarray(output_NAB.transpose(0, 2, 1))

    def outputs(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray | None]:
        return output_NAB.transpose(0, 2, 1), self._log_std_NA


class ActingSquashedGaussian(ActingGaussian):
    """A Gaussian whose samples are recorded as they are, and squashed by tanh for the environment."""

    def unit(self, action: ActionArray) -> ActionArray:
        return np.tanh(action, dtype=np.float32)


class EpsilonGreedy(_DiscreteHead):
    """Outputs are Q values of discrete actions; exploration takes a random legal action with probability ε."""

    def __init__(self, epsilon_N1: FloatArray) -> None:
        self._epsilon_N1 = epsilon_N1

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        best_NB = self.greedy(output_NAB, mask_NBA)
        return self.mixed(best_NB, output_NAB.shape[1], mask_NBA, rng), np.zeros(best_NB.shape, np.float32)

    def mixed(
        self, own_NB: NDArray[np.int32], choices: int, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> NDArray[np.int32]:
        """Replace each action with probability ε by a random legal one of all `choices`; returns int32 [N, B]."""
        explores_NB = rng.random(own_NB.shape, np.float32) < self._epsilon_N1
        if mask_NBA is None:
            any_NB = rng.integers(choices, size=own_NB.shape, dtype=np.int32)
        else:
            # The largest of independent lots is a uniform draw among legal actions, however many each row has; lots are
            # in [0, 1), so that an illegal action's −1 never wins.
            lots_NBA = np.where(mask_NBA, rng.random(mask_NBA.shape, np.float32), np.float32(-1))
            any_NB = lots_NBA.argmax(axis=2).astype(np.int32)
        # Random actions are drawn for agents that do not explore, too: how far the
        # generator advances is always the same.
        return np.where(explores_NB, any_NB, own_NB)


class Deterministic(_AsRecorded):
    """The tanh of the outputs is the (normalised) action; exploration adds noise of standard deviation σ, clipped.

    With `random`, each action is uniformly random instead, with that probability.
    """

    def __init__(self, sigma_N1: FloatArray, random_N1: FloatArray | None = None) -> None:
        self._sigma_N11, self._random_N1 = sigma_N1[:, :, None], random_N1

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        action_NBA: FloatArray = self.greedy(output_NAB, mask_NBA)
        action_NBA += self._sigma_N11 * rng.standard_normal(action_NBA.shape, dtype=np.float32)
        np.clip(action_NBA, -1, 1, out=action_NBA)
        if self._random_N1 is not None:
            _mix_uniform(action_NBA, self._random_N1, rng)
        return action_NBA, np.zeros(action_NBA.shape[:2], np.float32)

    def greedy(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> FloatArray:
        return np.ascontiguousarray(np.tanh(output_NAB, out=output_NAB).transpose(0, 2, 1))

    def outputs(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray | None]:
        return np.tanh(output_NAB, out=output_NAB).transpose(0, 2, 1), None


class ActingSquashed(_AsRecorded):
    """Outputs are means and log deviations of a diagonal Gaussian; the tanh of its samples is the (normalised) action.

    Each action is uniformly random instead with a probability of its own. Source: Haarnoja et al. 2018, appendix C.
    """

    def __init__(self, random_N1: FloatArray) -> None:
        self._random_N1 = random_N1

    def sample(
        self, output_NAB: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        mean_NAB, log_std_NAB = np.split(output_NAB, 2, axis=1)
        std_NAB = np.exp(np.clip(log_std_NAB, *LOG_STD_BOUNDS, dtype=np.float32))
        sample_NAB = mean_NAB + std_NAB * rng.standard_normal(mean_NAB.shape, dtype=np.float32)
        action_NBA = np.ascontiguousarray(np.tanh(sample_NAB, out=sample_NAB).transpose(0, 2, 1))
        _mix_uniform(action_NBA, self._random_N1, rng)
        return action_NBA, np.zeros(action_NBA.shape[:2], np.float32)

    def greedy(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        mean_NAB, _ = np.split(output_NAB, 2, axis=1)
        return np.ascontiguousarray(np.tanh(mean_NAB).transpose(0, 2, 1))

    def outputs(self, output_NAB: FloatArray, mask_NBA: BoolArray | None) -> tuple[FloatArray, FloatArray | None]:
        """The greedy actions: deviations depend on what is observed, so no array [N, A] could hold them."""
        return np.tanh(output_NAB[:, : output_NAB.shape[1] // 2]).transpose(0, 2, 1), None


def _mix_uniform(action_NBA: FloatArray, random_N1: FloatArray, rng: np.random.Generator) -> None:
    """Replace each action with its policy's probability by one that is uniform in [−1, 1], in place."""
    # Drawn also where the probability is 0: how far the generator advances is always the same.
    explores_NB = rng.random(action_NBA.shape[:2], np.float32) < random_N1
    any_NBA = rng.random(action_NBA.shape, np.float32) * np.float32(2) - np.float32(1)
    np.copyto(action_NBA, any_NBA, where=explores_NB[..., None])


def head(
    acts: str,
    action: Discrete | Box,
    free_NF: FloatArray,
    owners: Sequence[Mapping[str, NDArray[np.generic]]],
) -> ActingHead:
    """The head of policy states' metadata "acts"; raises CorruptError if it is none, or does not fit the actions."""
    discrete = isinstance(action, Discrete)
    if acts == STOCHASTIC:
        return ActingCategorical() if discrete else ActingGaussian(free_NF)
    if not discrete and acts in (SQUASHED_NORMAL, BETA):
        return ActingSquashedGaussian(free_NF) if acts == SQUASHED_NORMAL else ActingBeta()
    fitting = (EPSILON_GREEDY, EPSILON_STOCHASTIC) if discrete else (DETERMINISTIC, DETERMINISTIC_OR_RANDOM, SQUASHED)
    if acts not in fitting:
        raise CorruptError(f"policy state: it acts {acts!r}, which is no way to choose {type(action).__name__} actions")
    numbers = 2 if acts == DETERMINISTIC_OR_RANDOM else 1
    exploration_NE = np.stack([checked(arrays, EXPLORATION, (numbers,)) for arrays in owners])
    if acts == EPSILON_GREEDY:
        return EpsilonGreedy(exploration_NE)
    if discrete:
        return EpsilonCategorical(exploration_NE)
    if acts == SQUASHED:
        return ActingSquashed(exploration_NE)
    return Deterministic(exploration_NE[:, :1], exploration_NE[:, 1:] if numbers > 1 else None)


def _legal(output_NAB: FloatArray, mask_NBA: BoolArray | None) -> FloatArray:
    if mask_NBA is not None:
        output_NAB[~mask_NBA.transpose(0, 2, 1)] = ILLEGAL_LOGIT
    return output_NAB


def free_parameters(action: Discrete | Box, acts: str = STOCHASTIC) -> int:
    """Number of parameters of a policy besides its net: a Gaussian's log standard deviation per component."""
    return action.n if acts in (STOCHASTIC, SQUASHED_NORMAL) and isinstance(action, Box) else 0


def acts_by(action: Discrete | Box, distribution: str) -> str:
    """How a policy of the PPO family acts: `distribution` is a setting, of continuous actions."""
    return STOCHASTIC if distribution == "normal" or isinstance(action, Discrete) else distribution


def outputs_of(action: Discrete | Box, acts: str = STOCHASTIC) -> int:
    """Number of outputs of a policy's net: two for each component of a Beta distribution or of SAC's squashed Gaussian,
    whose deviation depends on the observation, else one.
    """
    return 2 * action.n if acts in (SQUASHED, BETA) else action.n


def values_of(metadata: Mapping[str, str]) -> int:
    """How many outputs behind those of the actions are values, which actors do not read: 1 if a policy and its critic
    are one net, else 0. Raises CorruptError for anything else.
    """
    if (said := metadata.get(VALUES, "0")) not in ("0", "1"):
        raise CorruptError(f"policy state: {VALUES} is {shown(said)}, expected 1, or nothing")
    return int(said)


def describe_action(action: Discrete | Box) -> str:
    """Encode an action space as text, for the metadata of a policy state."""
    if isinstance(action, Discrete):
        return f"discrete:{action.n}"
    return f"box:{json.dumps([action.low, action.high], separators=(',', ':'))}"


def parse_action(text: str) -> Discrete | Box:
    """The inverse of `describe_action`; raises ValueError for invalid text."""
    kind, _, numbers = text.partition(":")
    with contextlib.suppress(TypeError, ValueError, RecursionError, SpecError):
        # `int` also takes signs, spaces and underscores: only what `describe_action` writes is an action space.
        if kind == "discrete" and 0 < (n := int(numbers)) <= MAX_ACTIONS and numbers == str(n):
            return Discrete(n)
        if kind == "box":
            low, high = json.loads(numbers)
            if 0 < len(low) <= MAX_ACTIONS:
                return Box(low=tuple(low), high=tuple(high))
    raise ValueError(f"{text[:80]!r} is no action space")


def to_env(action: Discrete | Box, chosen: ActionArray) -> ActionArray:
    """Convert actions for the environment, continuous ones [..., A] as `Box.components` says."""
    return chosen if isinstance(action, Discrete) else action.components(chosen)
