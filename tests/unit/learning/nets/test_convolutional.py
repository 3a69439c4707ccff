"""Nets of images: the contract, torch's own modules with the same weights, what they refuse, and what they learn."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from marless.core.errors import SpecError
from marless.learning.envs.base import FloatArray
from marless.learning.nets import acting_nets, compiled_images, stacked, training_images, unrolled
from marless.learning.nets.contract import check_net
from marless.learning.nets.kinds import IMPALA, NATURE
from marless.learning.nets.layout import NetLayout, generator, layout_of
from marless.learning.nets.net_kind import InputShape, Layer, Window


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        (NATURE, InputShape(36 * 37, (1, 36, 37))),
        (NATURE, InputShape(2 * 44 * 36 + 3, (2, 44, 36))),
        (IMPALA, InputShape(5 * 6, (1, 5, 6))),
        (IMPALA, InputShape(2 * 9 * 3 + 3, (2, 9, 3))),
    ],
)
def test_they_keep_the_contract(name, inputs):
    check_net(name, hidden=(5,), inputs=(inputs,))


def _numbers(layout: NetLayout, seed: int) -> Tensor:
    """Weights and biases [1, D], none of them 0."""
    flat_D = layout.initial(generator(seed, "net"), 1.0)
    return torch.tensor(flat_D + 0.02 * generator(seed, "noise").standard_normal(layout.size, np.float32))[None]


def _fill(module: nn.Module, matrix_OI: Tensor) -> nn.Module:
    """The module with a layer's weights; those of a convolution are in torch's order (channel, row, column)."""
    weight, bias = matrix_OI[:, :-1], matrix_OI[:, -1]
    with torch.no_grad():
        if isinstance(module, nn.Conv2d):
            size = module.kernel_size[0]
            weight = weight.reshape(len(weight), size, size, module.in_channels).permute(0, 3, 1, 2)
        module.weight.copy_(weight)
        module.bias.copy_(bias)
    return module


class _Nature(nn.Module):
    """As torch's users write it; the last image is flattened in our order, so that dense weights are the same."""

    def __init__(self, channels: int, beside: int, matrices: list[Tensor]) -> None:
        super().__init__()
        convolutions = nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        self.convolutions = nn.ModuleList(map(_fill, convolutions, matrices))
        dense = [nn.Linear(m.shape[1] - 1, m.shape[0]) for m in matrices[3:]]
        self.dense = nn.ModuleList(map(_fill, dense, matrices[3:]))

    def forward(self, image: Tensor, beside: Tensor) -> Tensor:
        for each in self.convolutions:
            image = torch.relu(each(image))
        first, last = self.dense
        return last(torch.relu(first(torch.cat([image.permute(0, 2, 3, 1).flatten(1), beside], 1))))


class _Residual(nn.Module):
    def __init__(self, channels: int, matrices: list[Tensor]) -> None:
        super().__init__()
        self.both = nn.ModuleList(_fill(nn.Conv2d(channels, channels, 3, padding=1), m) for m in matrices)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.both
        return x + other(torch.relu(one(torch.relu(x))))


class _Impala(nn.Module):
    def __init__(self, channels: int, beside: int, matrices: list[Tensor]) -> None:
        super().__init__()
        made: list[nn.Module] = []
        for i, filters in enumerate((16, 32, 32)):
            first, *blocks = matrices[5 * i : 5 * i + 5]
            made += [_fill(nn.Conv2d(channels, filters, 3, padding=1), first), nn.MaxPool2d(3, 2, padding=1)]
            made += [_Residual(filters, blocks[:2]), _Residual(filters, blocks[2:])]
            channels = filters
        self.sections = nn.Sequential(*made, nn.ReLU())
        dense = [nn.Linear(m.shape[1] - 1, m.shape[0]) for m in matrices[15:]]
        self.dense = nn.ModuleList(map(_fill, dense, matrices[15:]))

    def forward(self, image: Tensor, beside: Tensor) -> Tensor:
        first, last = self.dense
        flat = self.sections(image).permute(0, 2, 3, 1).flatten(1)
        return last(torch.relu(first(torch.cat([flat, beside], 1))))


