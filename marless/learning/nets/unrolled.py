"""Nets of any kind in torch, by the kind's own definition, step by step; autograd finds the gradients.

Shapes: P nets, D parameters, I inputs + 1, H units of memory, K outputs, T steps, B copies, M = T·B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from marless.learning.nets import training_images
from marless.learning.nets.kernels import activation as activation_of
from marless.learning.nets.kinds import Precision, kind_of
from marless.learning.nets.layout import NetLayout
from marless.learning.nets.module_layout import ModuleLayout
from marless.learning.nets.net_kind import Array, InputShape, Layer, Ops
from marless.learning.nets.stacked import matrices

_CHUNK = 4096  # samples per pass of `evaluate`: without a graph, what limits it is memory
_SAMPLES_OF_IMAGES = 128
"""Samples of a part: with images, parts are computed on several threads. Their number does not depend on that of the
threads, so that sums of gradients do not either. With smaller ones, a single thread takes a tenth longer.
"""
_GivenT = TypeVar("_GivenT")
_FoundT = TypeVar("_FoundT")


@dataclass(frozen=True, eq=False)
class _Part:
    """Outputs of some samples, and what they were computed of, for autograd."""

    leaves: tuple[Tensor, ...]
    """Weights: each matrix [P, outputs, inputs + 1], or those of a module, flat [P, D]."""
    input_PIM: Tensor  # noqa: N815  # a shape suffix
    output_PKM: Tensor  # noqa: N815


class ShownImages(Protocol):
    """Images of which inputs have positions alone: those of the frames that each consists of."""

    @property
    def frames(self) -> int:
        """F, how many positions stand for an image."""

    def images(self, inputs: InputShape, x_PIM: Tensor) -> Tensor:
        """The images [P, M, height, width, channels] whose positions inputs begin with. Any thread may call this."""


class Unrolled:
    """P nets; see `nets.stacked.Net`. `forward` raises ValueError if nets with memory get no `resets`.

    `precision` is that of `forward` and of its gradients. Weights and results are float32, and so is `evaluate`: what
    is only evaluated, such as targets, takes less time, and its errors would not average out over minibatches.
    """

    def __init__(self, layout: NetLayout, flat_PD: Tensor, activation: str, precision: Precision = "float32") -> None:
        """Make the nets; raises SpecError for an unknown activation."""
        activation_of(activation)
        self.layout = layout
        self.activation = activation
        self.shown: ShownImages | None = None
        """Where the images are, if inputs have positions in the place of their numbers."""
        self.gradient_PD = torch.zeros_like(flat_PD)
        self._flat_PD = flat_PD
        self._lower = precision == "bfloat16"
        self._parts: list[_Part] = []

    @property
    def output_layer(self) -> Tensor:
        return matrices(self.layout, self._flat_PD)[-1]

    def forward(self, input_PIM: Tensor, resets: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        whole_PIM, shown = input_PIM.expand(len(self._flat_PD), -1, -1).detach(), self.shown
        # Samples of one episode stay together, and without images a graph is computed sooner than threads begin.
        apart = self.layout.image is not None and not self.layout.memory
        pieces = torch.split(whole_PIM, _SAMPLES_OF_IMAGES, dim=2) if apart else (whole_PIM,)

        def compute(piece_PIM: Tensor) -> _Part:
            # `detach` copies nothing: leaves are the present weights, and the caller's tensor stays out of the graph.
            # Each matrix is a leaf of its own: autograd would write the gradient of a part of the flat vector into as
            # many zeros as that has, a tenth of an update of `nature`.
            leaves = tuple(each.detach().requires_grad_() for each in weights(self.layout, self._flat_PD))
            input_PIM = piece_PIM.detach().requires_grad_()
            # Here, because each thread has this state of its own. The backward pass takes the types of this one.
            with torch.autocast(self._flat_PD.device.type, torch.bfloat16, enabled=self._lower):
                output_PKM = _outputs(
                    self.layout, leaves, self.activation, input_PIM, resets, memory, once=True, shown=shown
                )
            return _Part(leaves, input_PIM, output_PKM.to(self._flat_PD.dtype))

        self._parts = self._each(compute, pieces)
        return torch.cat([part.output_PKM.detach() for part in self._parts], dim=2)

    def backward(self, d_output_PKM: Tensor) -> None:
        """See `Net`. It can be called once after each `forward`, whose graph is freed."""
        # A kind of net may have a matrix that it does not use; an input that nobody reads is a mistake.
        found = self._pulled_back(d_output_PKM, lambda part: part.leaves, unused_are_zero=True)
        for target, *parts in zip(weights(self.layout, self.gradient_PD), *found, strict=True):
            target.copy_(parts[0])
            for part in parts[1:]:  # in the order of the parts, whoever ends first
                target.add_(part)

    def input_gradient(self, d_output_PKM: Tensor, rows_PR: Tensor) -> Tensor:
        found = self._pulled_back(d_output_PKM, lambda part: (part.input_PIM,))
        gradient_PIM = torch.cat([gradient_PIM for (gradient_PIM,) in found], dim=2)
        return gradient_PIM.gather(1, rows_PR.unsqueeze(2).expand(-1, -1, gradient_PIM.shape[2]))

    def _pulled_back(
        self, d_output_PKM: Tensor, leaves: Callable[[_Part], tuple[Tensor, ...]], *, unused_are_zero: bool = False
    ) -> list[tuple[Tensor, ...]]:
        """The gradients at leaves of each part."""
        pieces = torch.split(d_output_PKM, [part.output_PKM.shape[2] for part in self._parts], dim=2)

        def pull(given: tuple[_Part, Tensor]) -> tuple[Tensor, ...]:
            part, d_PKM = given
            return pulled_back(d_PKM, part.output_PKM, leaves(part), unused_are_zero=unused_are_zero)

        return self._each(pull, list(zip(self._parts, pieces, strict=True)))

    def release(self) -> None:
        self._parts = []

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
                leaves = weights(self.layout, self._flat_PD)
                return _outputs(self.layout, leaves, self.activation, piece_PIS, resets, None, shown=self.shown)

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
    return _outputs(layout, weights(layout, flat_PD), activation, input_PIM, resets, memory)


def weights(layout: NetLayout, flat_PD: Tensor) -> tuple[Tensor, ...]:
    """Views of a net's weights: each matrix [P, outputs, inputs + 1], or a module's, flat; not its free parameters."""
    return (flat_PD[:, : layout.numbers],) if isinstance(layout, ModuleLayout) else matrices(layout, flat_PD)


def _outputs(
    layout: NetLayout,
    leaves: Sequence[Tensor],
    activation: str,
    input_PIM: Tensor,
    resets: Tensor | None,
    memory: Tensor | None,
    *,
    once: bool = False,
    shown: ShownImages | None = None,
) -> Tensor:
    """See `outputs`; with `once`, gradients of these outputs need not be differentiable."""
    step = _step(layout, leaves, activation, once=once, shown=shown)
    nets, dtype = len(leaves[0]), leaves[0].dtype
    x_PIM = input_PIM[:, :-1].expand(nets, -1, -1)
    if not layout.memory:
        found_PKM, _ = step(x_PIM, x_PIM.new_zeros(len(x_PIM), 0, x_PIM.shape[2]))
        return _tensor(found_PKM)
    if resets is None:
        raise ValueError("a net with memory depends on where it forgets: resets are missing")
    keep = (~resets).to(dtype)
    keep_PTB = keep if keep.dim() == 3 else keep.unsqueeze(0)
    memory_PHB = x_PIM.new_zeros(len(x_PIM), layout.memory, keep.shape[-1]) if memory is None else memory
    found = []
    for t, x_PIB in enumerate(x_PIM.reshape(*x_PIM.shape[:2], *keep.shape[-2:]).unbind(2)):
        kept_PHB = memory_PHB * keep_PTB[:, t].unsqueeze(1) if t else memory_PHB
        output_PKB, memory_PHB = step(x_PIB, kept_PHB)
        found.append(_tensor(output_PKB))
    return torch.cat(found, dim=2)


def _step(
    layout: NetLayout, leaves: Sequence[Tensor], activation: str, *, once: bool, shown: ShownImages | None
) -> Callable[[Tensor, Tensor], tuple[Array, Array]]:
    """What computes outputs [P, K, B] and the next memory [P, H, B] of inputs [P, I, B] and the memory."""
    if isinstance(layout, ModuleLayout):
        # Imported here: torch.func takes time to import, and few jobs have modules.
        from marless.learning.nets.modules import step_of_module

        return partial(step_of_module, layout, leaves[0])
    kind, ops = kind_of(layout.kind), torch_ops(activation, layout.input_shape, once=once, shown=shown)
    return partial(kind.step, ops, [Layer(matrix) for matrix in leaves])


def pulled_back(
    at_output: Tensor,
    output: Tensor,
    leaf: Tensor | Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    unused_are_zero: bool = False,
) -> tuple[Tensor, ...]:
    """The product of `at_output`, of the shape of `output`, with the Jacobian of `output` by each `leaf`.

    Raises RuntimeError for a leaf on which `output` does not depend, unless `unused_are_zero`.

    As `torch.autograd.grad(output, leaf, at_output)`, bit for bit. That imports sympy to compare two shapes: a second
    in every process that calls it.
    """
    along = (output * at_output).sum()
    return torch.autograd.grad(
        along, leaf, create_graph=create_graph, retain_graph=retain_graph, materialize_grads=unused_are_zero
    )


def torch_ops(activation: str, inputs: InputShape, *, once: bool = False, shown: ShownImages | None = None) -> Ops:
    """The operations of kinds, in torch; raises SpecError for an unknown activation."""
    images: Callable[[Tensor], Tensor] = partial(training_images.images_of, inputs)
    if shown is not None:
        inputs = replace(inputs, positions=shown.frames)
        images = partial(shown.images, inputs)
    return Ops(
        inputs=inputs,
        activate=activation_of(activation).differentiable,
        tanh=torch.tanh,
        sigmoid=torch.sigmoid,
        exp=torch.exp,
        join=partial(torch.cat, dim=1),
        largest=torch.amax,
        choose=torch.where,
        images=images,
        convolve=partial(training_images.convolve, once=once),
        pool=training_images.pool,
    )


def _tensor(output: object) -> Tensor:
    assert isinstance(output, Tensor)  # a kind returns what its layers return
    return output
