"""Nets with memory against torch's own GRU and autograd, and what they forget."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.learning.nets import kernels
from marless.learning.nets.gru import StackedGRU
from marless.learning.nets.layout import GRULayout, Layout, LSTMLayout, generator, layout
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.stacked import WORKSPACES, StackedMLP, net

LAYOUT = GRULayout(4, (8, 5), 3, free=2)
STEPS, COPIES = 6, 7


def _parameters(shape: GRULayout, stack: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 0.5 * torch.randn(stack, shape.size, generator=torch.Generator().manual_seed(0), dtype=dtype)


def _inputs(shape: GRULayout, stack: int, samples: int = STEPS * COPIES, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.randn(stack, shape.inputs + 1, samples, generator=torch.Generator().manual_seed(1), dtype=dtype)
    x[:, -1] = 1.0
    return x


def _resets(share: float, steps: int = STEPS, copies: int = COPIES) -> Tensor:
    return torch.rand(steps, copies, generator=torch.Generator().manual_seed(2)) < share


def _oracle(
    shape: GRULayout, flat_D: Tensor, x_IM: Tensor, resets: Tensor, activation: str, memory_HB: Tensor | None = None
) -> Tensor:
    """Outputs [K, M] by torch.nn.GRUCell, step by step; with a memory, nothing is reset before the first."""
    *body, memory, output = (flat_D[span].view(s) for span, s in zip(shape.spans, shape.shapes, strict=True))
    x = x_IM[:-1].T
    for matrix in body[:-1]:
        x = torch.nn.functional.linear(x, matrix[:, :-1], matrix[:, -1])
        x = torch.tanh(x) if activation == "tanh" else torch.relu(x)
    cell = torch.nn.GRUCell(x.shape[1], shape.units, dtype=x.dtype)
    weights = {"weight_ih": body[-1][:, :-1], "bias_ih": body[-1][:, -1]}
    weights |= {"weight_hh": memory[:, :-1], "bias_hh": memory[:, -1]}
    hidden = torch.zeros(resets.shape[1], shape.units, dtype=x.dtype) if memory_HB is None else memory_HB.T
    seen = []
    for t, (x_BI, resets_B) in enumerate(zip(x.view(*resets.shape, -1), resets, strict=True)):
        hidden = hidden.masked_fill(resets_B[:, None], 0.0) if t else hidden
        hidden = torch.func.functional_call(cell, weights, (x_BI, hidden))  # type: ignore[no-untyped-call]  # torch's
        seen.append(hidden)
    return torch.nn.functional.linear(torch.cat(seen), output[:, :-1], output[:, -1]).T


@pytest.mark.parametrize("remembered", [False, True], ids=["empty", "remembered"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    ("shape", "stack", "steps", "share"),
    [
        (LAYOUT, 2, STEPS, 0.3),
        (LAYOUT, 1, STEPS, 0.0),
        (GRULayout(4, (5,), 1), 3, STEPS, 0.3),
        (GRULayout(3, (6, 4, 5), 2), 2, 1, 0.5),
    ],
)
def test_outputs_and_gradients_are_autograds(
    shape: GRULayout, stack: int, steps: int, share: float, activation: Literal["tanh", "relu"], remembered: bool
) -> None:
    resets = _resets(share, steps)
    flat_PD, x = _parameters(shape, stack), _inputs(shape, stack, resets.numel())
    nets = net(shape, flat_PD, activation)
    memory = torch.randn(stack, shape.units, COPIES, generator=torch.Generator().manual_seed(4), dtype=x.dtype)
    output = nets.forward(x, resets, memory if remembered else None)
    d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=output.dtype)
    nets.backward(d_output)
    for i in range(stack):
        flat_D = flat_PD[i].clone().requires_grad_()
        expected = _oracle(shape, flat_D, x[i], resets, activation, memory[i] if remembered else None)
        torch.testing.assert_close(output[i], expected.detach(), rtol=1e-10, atol=1e-12)
        (gradient,) = torch.autograd.grad(expected, flat_D, d_output[i])
        torch.testing.assert_close(nets.gradient_PD[i], gradient, rtol=1e-9, atol=1e-12)


def test_nets_of_a_stack_may_see_different_copies() -> None:
    resets_PTB = torch.stack([_resets(0.3), _resets(0.3).flip(0)])
    flat_PD, x = _parameters(LAYOUT, 2), _inputs(LAYOUT, 2)
    both = net(LAYOUT, flat_PD, "tanh")
    output = both.forward(x, resets_PTB)
    both.backward(output)
    for i in range(2):
        alone = net(LAYOUT, flat_PD[i : i + 1], "tanh")
        torch.testing.assert_close(output[i : i + 1], alone.forward(x[i : i + 1], resets_PTB[i]))
        alone.backward(output[i : i + 1])
        torch.testing.assert_close(both.gradient_PD[i : i + 1], alone.gradient_PD)


def test_weights_are_torchs_row_by_row() -> None:
    shape, dtype = GRULayout(4, (5,), 5), torch.float64
    flat_PD, x = _parameters(shape, 1), _inputs(shape, 1)
    flat_PD[:, shape.spans[-1]] = torch.eye(5, 6, dtype=dtype).flatten()  # the output layer shows the memory
    arrays = shape.to_arrays("policy", flat_PD[0].float().numpy())
    gru = torch.nn.GRU(4, 5)
    ours = [arrays[f"policy.0{part}"] for part in (".weight", ".memory.weight", ".bias", ".memory.bias")]
    for theirs, array in zip(gru.parameters(), ours, strict=True):
        theirs.data = torch.from_numpy(array)
    seen, _ = gru(x[0, :-1].T.float().view(STEPS, COPIES, 4))
    found = net(shape, flat_PD.float(), "tanh").forward(x.float(), _resets(0.0))
    torch.testing.assert_close(found[0].T.view(STEPS, COPIES, 5), seen.detach())


def test_an_lstms_weights_are_torchs_row_by_row_and_so_are_its_gradients() -> None:
    shape = LSTMLayout(4, (5,), 5)
    flat_PD, x = _parameters(shape, 1).float(), _inputs(shape, 1).float()
    flat_PD[:, shape.spans[-1]] = torch.eye(5, 6).flatten()  # the output layer shows what the units put out
    arrays = shape.to_arrays("policy", flat_PD[0].numpy())
    lstm = torch.nn.LSTM(4, 5)
    parts = (".weight", ".memory.weight", ".bias", ".memory.bias")
    for theirs, part in zip(lstm.parameters(), parts, strict=True):
        theirs.data = torch.from_numpy(arrays[f"policy.0{part}"])
    memory_1HB = torch.randn(1, 10, COPIES, generator=torch.Generator().manual_seed(2))
    before = [each.transpose(1, 2).contiguous() for each in memory_1HB.split(5, dim=1)]
    seen, _ = lstm(x[0, :-1].T.view(STEPS, COPIES, 4), before)
    nets = net(shape, flat_PD, "tanh")
    found = nets.forward(x, _resets(0.0), memory_1HB)
    torch.testing.assert_close(found[0].T.view(STEPS, COPIES, 5), seen.detach())
    along = torch.cos(torch.arange(float(found.numel()))).view(found.shape)
    (seen * along[0].T.view(STEPS, COPIES, 5)).sum().backward()
    nets.backward(along)
    gradients = shape.to_arrays("policy", nets.gradient_PD[0].numpy())
    for theirs, part in zip(lstm.parameters(), parts, strict=True):
        torch.testing.assert_close(torch.from_numpy(gradients[f"policy.0{part}"]), theirs.grad)


def test_an_lstm_keeps_its_cells_at_first() -> None:
    """The forget gate's bias is 1, all else is as in other nets."""
    shape = LSTMLayout(4, (6, 5), 2)
    arrays = shape.to_arrays("policy", shape.initial(generator(1, "net"), 1.0))
    np.testing.assert_array_equal(arrays["policy.1.bias"], np.repeat([0, 1, 0, 0], 5))
    for weight in (arrays["policy.1.weight"], arrays["policy.1.memory.weight"]):
        for gate in np.split(weight, 4):
            np.testing.assert_allclose(gate @ gate.T, np.eye(5), atol=1e-6)


