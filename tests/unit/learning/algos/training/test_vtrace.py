"""V-trace against numbers worked out by hand, and against GAE where the policy has not changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.group import Group
from marless.learning.algos.training.advantages import gae, vtrace_advantages, vtrace_corrections
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
DELTA = [1.0, 2.0, 4.0]
RATIO = [2.0, 0.5, 3.0]


def column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers).view(1, 3, 1)


def computed(ends: list[bool], gae_lambda: float = 1.0) -> tuple[list[float], list[float]]:
    """Corrections and advantages with γ = ½ and ρ̄ = c̄ = 1."""
    ends_NTB = torch.tensor(ends).view(1, 3, 1)
    decays = {"gamma": 0.5, "gae_lambda": gae_lambda}
    found = vtrace_corrections(column(DELTA), ends_NTB, column(RATIO), **decays, rho=1.0, c=1.0)
    return found.flatten().tolist(), vtrace_advantages(column(DELTA), ends_NTB, found, **decays).flatten().tolist()


def test_by_hand():
    # ρ, c = 1, ½, 1. A₂ = 4, A₁ = ½·2 + ½·½·4 = 2, A₀ = 1·1 + ½·1·2 = 2
    # advantages without the ratio of the first action: 4, 2 + ½·4 = 4, 1 + ½·2 = 2
    assert computed([False, False, True]) == ([2.0, 2.0, 4.0], [2.0, 4.0, 4.0])


def test_lambda_shortens_the_trace_and_the_bootstrap():
    # λ = ½: A₁ = 1 + ¼·½·4 = 1.5, A₀ = 1 + ¼·1.5; advantages 2 + ¼·4, 1 + ¼·1.5
    assert computed([False, False, True], 0.5) == ([1.375, 1.5, 4.0], [1.375, 3.0, 4.0])


def test_nothing_passes_an_end():
    assert computed([False, True, True]) == ([1.5, 1.0, 4.0], [1.5, 2.0, 4.0])


def test_the_limits_are_apart():
    ends_NTB = torch.tensor([False, False, True]).view(1, 3, 1)
    found = vtrace_corrections(column(DELTA), ends_NTB, column(RATIO), gamma=0.5, gae_lambda=1.0, rho=2.5, c=1.5)
    # A₂ = 2.5·4 = 10, A₁ = 1 + ½·½·10 = 3.5, A₀ = 2·1 + ½·1.5·3.5
    assert found.flatten().tolist() == [4.625, 3.5, 10.0]


def test_an_unchanged_policy_has_the_advantages_of_gae():
    rng = torch.Generator().manual_seed(2)
    reward, value, after = torch.randn(3, 2, 7, 4, generator=rng)
    ends = torch.rand(2, 7, 4, generator=rng) < 0.2
    decays = {"gamma": 0.9, "gae_lambda": 0.8}
    expected = gae(reward, value, after, ends, **decays)
    delta = reward + 0.9 * after - value
    found = vtrace_corrections(delta, ends, torch.ones_like(delta), **decays, rho=1.0, c=1.0)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(vtrace_advantages(delta, ends, found, **decays), expected)


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"\[N, T, B\]"):
        vtrace_advantages(column(DELTA), torch.zeros(1, 2, 1), column(DELTA), gamma=1.0, gae_lambda=1.0)


@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
@pytest.mark.parametrize("pooling", ["pooled", "drawn"])
def test_the_ratios_weigh_errors_of_values_and_not_the_loss_of_policies(
    spaces: EnvSpaces, recurrent: str, pooling: str
) -> None:
    model = ModelSpec.model_validate({"hidden": (16, 8), "recurrent": recurrent})
    once = {"epochs": 1, "minibatches": 1, "advantage_normalisation": "none", "gamma": 0.0}
    traced = {"advantage": "vtrace", "vtrace_rho": 1e9, "vtrace_c": 1e9}
    given = replace(rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7)]), pooling=pooling)
    plain, corrected = (
        rounds.learner("ippo", spaces, PAIRS, model=model, **once, **more).gradients(given).gradients
        for more in ({}, traced)
    )
    # With γ = 0 advantages are r − V either way, and targets of values V + r − V or V + (π/μ) · (r − V).
    for name in "xyz":
        np.testing.assert_allclose(plain[name]["policy"], corrected[name]["policy"], rtol=1e-5, atol=1e-7)
        assert not np.allclose(plain[name]["critic"], corrected[name]["critic"])
