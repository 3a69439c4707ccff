"""Measures policies after their training: the curvature of each policy's objective, and the noise of its gradient.

Both are computed for a whole stack in one pass, in every family whose nets are `Measurable`.

An objective is *maximised*: a family that minimises a loss provides minus the loss. PPO's objective is Nitro's
surrogate L = E[log π(a|s)·A], with the advantages used in training, and without clipping, entropy bonus and value loss
(Nitro's code differentiates the minimised sum of all of them). That of Q nets is minus their squared TD error, with the
targets of training; that of deterministic policies is their critic's value.
Shapes: P policies, D parameters, M samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from marless.core.interruption import Stopped, check
from marless.core.settings import CurvatureSpec, Measure
from marless.learning.algos.learner import RoundInput
from marless.learning.curvature import lanczos
from marless.learning.curvature.noise import noise_scale
from marless.learning.curvature.ratio import convexity_ratio

_STREAM = 1
"""Number of the random stream of these draws, which must differ from that of the order of minibatches."""
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

    @property
    def count(self) -> int:
        """Number of units that an order permutes: samples, or sequences of them."""
        ...

    @property
    def unit(self) -> int:
        """Number of samples per unit: 1, or the time steps of a sequence."""
        ...

    def subset(self, index_M: Tensor) -> Batch:
        """Copies of these units."""
        ...

    def shuffle(self, order_S: Tensor) -> None:
        """Set the order of the units for minibatches."""
        ...

    def minibatches(self, count: int) -> Sequence[Batch]:
        """Split the shuffled units into `count` nearly equal parts."""
        ...


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
    share_NP1 = _shares(batches)
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


def _shares(batches: Sequence[Batch]) -> Tensor:
    """Each part's fraction of the weight of a policy's samples, [parts, P, 1]."""
    counts = [
        batch["alive"].sum(dim=2) if "alive" in batch else torch.ones_like(batch["features"][:, :1]).sum(dim=2)
        for batch in batches
    ]
    count_NP1 = torch.stack(counts)
    return count_NP1 / count_NP1.sum(dim=0).clamp_min(1.0)
