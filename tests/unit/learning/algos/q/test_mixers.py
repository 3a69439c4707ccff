"""What mixers make of agents' values: by hand, against autograd, and never less for more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from marless.core.errors import CorruptError
from marless.learning.algos.q.functions import MonotoneMixer, Sum
from marless.learning.nets.layout import MixingLayout
from marless.learning.nets.learner_states import StateCodec

LAYOUT = MixingLayout(inputs=4, agents=3, embed=5, hypernet=6)


def flat(seed: int) -> Tensor:
    return torch.tensor(LAYOUT.initial(np.random.default_rng(seed), 1.0)).unsqueeze(0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def states(samples: int, seed: int = 3) -> Tensor:
    return torch.cat([normal(1, LAYOUT.inputs, samples, seed=seed), torch.ones(1, 1, samples)], dim=1)


def mlp(layout, flat_D: Tensor, x: Tensor) -> Tensor:
    for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
        x = flat_D[span].view(shape) @ x
        if i < len(layout.shapes) - 1:
            x = torch.cat([torch.relu(x), torch.ones(1, x.shape[1])])
    return x


def oracle(flat_D: Tensor, q_NM: Tensor, state_1SM: Tensor) -> Tensor:
    """Rashid et al. 2018, figure 2, written down again."""
    made = {name: mlp(net, flat_D[LAYOUT.spans[name]], state_1SM[0]) for name, net in LAYOUT.nets.items()}
    weight1 = made["weight1"].view(LAYOUT.agents, LAYOUT.embed, -1).abs()
    hidden = functional.elu(torch.einsum("nm,nem->em", q_NM, weight1) + made["bias1"])
    return (hidden * made["weight2"].abs()).sum(0, keepdim=True) + made["bias2"]


def mixer(seed: int = 1) -> MonotoneMixer:
    return MonotoneMixer({"flat": flat(seed), "target": flat(seed + 1)}, LAYOUT)


def test_a_sum_is_a_sum():
    found = Sum()
    assert found.mix(torch.tensor([[1.0, 2.0], [3.0, -4.0]]), None).tolist() == [[4.0, -2.0]]
    assert found.gradient(torch.tensor([[0.5, -1.0]])).tolist() == [[0.5, -1.0], [0.5, -1.0]]
    assert found.target(torch.tensor([[1.0], [3.0]]), None).tolist() == [[4.0]]


def test_one_agent_and_one_unit_by_hand():
    """W₁ = −2, b₁ = 1, w₂ = 3, b₂ = −1 whatever the state: q = 2 gives 3·(2·2 + 1) − 1 = 14, slope 6; q = −2 gives
    3·(e⁻³ − 1) − 1, slope 6·e⁻³."""
    layout = MixingLayout(inputs=1, agents=1, embed=1, hypernet=1)
    flat_D = torch.zeros(layout.size)
    for name, constant in {"weight1": -2.0, "bias1": 1.0, "weight2": 3.0, "bias2": -1.0}.items():
        flat_D[layout.spans[name].stop - 1] = constant  # the last bias of each
    found = MonotoneMixer({"flat": flat_D.unsqueeze(0), "target": flat_D.unsqueeze(0)}, layout)
    state = torch.tensor([[[0.3, 0.3], [1.0, 1.0]]])
    value = found.mix(torch.tensor([[2.0, -2.0]]), state)
    torch.testing.assert_close(value, torch.tensor([[14.0, 3 * (np.exp(-3) - 1) - 1]], dtype=torch.float32))
    slope = found.gradient(torch.ones(1, 2))
    torch.testing.assert_close(slope, torch.tensor([[6.0, 6 * np.exp(-3)]], dtype=torch.float32))


def test_values_and_gradients_are_those_of_autograd():
    found, q, state, d_team = mixer(), normal(3, 11), states(11), normal(1, 11, seed=9)
    weights = flat(1)[0].requires_grad_()
    q_grad = q.clone().requires_grad_()
    expected = oracle(weights, q_grad, state)
    torch.testing.assert_close(found.mix(q, state), expected.detach())
    expected.backward(d_team)
    torch.testing.assert_close(found.gradient(d_team), q_grad.grad)
    torch.testing.assert_close(found.gradient_PD[0], weights.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.target(q, state), oracle(flat(2)[0], q, state))


def test_asking_the_target_mixer_does_not_disturb_the_gradient():
    found, q, state = mixer(), normal(3, 11), states(11)
    found.mix(q, state)
    alone = found.gradient(torch.ones(1, 11)).clone()
    found.target(normal(3, 11, seed=5), states(11, seed=6))
    found.mix(q, state)
    assert torch.equal(found.gradient(torch.ones(1, 11)), alone)


@pytest.mark.parametrize("seed", range(5))
def test_the_team_never_loses_by_what_an_agent_gains(seed):
    found, q, state = mixer(seed), normal(3, 50, seed=seed), states(50, seed=seed + 9)
    before = found.mix(q, state).clone()
    for agent in range(3):
        better = q.clone()
        better[agent] += 0.7
        assert (found.mix(better, state) >= before).all()


def test_a_state_that_is_missing_is_missed():
    with pytest.raises(ValueError, match="needs the global state"):
        mixer().mix(normal(3, 4), None)


def test_parameters_have_names_and_come_back():
    codec = StateCodec("mixer", LAYOUT, output_gain=0.3, acts=False, target=True)
    row = codec.fresh(np.random.default_rng(4))
    acting, learning = codec.write(row)
    assert not acting
    assert learning["mixer.weight1.1.weight"].shape == (15, 6)
    assert learning["mixer.bias1.0.weight"].shape == (5, 4)
    assert learning["mixer.bias2.1.bias"].shape == (1,)
    assert sum(x.size for name, x in learning.items() if name.endswith(("weight", "bias"))) == LAYOUT.size
    again = codec.read(acting, learning)
    assert all(torch.equal(again[key], row[key]) for key in row)
    del learning["mixer.bias1.0.bias"]
    with pytest.raises(CorruptError, match=r"mixer\.bias1\.0\.bias is missing"):
        codec.read(acting, learning)
