"""Measures policies: their gradients before their training, and after it the curvature of their objectives and noise.

Curvature is the convexity ratio of the objective, the ratio of its largest upward to its largest downward curvature.
The noise scale is the number of samples at which the noise of a gradient is as large as the gradient. Both are computed
for a whole stack in one pass, in every family whose nets are `Measurable`. `gradient_statistics` tells how noisy the
gradient of a policy is, and how far the agents that share the policy agree on it.

An objective is *maximised*: a family that minimises a loss provides minus the loss. PPO's objective is Nitro's
surrogate L = E[log π(a|s)·A], with the advantages used in training, and without clipping, entropy bonus and value loss
(Nitro's code differentiates the minimised sum of all of them). That of Q nets is minus their squared TD error, with the
targets of training; that of deterministic policies is their critic's value.
Shapes: P policies, D parameters, M samples, S units (samples, or segments for nets with memory), m members of a policy,
u parts of a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.interruption import Stopped, check
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.learner import RoundInput
from marless.learning.curvature import lanczos

Batch = Mapping[str, Tensor]
"""Samples of P nets by name, columns last: "features" [P, I, M]; "alive" [P, 1, M], weights of samples relative to 1,
if they are not all equal; all others depend on the family."""


class Measurable(Protocol):
    """A stack of P nets and the objective of each, at their present parameters."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """ "flat" [P, D], the parameters."""
        ...

    def score_gradient(self, batch: Batch) -> Tensor:
        """The gradient [P, D] of the objective, a weighted mean over a batch; overwritten by the next call."""
        ...

    def hessian(self, batch: Batch) -> lanczos.Product:
        """Products of vectors [P, D] with the objective's Hessian over a batch."""
        ...


class Measured(Protocol):
    """The samples that a stack of nets has in a round, the same number for each net."""

    count: int
    """Number of units that an order permutes: samples, or sequences of them."""
    unit: int
    """Number of samples per unit: 1, or the time steps of a sequence."""

    def subset(self, index_M: Tensor) -> Batch:
        """Copies of these units."""
        ...

    def shuffle(self, order_S: Tensor) -> None:
        """Set the order of the units for minibatches."""
        ...

    def minibatches(self, count: int) -> Sequence[Batch]:
        """Split the shuffled units into `count` nearly equal parts."""
        ...


_STREAM = 1
"""Number of the random stream of these draws, which must differ from that of the order of minibatches."""


def asked(measure: Measure) -> bool:
    """True if the round asks for measurements of policies after their training."""
    return measure.curvature is not None or measure.noise


def measured(policies: Measurable, samples: Measured, inputs: RoundInput, minibatches: int) -> dict[str, Tensor]:
    """Make the measurements that the round asks for, at a stack's present parameters; returns [P] by metric.

    Random numbers depend on the job's seed and the round only, so that the results for a policy do not depend on its
    stack. `minibatches` is the number of parts whose gradients the noise scale compares with that of the whole. Raises
    StoppedError between two products or parts once `inputs.stopped` returns True.
    """
    metrics: dict[str, Tensor] = {}
    rng = np.random.default_rng([inputs.seed, inputs.round, _STREAM])
    # Drawn first and always, so that neither measurement depends on whether the other is asked for.
    order_S = torch.from_numpy(rng.permutation(samples.count)).to(policies.tensors["flat"].device)
    if inputs.measure.curvature is not None:
        metrics |= _curvature(policies, samples, order_S, inputs.measure.curvature, rng, inputs.stopped)
    if inputs.measure.noise and samples.count > 1:  # a single segment cannot be divided
        metrics["noise_scale"] = _noise(policies, samples, order_S, max(minibatches, 2), inputs.stopped)
    return metrics