@pytest.mark.parametrize(
    ("name", "image", "shapes"),
    [
        # The sizes of Mnih et al. 2015: 20 × 20, 9 × 9 and 7 × 7 places.
        (NATURE, (4, 84, 84), [(32, 256), (64, 512), (64, 576), (512, 3136 + 2), (6, 512)]),
        (IMPALA, (3, 11, 8), [(16, 27), *[(16, 144)] * 4, *[(32, 144), *[(32, 288)] * 4], *[(32, 288)] * 5]),
    ],
)
def test_their_outputs_and_gradients_are_those_of_torchs_modules(name, image, shapes):
    beside, hidden = 2, {NATURE: 512, IMPALA: 7}[name]
    layout = layout_of(name, InputShape(int(np.prod(image)) + beside, image), (hidden,), 6)
    assert [(o, i - 1) for o, i in layout.shapes][: len(shapes)] == shapes
    flat_1D = _numbers(layout, 1)
    matrices = [each[0] for each in stacked.matrices(layout, flat_1D)]
    module = {NATURE: _Nature, IMPALA: _Impala}[name](image[0], beside, matrices)
    x = torch.rand(3, layout.inputs, generator=torch.Generator().manual_seed(0))
    expected = module(x[:, :-beside].view(3, *image), x[:, -beside:])
    net = stacked.net(layout, flat_1D, "relu")
    found_1KM = net.forward(torch.cat([x, torch.ones(3, 1)], 1).T[None])
    torch.testing.assert_close(found_1KM[0].T, expected, rtol=1e-4, atol=1e-5)
    along = torch.cos(torch.arange(18.0)).view(3, 6)
    (expected * along).sum().backward()
    net.backward(along.T[None].contiguous())
    found = [each[0] for each in stacked.matrices(layout, net.gradient_PD)]
    layers = [each for each in module.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    for gradient_OI, layer in zip(found, layers, strict=True):
        weight = layer.weight.grad
        weight = weight if weight.dim() == 2 else weight.permute(0, 2, 3, 1).flatten(1)
        torch.testing.assert_close(gradient_OI[:, :-1], weight, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(gradient_OI[:, -1], layer.bias.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("samples", [128, 300])
def test_parts_of_a_minibatch_add_up_to_the_whole(samples, monkeypatch):
    layout = layout_of(IMPALA, InputShape(3 * 11 * 8, (3, 11, 8)), (7,), 6)
    rng = torch.Generator().manual_seed(0)
    x, d = torch.rand(2, layout.inputs + 1, samples, generator=rng), torch.randn(2, 6, samples, generator=rng)
    flat_PD = torch.cat([_numbers(layout, seed) for seed in (1, 2)])
    found = []
    for at_once in (unrolled._SAMPLES_OF_IMAGES, 1000):
        monkeypatch.setattr(unrolled, "_SAMPLES_OF_IMAGES", at_once)
        net = stacked.net(layout, flat_PD, "relu")
        output = net.forward(x)
        assert len(net._parts) == -(-samples // at_once)
        net.backward(d)
        found.append((output, net.gradient_PD))
    for ours, whole in zip(*found, strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-3)


THREADS = """
import hashlib, sys
import numpy as np
import torch
from marless.learning.nets import kernels, stacked
from marless.learning.nets.layout import layout_of
from marless.learning.nets.net_kind import InputShape, Layer, Window

torch.set_num_threads(int(sys.argv[1]))
kernels.compute_side_by_side()
layout = layout_of("nature", InputShape(4 * 84 * 84, (4, 84, 84)), (32,), 7)
flat_1D = torch.from_numpy(layout.initial(np.random.default_rng(0), 1.0))[None]
rng = torch.Generator().manual_seed(0)
x, d = torch.rand(1, 256, layout.inputs + 1, generator=rng), torch.randn(1, 7, 256, generator=rng)
net = stacked.net(layout, flat_1D, "relu")
for _ in range(2):
    output = net.forward(x.transpose(1, 2))
    net.backward(d)
print(hashlib.sha256(output.numpy().tobytes() + net.gradient_PD.numpy().tobytes()).hexdigest())
"""


def test_weights_do_not_depend_on_the_number_of_threads():
    """Nor on OMP_NUM_THREADS, which a new thread would take for its own."""
    found = [
        subprocess.run(
            [sys.executable, "-c", THREADS, threads],
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert found[0] == found[1] != ""


def test_what_they_cannot_read_is_refused_in_one_sentence():
    with pytest.raises(
        SpecError, match=r"net nature reads images, and these inputs are a vector of 18 numbers; choose"
    ):
        layout_of(NATURE, 18, (8,), 2)
    with pytest.raises(SpecError, match=r"at least 36 × 36 pixels, and this one has 40 × 35; choose model.net: impala"):
        layout_of(NATURE, InputShape(40 * 35, (1, 40, 35)), (8,), 2)
    assert layout_of(IMPALA, InputShape(1, (1, 1, 1)), (8,), 2).size


def test_the_gradient_at_pixels_that_are_not_followed_is_refused_and_not_zero():
    layout = layout_of(NATURE, InputShape(3 * 36 * 36, (3, 36, 36)), (8,), 2)
    net = unrolled.Unrolled(layout, torch.tensor(layout.initial(np.random.default_rng(0), 1.0))[None], "relu")
    output = net.forward(torch.rand(1, layout.inputs + 1, 2))
    with pytest.raises(RuntimeError, match="not have been used"):
        net.input_gradient(torch.ones_like(output), torch.zeros(1, 1, dtype=torch.int64))


@pytest.mark.skipif(compiled_images.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("name", "image", "hidden"), [(NATURE, (4, 84, 60), (40, 17)), (IMPALA, (3, 12, 9), (6,))])
def test_compiled_steps_of_actors_are_those_of_numpy(monkeypatch, name, image, hidden, shared):
    agents, copies, beside = 2, 7, 3
    layout = layout_of(name, InputShape(int(np.prod(image)) + beside, image), hidden, 5)
    owners = [layout.to_arrays("policy", _numbers(layout, n)[0].numpy()) for n in range(1 if shared else agents)]
    x = generator(2, "x").standard_normal((agents, layout.inputs, copies), np.float32)

    def acted(copies: slice) -> FloatArray:
        given = {"kind": name, "inputs": layout.input_shape, "outputs": 5, "free": 0, "hidden": hidden}
        net, _ = acting_nets.stacked(owners, activation="relu", **given)
        assert isinstance(net, acting_nets.AnyKind) == (compiled_images.library() is None)
        net.allocate(agents, x[:, :, copies].shape[2])[:, :-1] = x[:, :, copies]
        return net.output()

    compiled = acted(slice(None))
    assert all(np.array_equal(acted(slice(n, n + 1)), compiled[:, :, n : n + 1]) for n in range(copies))
    monkeypatch.setattr(compiled_images, "library", lambda: None)
    np.testing.assert_allclose(compiled, acted(slice(None)), rtol=0, atol=2e-6 * np.abs(compiled).max())


@pytest.mark.skipif(compiled_images.library() is None, reason="there is no C compiler")
@pytest.mark.parametrize("channels_first", [False, True])
def test_compiled_gradients_of_convolutions_are_those_of_torch(channels_first):
    window, generator_ = Window(4, 2), torch.Generator().manual_seed(0)
    matrix_1OI = torch.randn(1, 64, window.area * 3 + 1, generator=generator_)
    images = torch.randn(1, 5, 3, 11, 9, generator=generator_).permute(0, 1, 3, 4, 2)
    images = images if channels_first else images.contiguous()
    found = []
    for once in (True, False):
        leaves = [each.detach().requires_grad_() for each in (matrix_1OI, images)]
        made = training_images.convolve(Layer(leaves[0]), leaves[1], window, once=once)
        assert made.shape == (1, 5, 4, 3, 64)
        found.append(torch.autograd.grad(torch.sin(made).sum(), leaves))
    for compiled, expected in zip(*found, strict=True):
        torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-4)