def test_nothing_is_remembered_across_a_reset_and_no_gradient_flows_back() -> None:
    shape = LAYOUT
    flat_PD, x = _parameters(shape, 2), _inputs(shape, 2)
    resets = torch.zeros(STEPS, COPIES, dtype=torch.bool)
    resets[3] = True
    nets = net(shape, flat_PD, "tanh")
    output, other = nets.forward(x, resets).clone(), x.clone()
    other[:, :-1, : 3 * COPIES] += 1.0
    changed = nets.forward(other, resets)
    torch.testing.assert_close(changed[:, :, 3 * COPIES :], output[:, :, 3 * COPIES :], rtol=0, atol=0)
    assert not torch.equal(changed[:, :, : 3 * COPIES], output[:, :, : 3 * COPIES])
    d_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=output.dtype)
    d_output[:, :, : 3 * COPIES] = 0.0
    nets.backward(d_output)
    alone = net(shape, flat_PD, "tanh")
    alone.forward(x[:, :, 3 * COPIES :], resets[3:])
    alone.backward(d_output[:, :, 3 * COPIES :])
    torch.testing.assert_close(nets.gradient_PD, alone.gradient_PD)


def test_memory_is_empty_at_the_first_step_whatever_the_resets_say() -> None:
    nets, x = net(LAYOUT, _parameters(LAYOUT, 2), "tanh"), _inputs(LAYOUT, 2)
    first = nets.forward(x, _resets(0.0)).clone()
    resets = _resets(0.0)
    resets[0] = True
    assert torch.equal(nets.forward(x, resets), first)