def _curvature(
    policies: Measurable,
    samples: Measured,
    order_S: Tensor,
    spec: CurvatureSpec,
    rng: np.random.Generator,
    stopped: Stopped,
) -> dict[str, Tensor]:
    flat_PD = policies.tensors["flat"]
    starts = [lanczos.rademacher(rng, flat_PD) for _ in range(spec.probes)]
    # Rounded up to whole segments, of which nets with memory cannot see a part.
    product = policies.hessian(samples.subset(order_S[: -(-spec.samples // samples.unit)]))

    def unless_stopped(vector_PD: Tensor) -> Tensor:
        check(stopped)
        return product(vector_PD)

    highest_P, lowest_P = lanczos.extremes(unless_stopped, starts, spec.steps)
    found = {"lambda_max": highest_P, "lambda_min": lowest_P, "curvature": convexity_ratio(highest_P, lowest_P)}
    return {name: torch.from_numpy(values_P) for name, values_P in found.items()}


def _noise(policies: Measurable, samples: Measured, order_S: Tensor, parts: int, stopped: Stopped) -> Tensor:
    """The noise scale from gradients of parts and of the whole; dead agents' samples are counted, with weight 0."""
    samples.shuffle(order_S)
    batches = samples.minibatches(parts)
    count_NP1 = torch.stack(
        [
            batch["alive"].sum(dim=2) if "alive" in batch else torch.ones_like(batch["features"][:, :1]).sum(dim=2)
            for batch in batches
        ]
    )
    share_NP1 = count_NP1 / count_NP1.sum(dim=0).clamp_min(1.0)  # each part's fraction of the weight of the samples
    big_PD = torch.zeros_like(policies.tensors["flat"])
    small_square_P1 = torch.zeros_like(share_NP1[0])
    for batch, share_P1 in zip(batches, share_NP1, strict=True):
        check(stopped)
        gradient_PD = policies.score_gradient(batch)
        big_PD += share_P1 * gradient_PD
        small_square_P1 += share_P1 * gradient_PD.square().sum(dim=1, keepdim=True)
    small_square_P, big_square_P = (
        x_P.double().cpu().numpy() for x_P in (small_square_P1.squeeze(1), big_PD.square().sum(dim=1))
    )
    total = float(samples.count * samples.unit)
    return torch.from_numpy(noise_scale(small_square_P, big_square_P, small=total / parts, big=total))


RATIO_LIMIT = 1000.0
"""C is kept in [1 / RATIO_LIMIT, RATIO_LIMIT]: wide enough for all ratios beyond sampling noise, and narrow enough that
the other values of a window stay distinct when they are normalised together."""
_FLAT = RATIO_LIMIT * float(np.finfo(np.float64).tiny)
"""Curvature below this counts as 0, because 1/RATIO_LIMIT of it would underflow."""


def convexity_ratio(highest_P: NDArray[np.float64], lowest_P: NDArray[np.float64]) -> NDArray[np.float64]:
    """C = −λ_max/λ_min of the MAXIMISED objective, from its Hessian's extreme eigenvalues [P]; finite and positive.

    Negating the objective gives 1/C, so a loss, as in Nitro's code, must be negated first. The formula is not defined
    for an objective that curves one way only, so each end counts as at least 1/RATIO_LIMIT of the other: C is
    RATIO_LIMIT without a downward direction (λ_min ≥ 0), 1/RATIO_LIMIT without an upward one (λ_max ≤ 0), and 1 if the
    objective is flat or its Hessian not finite.
    Source: Wei et al. 2025, §4.2, after Nitro (PVLDB 18(1)); the limits are ours, the papers give none.
    """
    up_P, down_P = np.maximum(highest_P, 0.0), np.maximum(-lowest_P, 0.0)
    largest_P = np.maximum(up_P, down_P)
    known_P = np.isfinite(highest_P) & np.isfinite(lowest_P) & (largest_P > _FLAT)
    floor_P = np.where(known_P, largest_P, 1.0) / RATIO_LIMIT
    up_P, down_P = (np.maximum(np.where(known_P, each_P, 0.0), floor_P) for each_P in (up_P, down_P))
    ratio_P: NDArray[np.float64] = np.clip(up_P / down_P, 1 / RATIO_LIMIT, RATIO_LIMIT)
    return ratio_P


NOISE_LIMIT = 100.0
"""Noise scales are limited to NOISE_LIMIT · B: with a batch of B samples, larger ones cannot be told from infinity."""


def noise_scale(
    small_square_P: NDArray[np.float64], big_square_P: NDArray[np.float64], small: float, big: float
) -> NDArray[np.float64]:
    """tr Σ / |G|² in samples, [P], from squared gradient norms over batches of `small` (b) and `big` (B) samples:

    ((|g_b|² − |g_B|²) / (1/b − 1/B)) / ((B|g_B|² − b|g_b|²) / (B − b)).

    Both parts are unbiased estimates of non-negative quantities, but may be negative themselves: a negative numerator
    counts as no noise (0), a denominator of 0 or less as no signal (NOISE_LIMIT · B). The result is 0 for norms that
    are not finite, and for a gradient of 0. Raises ValueError unless 0 < b < B.
    Source: McCandlish et al. 2018, appendix A.1; the limits are ours.
    """
    if not 0 < small < big:
        raise ValueError(f"needs two batch sizes 0 < small < big, got {small} and {big}")
    finite_P = np.isfinite(small_square_P) & np.isfinite(big_square_P)
    small_square_P, big_square_P = np.where(finite_P, (small_square_P, big_square_P), 0.0)
    noise_P = np.maximum((small_square_P - big_square_P) / (1 / small - 1 / big), 0.0)
    signal_P = np.maximum((big * big_square_P - small * small_square_P) / (big - small), 0.0)
    most = NOISE_LIMIT * big
    drowned_P = noise_P > most * signal_P
    quotient_P: NDArray[np.float64] = noise_P / np.where(drowned_P | (signal_P == 0), 1.0, signal_P)
    return np.where(drowned_P, most, quotient_P)


_DIVISION = 6
"""Number of the random stream that divides samples, which must differ from other streams of the same round."""
PARTS = 4
"""Parts of all samples, at least; a member has two of its own, at least."""


def gradient_statistics(
    policies: Measurable, samples: Measured, members: int, seed: tuple[int, int], stopped: Stopped
) -> dict[str, Tensor]:
    """The statistics of each policy's gradient, float64 [P] by name; {} if a member has fewer than two units.

    They hold for the policy that played, before its training: afterwards it has been fitted to the noise of its
    samples. Each member's samples are divided at random into parts of equal size, and the gradient of the objective is
    computed for each part. How much the parts of one member differ tells the noise; how much the members' means agree
    tells whether they want the same. All are unbiased, so that means over rounds come closer to the truth; a single one
    may be negative where it should not.

    - "gradient_trace": tr Σ, the noise of one sample: the expected squared distance of its gradient to its agent's
      mean one. McCandlish et al. 2018, appendix A.1.
    - "gradient_signal": |G|², the squared norm of the mean over all agents, without the part that noise adds to it.
      The gradient noise scale is tr Σ / |G|², in samples.
    - "gradient_own" (only with several members): the mean over agents of the squared norm of an agent's own gradient.
    - "gradient_common" (likewise): the mean over pairs of agents of the product of their gradients. It equals
      "gradient_own" for agents that want the same, and is 0 or less for those that pull in different directions [ours].

    Args:
        samples: Units of members one after another, equally many of each.
        members: m, the number of agents of each policy.
        seed: The job's seed and the round, which decide which units of a member belong to which part.

    Raises StoppedError between two parts once `stopped` returns True.
    """
    of_member = samples.count // members
    parts = min(max(PARTS // members, 2), of_member)
    if parts < 2:
        return {}
    units = of_member // parts
    rng = np.random.default_rng([*seed, _DIVISION])
    order_U = torch.from_numpy(rng.permutation(of_member)[: units * parts])
    size = units * samples.unit  # samples of a part
    mean_PD = torch.zeros_like(policies.tensors["flat"], dtype=torch.float64)
    trace_P, own_P = torch.zeros_like(mean_PD[:, 0]), torch.zeros_like(mean_PD[:, 0])
    for member in range(members):
        square_P, member_PD = torch.zeros_like(trace_P), torch.zeros_like(mean_PD)
        for part in range(parts):
            check(stopped)
            index_U = member * of_member + order_U[part * units : (part + 1) * units]
            gradient_PD = policies.score_gradient(samples.subset(index_U.to(mean_PD.device))).double()
            square_P += _square(gradient_PD) / parts
            member_PD += gradient_PD / parts
        noise_P = (square_P - _square(member_PD)) * parts / (parts - 1)  # of the gradient of one part
        trace_P += size * noise_P / members
        own_P += (_square(member_PD) - noise_P / parts) / members
        mean_PD += member_PD / members
    found = {"gradient_trace": trace_P, "gradient_signal": _square(mean_PD) - trace_P / (size * parts * members)}
    if members > 1:
        # m² |mean|² is the sum over all pairs; without the m pairs of an agent with itself, all noise is independent.
        own_noisy_P = own_P + trace_P / (size * parts)
        common_P = (members * _square(mean_PD) - own_noisy_P) / (members - 1)
        found |= {"gradient_own": own_P, "gradient_common": common_P}
    return found


def _square(x_PD: Tensor) -> Tensor:
    return x_PD.square().sum(dim=1)
