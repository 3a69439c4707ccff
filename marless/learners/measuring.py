"""What an update measures of its policies once they are trained: the curvature of each one's objective, and the noise
of its gradient, both of a whole stack in one pass.

The objective is Nitro's surrogate L = E[log π(a|s)·A], maximised, with the advantages that were trained on: no
clipping, entropy bonus or value loss (Nitro's code differentiates all of them together, and minimised).
Shapes: P policies, D parameters, M samples, A actions or action components.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from marless.algos.base import CurvatureSpec, Measure, RoundInput
from marless.curvature import lanczos
from marless.curvature.noise import noise_scale
from marless.curvature.outputs import CategoricalScore, GaussianScore, OutputObjective
from marless.curvature.perceptron import HessianProduct
from marless.curvature.ratio import convexity_ratio
from marless.learners.ppo.functions import Metrics, PolicyFunction, Samples, weights

_STREAM = 1
"""Keeps what is drawn here apart from the order of the minibatches, which has the same seed."""


def asked(measure: Measure) -> bool:
    """True if policies are to be measured after their training."""
    return measure.curvature is not None or measure.noise


def measured(policies: PolicyFunction, samples: Samples, inputs: RoundInput, minibatches: int) -> Metrics:
    """What the round asks to be measured of a stack, at its present parameters; which stay as they are.

    Samples and starts are drawn from the job's seed and the round alone, so that a policy gets the same measurements
    alone as in a stack. `minibatches` are the parts that the noise scale compares with the whole.
    """
    metrics: Metrics = {}
    rng = np.random.default_rng([inputs.seed, inputs.round, _STREAM])
    order_S = torch.from_numpy(rng.permutation(samples.count)).to(policies.net.gradient_PD.device)
    if inputs.measure.curvature is not None:
        metrics |= _curvature(policies, samples, order_S, inputs.measure.curvature, rng)
    if inputs.measure.noise:
        metrics["noise_scale"] = _noise(policies, samples, order_S, max(minibatches, 2))
    return metrics


def hessian(policies: PolicyFunction, batch: Mapping[str, Tensor]) -> HessianProduct:
    """The Hessian of each policy's objective over a batch of its samples, by products with vectors [P, D]."""
    net, flat_PD = policies.net, policies.tensors["flat"]
    advantage_PM = batch["advantage"].squeeze(1)
    weight_PM = advantage_PM * weights(batch, advantage_PM)

    def objective(output_PAM: Tensor) -> OutputObjective:
        if not policies.discrete:
            return GaussianScore(output_PAM, batch["action"], flat_PD[:, -net.layout.free :], weight_PM)
        legal_PAM = batch["legal"] > 0 if "legal" in batch else None
        return CategoricalScore(output_PAM, batch["action"].long(), legal_PAM, weight_PM)

    return HessianProduct(net.layout, flat_PD, net.activation, batch["features"], objective)


def _curvature(
    policies: PolicyFunction, samples: Samples, order_S: Tensor, spec: CurvatureSpec, rng: np.random.Generator
) -> Metrics:
    flat_PD = policies.tensors["flat"]
    starts = [lanczos.rademacher(rng, flat_PD) for _ in range(spec.probes)]
    product = hessian(policies, samples.subset(order_S[: spec.samples]))
    highest_P, lowest_P = lanczos.extremes(product, starts, spec.steps)
    found = {"lambda_max": highest_P, "lambda_min": lowest_P, "curvature": convexity_ratio(highest_P, lowest_P)}
    return {name: torch.from_numpy(values_P) for name, values_P in found.items()}


def _noise(policies: PolicyFunction, samples: Samples, order_S: Tensor, parts: int) -> Tensor:
    """From the gradients of a round's parts and of the whole round; dead agents' samples are counted, with weight 0."""
    samples.shuffle(order_S)
    batches = samples.minibatches(parts)
    share_NP1 = _shares(batches)
    big_PD = torch.zeros_like(policies.net.gradient_PD)
    small_square_P1 = torch.zeros_like(share_NP1[0])
    for batch, share_P1 in zip(batches, share_NP1, strict=True):
        gradient_PD = policies.score_gradient(batch)
        big_PD += share_P1 * gradient_PD
        small_square_P1 += share_P1 * gradient_PD.square().sum(dim=1, keepdim=True)
    small_square_P, big_square_P = (
        x_P.double().cpu().numpy() for x_P in (small_square_P1.squeeze(1), big_PD.square().sum(dim=1))
    )
    return torch.from_numpy(
        noise_scale(small_square_P, big_square_P, small=samples.count / parts, big=float(samples.count))
    )


def _shares(batches: list[dict[str, Tensor]]) -> Tensor:
    """Each part's share of a policy's living samples, [parts, P, 1]."""
    counts = [(b["alive"] if "alive" in b else torch.ones_like(b["advantage"])).sum(dim=2) for b in batches]
    count_NP1 = torch.stack(counts)
    return count_NP1 / count_NP1.sum(dim=0).clamp_min(1.0)