def test_a_memory_is_used_at_its_own_first_step_only() -> None:
    nets, x, resets = net(LAYOUT, _parameters(LAYOUT, 2), "tanh"), _inputs(LAYOUT, 2), _resets(0.0)
    plain = nets.forward(x, resets).clone()
    remembered = nets.forward(x, resets, torch.ones(2, 5, COPIES, dtype=x.dtype)).clone()
    assert (plain != remembered).all(dim=1).all()
    assert torch.equal(nets.forward(x, resets), plain)
    resets[2] = True
    parted = nets.forward(x, resets, torch.ones(2, 5, COPIES, dtype=x.dtype)).clone()
    assert torch.equal(parted[:, :, : 2 * COPIES], remembered[:, :, : 2 * COPIES])
    assert torch.equal(parted[:, :, 2 * COPIES :], nets.forward(x, resets)[:, :, 2 * COPIES :])


def test_evaluate_is_forward_and_its_result_its_own() -> None:
    nets, x, resets = net(LAYOUT, _parameters(LAYOUT, 2), "tanh"), _inputs(LAYOUT, 2), _resets(0.3)
    found = nets.evaluate(x, resets)
    kept = found.clone()
    assert torch.equal(nets.forward(x, resets), kept)
    nets.forward(-x, resets)
    assert torch.equal(found, kept)


def test_resets_must_fit_the_samples() -> None:
    nets, x = net(LAYOUT, _parameters(LAYOUT, 1), "tanh"), _inputs(LAYOUT, 1)
    with pytest.raises(ValueError, match=r"resets \[T, B\] for 42 samples T·B, got none"):
        nets.forward(x)
    with pytest.raises(ValueError, match=r"got \[6, 6\]"):
        nets.forward(x, _resets(0.0, 6, 6))


def test_episodes_of_many_lengths_keep_a_bounded_number_of_buffers() -> None:
    flat_PD = _parameters(LAYOUT, 1)
    nets = StackedGRU(LAYOUT, flat_PD, "tanh")
    perceptron = StackedMLP(LAYOUT.body, flat_PD[:, : LAYOUT.body.size], "tanh")
    expected = {}
    for steps in [*range(1, 2 * WORKSPACES), 1]:
        x, resets = _inputs(LAYOUT, 1, steps * COPIES), _resets(0.2, steps)
        output = nets.forward(x, resets)
        nets.backward(torch.ones_like(output))
        perceptron.forward(x)
        found = (output.clone(), nets.gradient_PD.clone())
        for one, other in zip(found, expected.setdefault(steps, found), strict=True):
            assert torch.equal(one, other)
    assert len(nets._workspaces) == len(perceptron._workspaces) == WORKSPACES


def test_a_model_says_which_layout_and_the_layout_which_net() -> None:
    plain, memory = (ModelSpec.model_validate({"hidden": (8, 5), "recurrent": r}) for r in ("none", "gru"))
    assert layout(4, plain, 3, 2) == Layout(4, (8, 5), 3, 2)
    assert layout(4, memory, 3, 2) == LAYOUT
    assert isinstance(net(Layout(4, (8,), 3), torch.zeros(1, 67), "relu"), StackedMLP)
    assert isinstance(net(LAYOUT, torch.zeros(1, LAYOUT.size), "relu"), StackedGRU)


def test_layout_sizes_names_and_first_weights() -> None:
    assert LAYOUT.shapes == ((8, 5), (15, 9), (15, 6), (3, 6))
    assert LAYOUT.size == 8 * 5 + 15 * 9 + 15 * 6 + 3 * 6 + 2
    flat_D = LAYOUT.initial(generator(1, "a"), output_gain=0.01)
    arrays = LAYOUT.to_arrays("critic", flat_D)
    assert [name for name in arrays if name.endswith("weight")] == [
        "critic.0.weight",
        "critic.1.weight",
        "critic.1.memory.weight",
        "critic.2.weight",
    ]
    np.testing.assert_array_equal(LAYOUT.from_arrays("critic", arrays), flat_D)
    assert not any(array.any() for name, array in arrays.items() if not name.endswith("weight"))
    for gate in np.split(arrays["critic.1.memory.weight"], 3):
        np.testing.assert_allclose(gate @ gate.T, np.eye(5), atol=1e-5)
    for gate in np.split(arrays["critic.1.weight"], 3):
        np.testing.assert_allclose(gate @ gate.T, np.eye(5), atol=1e-5)
    first, last = arrays["critic.0.weight"], arrays["critic.2.weight"]
    np.testing.assert_allclose(first.T @ first, 2 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(last @ last.T, 1e-4 * np.eye(3), atol=1e-9)


def test_sigmoid_is_torchs_also_far_out() -> None:
    x = torch.tensor([-200.0, -20.0, -1.0, 0.0, 0.5, 30.0, 200.0])
    expected = torch.sigmoid(x)
    kernels.sigmoid_(x)
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-7)
