"""Stacked nets, heads and optimizer against torch's own modules, distributions, autograd and Adam."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import adam, heads
from marless.learning.nets.layout import Layout, generator
from marless.learning.nets.stacked import StackedMLP

LAYOUT = Layout(7, (16, 12), 3)


def _parameters(layout: Layout, stack: int) -> Tensor:
    return torch.from_numpy(np.stack([layout.initial(generator(i, "net"), 1.0) for i in range(stack)]))


def _inputs(layout: Layout, stack: int, samples: int) -> Tensor:
    x = torch.randn(stack, layout.inputs + 1, samples, generator=torch.Generator().manual_seed(1))
    x[:, -1] = 1.0
    return x


def _oracle(layout: Layout, flat_D: Tensor, x_IM: Tensor, activation: str) -> Tensor:
    hidden = x_IM[:-1].T
    for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
        matrix = flat_D[span].view(shape)
        hidden = torch.nn.functional.linear(hidden, matrix[:, :-1], matrix[:, -1])
        if i < len(layout.shapes) - 1:
            hidden = torch.tanh(hidden) if activation == "tanh" else torch.relu(hidden)
    return hidden.T


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("layout", "stack"), [(LAYOUT, 3), (Layout(4, (8,), 1), 1), (Layout(5, (9,), 1), 4)])
def test_outputs_and_gradients_are_autograds(layout: Layout, stack: int, activation: Literal["tanh", "relu"]) -> None:
    flat_PD, x = _parameters(layout, stack), _inputs(layout, stack, 50)
    net = StackedMLP(layout, flat_PD, activation)
    output = net.forward(x)
    d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    net.backward(d_output)
    for i in range(stack):
        flat_D = flat_PD[i].clone().requires_grad_()
        expected = _oracle(layout, flat_D, x[i], activation)
        torch.testing.assert_close(output[i], expected.detach(), rtol=1e-5, atol=1e-5)
        (gradient,) = torch.autograd.grad(expected, flat_D, d_output[i])
        torch.testing.assert_close(net.gradient_PD[i], gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_gradients_at_inputs_are_autograds_and_train_nothing(activation: Literal["tanh", "relu"]) -> None:
    flat_PD, x = _parameters(LAYOUT, 3), _inputs(LAYOUT, 3, 50)
    net = StackedMLP(LAYOUT, flat_PD, activation)
    output = net.forward(x)
    d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([[0, 1], [6, 2], [3, 4]])
    found = net.input_gradient(d_output, rows)
    for i in range(3):
        inputs = x[i].clone().requires_grad_()
        expected = torch.autograd.grad(_oracle(LAYOUT, flat_PD[i], inputs, activation), inputs, d_output[i])[0]
        torch.testing.assert_close(found[i], expected[rows[i]], rtol=1e-5, atol=1e-5)
    assert not net.gradient_PD.any()


def test_nets_may_share_their_inputs() -> None:
    flat_PD, x = _parameters(LAYOUT, 3), _inputs(LAYOUT, 1, 50)
    d_output = torch.randn(3, 3, 50, generator=torch.Generator().manual_seed(2))
    outcomes = []
    for inputs in (x, x.expand(3, -1, -1).contiguous()):
        net = StackedMLP(LAYOUT, flat_PD, "tanh")
        outcomes.append([net.forward(inputs)])
        net.backward(d_output)
        outcomes[-1].append(net.gradient_PD)
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_evaluate_agrees_with_forward_beyond_one_chunk() -> None:
    flat_PD, x = _parameters(LAYOUT, 2), _inputs(LAYOUT, 2, 2500)
    net = StackedMLP(LAYOUT, flat_PD, "tanh")
    torch.testing.assert_close(net.evaluate(x), net.forward(x))


def test_nets_change_with_the_flat_parameters() -> None:
    flat_PD, x = _parameters(LAYOUT, 2), _inputs(LAYOUT, 2, 3)
    net = StackedMLP(LAYOUT, flat_PD, "tanh")
    flat_PD.zero_()
    assert not net.forward(x).any()


def test_categorical_is_torchs() -> None:
    logits = torch.randn(2, 5, 30, generator=torch.Generator().manual_seed(1)).requires_grad_()
    legal = torch.rand(2, 5, 30, generator=torch.Generator().manual_seed(2)) < 0.7
    action = torch.randint(5, (2, 1, 30), generator=torch.Generator().manual_seed(3))
    legal.scatter_(1, action, True)
    d_log_prob, d_entropy = torch.randn(2, 2, 30, generator=torch.Generator().manual_seed(4))
    head = heads.Categorical()
    log_prob, entropy = (t.clone() for t in head.evaluate(logits.detach(), action, legal))
    gradient = head.gradient(d_log_prob, d_entropy)

    masked = logits.masked_fill(~legal, -1e6).transpose(1, 2)
    oracle = torch.distributions.Categorical(logits=masked)
    torch.testing.assert_close(log_prob, oracle.log_prob(action.squeeze(1)).detach())
    torch.testing.assert_close(entropy, oracle.entropy().detach())
    loss = (oracle.log_prob(action.squeeze(1)) * d_log_prob + oracle.entropy() * d_entropy).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, logits)[0])


def test_gaussian_is_torchs() -> None:
    mean, action = torch.randn(2, 2, 4, 30, generator=torch.Generator().manual_seed(1))
    mean.requires_grad_()
    log_std = torch.randn(2, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    d_log_prob, d_entropy = torch.randn(2, 2, 30, generator=torch.Generator().manual_seed(4))
    d_log_std = torch.empty(2, 4)
    head = heads.Gaussian(log_std.detach(), d_log_std)
    log_prob, entropy = head.evaluate(mean.detach(), action, None)
    gradient = head.gradient(d_log_prob, d_entropy)

    oracle = torch.distributions.Normal(mean, log_std.exp().unsqueeze(2).expand_as(mean))
    oracle_log_prob, oracle_entropy = oracle.log_prob(action).sum(dim=1), oracle.entropy().sum(dim=1)
    torch.testing.assert_close(log_prob, oracle_log_prob.detach())
    torch.testing.assert_close(entropy, oracle_entropy.detach())
    loss = (oracle_log_prob * d_log_prob + oracle_entropy * d_entropy).sum()
    expected_mean, expected_log_std = torch.autograd.grad(loss, (mean, log_std))
    torch.testing.assert_close(gradient, expected_mean)
    torch.testing.assert_close(d_log_std, expected_log_std)


def test_head_of_a_box_reads_the_last_parameters() -> None:
    flat, gradient = torch.arange(6.0).view(1, 6), torch.zeros(1, 6)
    head = heads.head(Box((-1.0, -1.0), (1.0, 1.0)), flat, gradient)
    head.evaluate(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), None)
    head.gradient(torch.ones(1, 1), torch.zeros(1, 1))
    assert gradient.tolist() == [[0.0, 0.0, 0.0, 0.0, -1.0, -1.0]]  # z = 0: ∂log π/∂log σ = −1
    assert isinstance(heads.head(Discrete(3), flat, gradient), heads.Categorical)


def test_adam_is_torchs_also_for_policies_of_different_age() -> None:
    gradients = torch.randn(8, 2, 10, generator=torch.Generator().manual_seed(1))
    flat, first, second, count = torch.ones(2, 10), torch.zeros(2, 10), torch.zeros(2, 10), torch.zeros(2).double()
    oracles = [torch.ones(10, requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.Adam([oracle], lr=0.01, eps=1e-5) for oracle in oracles]

    def ours(rows: slice, steps: range) -> None:
        run = adam.Adam(flat[rows], first[rows], second[rows], count[rows], steps=len(steps), lr=0.01, eps=1e-5)
        for step in steps:
            run.step(gradients[step, rows])

    ours(slice(0, 1), range(3))  # policy 0 is three steps ahead
    ours(slice(0, 2), range(3, 8))
    for i, steps in enumerate((range(8), range(3, 8))):
        for step in steps:
            oracles[i].grad = gradients[step, i]
            optimizers[i].step()
        torch.testing.assert_close(flat[i], oracles[i].detach())
    assert count.tolist() == [8.0, 5.0]


def test_norms_are_clipped_per_policy() -> None:
    gradient = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert adam.clip_norm_(gradient, 1.0).tolist() == pytest.approx([5.0, 0.5, 0.0])
    assert gradient.flatten().tolist() == pytest.approx([0.6, 0.8, 0.3, 0.4, 0.0, 0.0])
