"""Measures policies after their training: the curvature of each policy's objective, and the noise of its gradient.

Curvature is the convexity ratio of the objective, the ratio of its largest upward to its largest downward curvature.
The noise scale is the number of samples at which the noise of a gradient is as large as the gradient. Both are computed
for a whole stack in one pass, in every family whose nets are `Measurable`.

An objective is *maximised*: a family that minimises a loss provides minus the loss. PPO's objective is Nitro's
surrogate L = E[log π(a|s)·A], with the advantages used in training, and without clipping, entropy bonus and value loss
(Nitro's code differentiates the minimised sum of all of them). That of Q nets is minus their squared TD error, with the
targets of training; that of deterministic policies is their critic's value.
Shapes: P policies, D parameters, M samples.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.interruption import Stopped, check
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.training.measurable import Measurable, Measured
from marless.learning.curvature import lanczos

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
