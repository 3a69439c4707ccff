"""Nets of any kind in torch, by the kind's own definition, step by step; autograd finds the gradients.

Shapes: P nets, D parameters, I inputs + 1, H units of memory, K outputs, T steps, B copies, M = T·B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d

from marless.learning.nets.kernels import activation as activation_of
from marless.learning.nets.kinds import kind_of
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.module_layout import ModuleLayout
from marless.learning.nets.net_kind import InputShape, Layer, Ops, Window
from marless.learning.nets.stacked import matrices

_CHUNK = 4096  # samples per pass of `evaluate`: without a graph, what limits it is memory
_SAMPLES_OF_IMAGES = 128
"""Samples of a part: with images, parts are computed on several threads. Their number does not depend on that of the
threads, so that sums of gradients do not either. With smaller ones, a single thread takes a tenth longer.
"""
_PIXELS = 16
_GivenT = TypeVar("_GivenT")
_FoundT = TypeVar("_FoundT")


@dataclass(frozen=True, eq=False)
class _Part:
    """Outputs of some samples, and what they were computed of, for autograd."""

    leaf_PD: Tensor  # noqa: N815  # a shape suffix
    input_PIM: Tensor  # noqa: N815
    output_PKM: Tensor  # noqa: N815


class Unrolled:
    """P nets; see `nets.stacked.Net`. `forward` raises ValueError if nets with memory get no `resets`."""

    def __init__(self, layout: NetLayout, flat_PD: Tensor, activation: str) -> None:
        """Make the nets; raises SpecError for an unknown activation."""
        activation_of(activation)
        self.layout = layout
        self.activation = activation
        self.gradient_PD = torch.zeros_like(flat_PD)
        self._flat_PD = flat_PD
        self._parts: list[_Part] = []

    @property
    def output_layer(self) -> Tensor:
        return matrices(self.layout, self._flat_PD)[-1]

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        whole_PIM = input_PIM.expand(len(self._flat_PD), -1, -1).detach()
        # Samples of one episode stay together, and without images a graph is computed sooner than threads begin.
        apart = self.layout.image is not None and not self.layout.memory
        pieces = torch.split(whole_PIM, _SAMPLES_OF_IMAGES, dim=2) if apart else (whole_PIM,)

        def compute(piece_PIM: Tensor) -> _Part:
            # `detach` copies nothing: the leaf is the present weights, and the caller's tensor stays out of the graph.
            leaf_PD, input_PIM = self._flat_PD.detach().requires_grad_(), piece_PIM.detach().requires_grad_()
            output_PKM = outputs(self.layout, leaf_PD, self.activation, input_PIM, resets, memory)
            return _Part(leaf_PD, input_PIM, output_PKM)

        self._parts = self._each(compute, pieces)
        return torch.cat([part.output_PKM.detach() for part in self._parts], dim=2)

    def backward(self, d_output_PKM: Tensor) -> None:
        """See `Net`. It can be called once after each `forward`, whose graph is freed."""
        found = self._pulled_back(d_output_PKM, lambda part: part.leaf_PD)
        total_PD = sum(found[1:], found[0])  # in the order of the parts, whoever ends first
        written = self.layout.size - self.layout.free
        self.gradient_PD[:, :written] = total_PD[:, :written]

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        gradient_PIM = torch.cat(self._pulled_back(d_output_PKM, lambda part: part.input_PIM), dim=2)
        return gradient_PIM.gather(1, rows_PR.unsqueeze(2).expand(-1, -1, gradient_PIM.shape[2]))

    def _pulled_back(self, d_output_PKM: Tensor, leaf: Callable[[_Part], Tensor]) -> list[Tensor]:
        """The gradient at a leaf of each part."""
        pieces = torch.split(d_output_PKM, [part.output_PKM.shape[2] for part in self._parts], dim=2)

        def pull(given: tuple[_Part, Tensor]) -> Tensor:
            part, d_PKM = given
            (found,) = pulled_back(d_PKM, part.output_PKM, leaf(part))
            return found

        return self._each(pull, list(zip(self._parts, pieces, strict=True)))

    def _each(self, compute: Callable[[_GivenT], _FoundT], given: Sequence[_GivenT]) -> list[_FoundT]:
        """What is computed of each; of several, on as many threads as functions of an update have."""
        threads = min(len(given), torch.get_num_interop_threads())
        if threads < 2 or self._flat_PD.device.type != "cpu":
            return [compute(each) for each in given]
        # A thread whose first operation is a convolution's gradient would compute that on OMP_NUM_THREADS threads, and
        # add up in another order, unless it is told how many it has.
        each_has = torch.get_num_threads()
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(each_has,)) as pool:
            return list(pool.map(compute, given))

    def evaluate(self, input_PIS: Tensor, resets: Tensor | None = None) -> Tensor:
        whole = resets is not None and self.layout.memory > 0  # samples of one episode stay together
        at_once = _SAMPLES_OF_IMAGES if self.layout.image else _CHUNK

        def compute(piece_PIS: Tensor) -> Tensor:
            with torch.no_grad():  # here, because each thread has this state of its own
                return outputs(self.layout, self._flat_PD, self.activation, piece_PIS, resets)

        pieces = (input_PIS,) if whole else torch.split(input_PIS, at_once, dim=2)
        return torch.cat(self._each(compute, pieces) if self.layout.image else list(map(compute, pieces)), dim=2)


def outputs(
    layout: NetLayout,
    flat_PD: Tensor,
    activation: str,
    input_PIM: Tensor,
    resets: Tensor | None = None,
    memory: Tensor | None = None,
) -> Tensor:
    """Outputs [P, K, M] as those of `Net.forward`, by operations that autograd can differentiate any number of times;
    an input [1, I, M] is that of all nets.

    Raises ValueError if a net with memory gets no `resets`.
    """
    if isinstance(layout, ModuleLayout):
        # Imported here: torch.func takes time to import, and few jobs have modules.
        from marless.learning.nets.modules import outputs_of_module

        return outputs_of_module(layout, flat_PD, input_PIM)
    kind, ops = kind_of(layout.kind), torch_ops(activation, layout.input_shape)
    layers = [Layer(matrix) for matrix in matrices(layout, flat_PD)]
    x_PIM = input_PIM[:, :-1].expand(len(flat_PD), -1, -1)
    if not layout.memory:
        found_PKM, _ = kind.step(ops, layers, x_PIM, x_PIM.new_zeros(len(x_PIM), 0, x_PIM.shape[2]))
        return _tensor(found_PKM)
    if resets is None:
        raise ValueError("a net with memory depends on where it forgets: resets are missing")
    keep = (~resets).to(flat_PD.dtype)
    keep_PTB = keep if keep.dim() == 3 else keep.unsqueeze(0)
    memory_PHB = x_PIM.new_zeros(len(x_PIM), layout.memory, keep.shape[-1]) if memory is None else memory
    found = []
    for t, x_PIB in enumerate(x_PIM.reshape(*x_PIM.shape[:2], *keep.shape[-2:]).unbind(2)):
        kept_PHB = memory_PHB * keep_PTB[:, t].unsqueeze(1) if t else memory_PHB
        output_PKB, memory_PHB = kind.step(ops, layers, x_PIB, kept_PHB)
        found.append(_tensor(output_PKB))
    return torch.cat(found, dim=2)


def pulled_back(
    at_output: Tensor, output: Tensor, leaf: Tensor, *, create_graph: bool = False, retain_graph: bool | None = None
) -> tuple[Tensor, ...]:
    """The product of `at_output`, of the shape of `output`, with the Jacobian of `output` by `leaf`.

    As `torch.autograd.grad(output, leaf, at_output)`, bit for bit. That imports sympy to compare two shapes: a second
    in every process that calls it.
    """
    along = (output * at_output).sum()
    return torch.autograd.grad(along, leaf, create_graph=create_graph, retain_graph=retain_graph)


def torch_ops(activation: str, inputs: InputShape) -> Ops:
    """The operations of kinds, in torch; raises SpecError for an unknown activation."""
    return Ops(
        inputs=inputs,
        activate=activation_of(activation).differentiable,
        tanh=torch.tanh,
        sigmoid=torch.sigmoid,
        exp=torch.exp,
        join=partial(torch.cat, dim=1),
        largest=torch.amax,
        choose=torch.where,
        images=partial(_images, inputs),
        convolve=_convolve,
        pool=_pool,
    )


def _images(inputs: InputShape, x_PIM: Tensor) -> Tensor:
    """The images of inputs with the channels of each pixel in one piece, the form in which torch convolves fastest."""
    channels, height, width = inputs.image or (0, 0, 0)
    nets, _, samples = x_PIM.shape
    pixels_PCSM = x_PIM[:, : inputs.pixels].detach().reshape(nets, channels, height * width, samples)
    if x_PIM.stride(1) == 1 or x_PIM.device.type != "cpu":
        images_PMSC = pixels_PCSM.permute(0, 3, 2, 1).contiguous()
    else:  # rows of samples: some pixels at a time, so that what is read stays in a cache until all of it is written
        images_PMSC = pixels_PCSM.new_empty(nets, samples, height * width, channels)
        source, target = pixels_PCSM.numpy(), images_PMSC.numpy()
        for start, k in product(range(0, height * width, _PIXELS), range(channels)):
            some = slice(start, start + _PIXELS)
            target[:, :, some, k] = source[:, k, some].swapaxes(1, 2)
    return images_PMSC.view(nets, samples, height, width, channels)


def _convolve(layer: Layer, images_PMHWC: Tensor, window: Window) -> Tensor:
    matrix_POI, size, channels = layer.matrix, window.size, images_PMHWC.shape[-1]
    found = []
    for matrix_OI, images_MHWC in zip(matrix_POI, images_PMHWC, strict=True):
        # Columns are (row, column, channel): both operands have torch's format "channels last", in which it is fastest.
        weight = matrix_OI[:, :-1].view(-1, size, size, channels).permute(0, 3, 1, 2)
        made = conv2d(images_MHWC.permute(0, 3, 1, 2), weight, matrix_OI[:, -1], window.stride, window.padding)
        found.append(made.permute(0, 2, 3, 1))
    return found[0].unsqueeze(0) if len(found) == 1 else torch.stack(found)


def _pool(images_PMHWC: Tensor, window: Window) -> Tensor:
    images = images_PMHWC.flatten(0, 1).permute(0, 3, 1, 2)
    found = max_pool2d(images, window.size, window.stride, window.padding)
    made = found.permute(0, 2, 3, 1)
    return made.reshape(*images_PMHWC.shape[:2], *made.shape[1:])


def _tensor(output: object) -> Tensor:
    assert isinstance(output, Tensor)  # a kind returns what its layers return
    return output
