"""Statistics of gradients against numbers worked out by hand and in the mean of draws, and learners that measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.core.settings import Measure
from marless.learning.algos.training.measuring import gradient_statistics
from marless.learning.algos.training.policy_batching import Samples
from marless.learning.curvature.lanczos import Product
from tests.unit.learning.algos import rounds

NAMES = {"gradient_trace", "gradient_signal", "gradient_own", "gradient_common"}


@dataclass
class Linear:
    """A stack whose objective is linear: the gradient of a sample is its features."""

    tensors: Mapping[str, Tensor]

    def score_gradient(self, batch: Mapping[str, Tensor]) -> Tensor:
        return batch["features"].mean(dim=2)

    def hessian(self, batch: Mapping[str, Tensor]) -> Product:
        raise AssertionError("statistics of gradients need no Hessian")


def statistics(gradients_PDS: Tensor, members: int, seed: int = 0, steps: int | None = None) -> dict[str, list[float]]:
    policies = Linear({"flat": torch.zeros(gradients_PDS.shape[:2])})
    samples = Samples({"features": gradients_PDS, "first": gradients_PDS.new_zeros(gradients_PDS[:, :1].shape)}, steps)
    found = gradient_statistics(policies, samples, members, (seed, 0), lambda: False)
    return {name: value_P.tolist() for name, value_P in found.items()}


def test_two_agents_with_two_samples_each() -> None:
    """Agent 1 has gradients (1, 0) and (3, 0), agent 2 (0, 2) and (0, 2): whichever part is which, in halves

    noise of a part: 2 for agent 1, 0 for agent 2, and a part is one sample, so tr Σ = 1. Means (2, 0) and (0, 2):
    their mean (1, 1) has the square 2, of which tr Σ / 4 is noise; own squares are 1 · 3 and 2 · 2; the product is 0.
    """
    found = statistics(torch.tensor([[[1.0, 3.0, 0.0, 0.0], [0.0, 0.0, 2.0, 2.0]]]), members=2)
    assert found == {
        "gradient_trace": [1.0],
        "gradient_signal": [1.75],
        "gradient_own": [3.5],
        "gradient_common": [pytest.approx(0.0)],
    }


def test_opposed_agents_have_a_negative_common_gradient() -> None:
    found = statistics(torch.tensor([[[1.0, 1.0, -1.0, -1.0]], [[1.0, 1.0, 1.0, 1.0]]]), members=2)
    assert (found["gradient_common"], found["gradient_own"]) == ([-1.0, 1.0], [1.0, 1.0])
    assert (found["gradient_signal"], found["gradient_trace"]) == ([0.0, 1.0], [0.0, 0.0])


def test_a_single_agent_has_four_parts_and_agrees_with_nobody() -> None:
    """Parts 0, 1, 2, 3 of one sample: their variance is 5/3; the mean 1.5 squared is 2.25, of which 5/12 is noise."""
    found = statistics(torch.tensor([[[0.0, 1.0, 2.0, 3.0]]]), members=1)
    assert found == {"gradient_trace": [pytest.approx(5 / 3)], "gradient_signal": [pytest.approx(2.25 - 5 / 12)]}


def test_segments_stay_whole() -> None:
    """Two segments of two steps, time-major: means 1 and 3, so tr Σ = 2 samples · 2; a single segment tells nothing."""
    found = statistics(torch.tensor([[[1.0, 3.0, 1.0, 3.0]]]), members=1, steps=2)
    assert found == {"gradient_trace": [4.0], "gradient_signal": [3.0]}
    assert statistics(torch.ones(1, 1, 2), members=1, steps=2) == {}


def test_means_over_draws_are_right() -> None:
    """Three agents with mean gradients (2, 0), (1, 1), (−1, 1) and unit noise in two directions, 30 samples each."""
    rng = torch.Generator().manual_seed(3)
    means = torch.tensor([[2.0, 0.0], [1.0, 1.0], [-1.0, 1.0]]).T.repeat_interleave(30, dim=1)
    drawn = [statistics((means + torch.randn(2, 90, generator=rng)).unsqueeze(0), 3, seed) for seed in range(400)]
    expected = {
        "gradient_trace": 2.0,
        "gradient_signal": (4 + 4) / 9,  # the sum of the means is (2, 2)
        "gradient_own": (4 + 2 + 2) / 3,
        "gradient_common": (2 - 2 + 0) / 3,
    }
    for name, value in expected.items():
        values = torch.tensor([each[name][0] for each in drawn])
        assert abs(values.mean().item() - value) < 4 * values.std().item() / 20, name


@pytest.mark.parametrize("together", [True, False])
def test_a_learner_measures_before_its_update_and_learns_the_same(together: bool) -> None:
    groups = (Group("a", rounds.AGENTS),) if together else rounds.INDEPENDENT
    given = rounds.inputs(groups, [rounds.trajectory(rounds.DISCRETE, 1, steps=10, batch=10)])
    states, metrics = [], []
    for measure in (Measure(), Measure(gradients=True)):
        learner = rounds.learner("ippo", rounds.DISCRETE, groups)
        metrics.append(learner.update(replace(given, measure=measure)).metrics[groups[0].policy])
        states.append(learner.state(groups[0].policy).acting)
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    assert metrics[0].keys() & NAMES == set()
    several = len(groups[0].agents) > 1
    assert metrics[1].keys() & NAMES == (NAMES if several else {"gradient_trace", "gradient_signal"})
    slow = rounds.learner("ippo", rounds.DISCRETE, groups, lr=0.0)
    again = slow.update(replace(given, measure=Measure(gradients=True))).metrics[groups[0].policy]
    assert {name: again[name] for name in metrics[1].keys() & NAMES} == {
        name: metrics[1][name] for name in metrics[1].keys() & NAMES
    }
