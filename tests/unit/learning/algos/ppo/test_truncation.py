"""Ratios truncated over a group of learners: by hand, against autograd, and inside a learner."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.group import Group
from marless.core.state import Arrays
from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
ONE_STEP = {"epochs": 1, "minibatches": 1, "advantage_normalisation": "none"}
OWN = torch.tensor([[0.5, 0.9, 1.5, 3.0, 3.0]])
OTHERS = torch.tensor([[2.0, 0.7, 2.0, 2.5, 0.5]])
"""The least ratio of the others, sample by sample."""
OLD = torch.full((1, 5), -1.0)


def found(how: losses.Truncation, rho: float, others: torch.Tensor = OTHERS) -> list[float]:
    log_prob = losses.truncated(OLD + OWN.log(), OLD, OLD + others.log(), rho, how)
    return (log_prob - OLD).exp()[0].tolist()


def test_ratios_by_hand():
    # as printed, ρ = 1: min(own, others, 1)
    assert found("least", 1.0) == pytest.approx([0.5, 0.7, 1.0, 1.0, 0.5])
    assert found("least", 2.0) == pytest.approx([0.5, 0.7, 1.5, 2.0, 0.5])
    # the floor, ρ = 1: min(own, max(1, min(own, others)))
    assert found("floor", 1.0) == pytest.approx([0.5, 0.9, 1.5, 2.5, 1.0])
    assert found("floor", 2.0) == pytest.approx([0.5, 0.9, 1.5, 2.5, 2.0])


def test_without_others_only_rho_is_left():
    nobody = torch.full((1, 5), math.inf)
    assert found("least", 1.0, nobody) == pytest.approx([0.5, 0.9, 1.0, 1.0, 1.0])
    assert found("floor", 1.0, nobody) == pytest.approx([0.5, 0.9, 1.5, 3.0, 3.0])


@pytest.mark.parametrize("how", ["least", "floor"])
def test_the_gradient_is_autograds(how):
    rng = torch.Generator().manual_seed(5)
    own, old, others, advantage, weight = torch.randn(5, 2, 400, generator=rng)
    own, others, weight = old + 0.5 * own, old + 0.5 * others, weight.abs() / 400

    def loss(log_prob: torch.Tensor) -> torch.Tensor:
        used = losses.truncated(log_prob, old, others, 1.1, how)
        return losses.surrogate(used, old, advantage, weight, 0.2)

    leaf = own.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf).sum(), leaf)
    used = losses.truncated(own, old, others, 1.1, how)
    slope = losses.surrogate_gradient(used, old, advantage, weight, 0.2)
    torch.testing.assert_close(losses.through_truncation(slope, own, used), expected)
    share = losses.truncated_fraction(own, used, torch.full_like(own, 1 / 400))
    assert 0.1 < float(share.min()) < float(share.max()) < 0.9


def test_an_untrained_policy_is_not_truncated_by_rounding():
    own = OLD + 1e-6
    used = losses.truncated(own, OLD, torch.full_like(OLD, math.inf), 1.0, "least")
    assert losses.through_truncation(torch.ones(1, 5), own, used).tolist() == [[1.0] * 5]


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"\[P, M\]"):
        losses.truncated(OWN, OLD, OTHERS[:, :1], 1.0, "least")


def test_what_belongs_to_nothing_is_refused():
    with pytest.raises(ValueError, match="truncation_rho belongs to truncation"):
        IPPOConfig.model_validate({"truncation_rho": 0.8})
    with pytest.raises(ValueError, match="belong to advantage: vtrace"):
        IPPOConfig.model_validate({"vtrace_c": 2.0})


def peer(spaces: EnvSpaces, model: ModelSpec, names: str = "xyz", seed: int = 3) -> dict[str, Arrays]:
    """The weights of another learner, far from those of the own one."""
    other = rounds.learner("ippo", spaces, PAIRS, model=model, seed=seed)
    moved = {name: dict(other.state(name).acting) for name in names}
    for arrays in moved.values():
        for name in arrays:
            arrays[name] = (arrays[name] * 3).astype(np.float32)
    return moved


SPACES = pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
MODELS = pytest.mark.parametrize("recurrent", ["none", "gru"])


def gradients(spaces: EnvSpaces, model: ModelSpec, peers: tuple[dict[str, Arrays], ...], pooling: str, **settings):
    carried = model.recurrent == "gru"
    learner = rounds.learner("ippo", spaces, PAIRS, model=model, carried=carried, **ONE_STEP, **settings)
    memory = (0,) * (len(spaces.classes) - 1) + (model.memory,) if carried else ()
    given = rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7, memory=memory)])
    return learner.gradients(replace(given, peers=peers, pooling=pooling))


@SPACES
@MODELS
@pytest.mark.parametrize("pooling", ["pooled", "drawn"])
def test_a_learner_truncates_by_its_peers(spaces: EnvSpaces, recurrent: str, pooling: str):
    model = ModelSpec.model_validate({"hidden": (16, 8), "recurrent": recurrent})
    plain = gradients(spaces, model, (), pooling)
    peers = (peer(spaces, model), peer(spaces, model, seed=4))
    alone = gradients(spaces, model, (), pooling, truncation="least", truncation_rho=1e6)
    least = gradients(spaces, model, peers, pooling, truncation="least", truncation_rho=1e6)
    for name in "xyz":
        # with a ρ that no ratio reaches, and without peers, nothing is truncated
        np.testing.assert_array_equal(alone.gradients[name]["policy"], plain.gradients[name]["policy"])
        assert alone.metrics[name]["truncated_fraction"] == 0
        assert 0.05 < least.metrics[name]["truncated_fraction"] < 0.999
        assert not np.array_equal(least.gradients[name]["policy"], plain.gradients[name]["policy"])
        np.testing.assert_array_equal(least.gradients[name]["critic"], plain.gradients[name]["critic"])
    # a policy that no peer has is truncated by ρ alone
    missing = gradients(spaces, model, (peer(spaces, model, "yz"),), pooling, truncation="least", truncation_rho=1e6)
    np.testing.assert_array_equal(missing.gradients["x"]["policy"], plain.gradients["x"]["policy"])
    assert missing.metrics["y"]["truncated_fraction"] > 0
    # the own policy as peer changes nothing
    own = {name: rounds.learner("ippo", spaces, PAIRS, model=model).state(name).acting for name in "xyz"}
    same = gradients(spaces, model, (own,), pooling, truncation="least", truncation_rho=1e6)
    for name in "xyz":
        np.testing.assert_array_equal(same.gradients[name]["policy"], plain.gradients[name]["policy"])
