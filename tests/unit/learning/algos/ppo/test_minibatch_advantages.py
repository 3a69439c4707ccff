"""Advantages that are normalised over each minibatch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from marless.core.settings import InvalidSettingsError
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.algos.ppo.functions import PolicyFunction, Surrogate, minibatch_advantage
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.ppo.test_variants import GROUPS, learner, trained


def test_a_minibatch_has_mean_0_and_deviation_1() -> None:
    """Of 1, 3 and a dead agent's 100: mean 2, deviation 1."""
    batch = {"advantage": torch.tensor([[[1.0, 3.0, 100.0]]]), "value": torch.zeros(1, 1, 3)}
    weight_PM = torch.tensor([[0.5, 0.5, 0.0]])
    assert minibatch_advantage(batch, weight_PM)[:, :2].tolist() == [[-1.0, 1.0]]
    assert minibatch_advantage({"advantage": batch["advantage"]}, weight_PM).tolist() == [[1.0, 3.0, 100.0]]
    # Values of 10,000 are multiples of 0.00098: differences of 0.001 between advantages are rounding.
    exact = {"advantage": torch.tensor([[[0.0, 0.001]]]), "value": torch.full((1, 1, 2), 1e4)}
    assert not minibatch_advantage(exact, torch.full((1, 2), 0.5)).any()


@pytest.mark.parametrize("over", ["round", "minibatch", "none"])
def test_the_loss_gets_advantages_of_mean_0_over_what_is_configured(over: str) -> None:
    seen: list[tuple[float, float]] = []

    def loss(log_prob_PM: Tensor, old_PM: Tensor, advantage_PM: Tensor, weight_PM: Tensor, clip: float) -> Tensor:
        mean_P = (advantage_PM * weight_PM).sum(dim=1)
        square_P = (advantage_PM.square() * weight_PM).sum(dim=1)
        seen.append((mean_P.abs().max().item(), (square_P - 1).abs().max().item()))
        return PolicyFunction.surrogate.loss(log_prob_PM, old_PM, advantage_PM, weight_PM, clip)

    config = IPPOConfig(name="ippo", advantage_normalisation=over, epochs=2, minibatches=3)
    trained(config, Surrogate(loss, settings=("clip",)))
    scaled = [mean < 1e-5 and square < 1e-4 for mean, square in seen]
    assert len(scaled) > 5
    assert all(scaled) if over == "minibatch" else not any(scaled)


def test_one_minibatch_is_the_round() -> None:
    once = {"name": "ippo", "epochs": 2, "minibatches": 1}
    one, other = (trained(IPPOConfig(**once, advantage_normalisation=over)) for over in ("round", "minibatch"))
    for name, array in one.state("a").acting.items():
        assert abs(other.state("a").acting[name] - array).max() < 1e-6, name
    given = rounds.inputs(GROUPS, [rounds.trajectory(rounds.DISCRETE, 7)])
    gradients = [
        learner(IPPOConfig(**once, advantage_normalisation=over)).gradients(given) for over in ("round", "minibatch")
    ]
    one_D, other_D = (each.gradients["a"]["policy"] for each in gradients)
    assert abs(one_D - other_D).max() < 1e-6


@pytest.mark.parametrize("old", [True, False])
def test_true_and_false_are_refused(old: bool) -> None:
    with pytest.raises(InvalidSettingsError, match=r"advantage_normalisation: .*'round', 'minibatch' or 'none'"):
        IPPOConfig.model_validate({"name": "ippo", "advantage_normalisation": old})
