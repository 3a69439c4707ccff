"""Modules of torch in learners: checked, stacked with torch.func, drawn from seeds, and written as ONNX graphs.

Shapes: P nets, D parameters, I inputs, H numbers of memory (0 without), K outputs, M samples.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from marless.core.errors import MarlessError, SpecError, told
from marless.core.limits import MAX_PUBLISH_BYTES
from marless.learning.nets import module_checks
from marless.learning.nets.layout import FloatArray
from marless.learning.nets.module_kind import MAX_MEMORY, factory_of
from marless.learning.nets.module_layout import ModuleLayout
from marless.learning.nets.net_kind import InputShape

_BUILDING = threading.Lock()
"""Held while torch's global generator has a seed of ours."""
_NETS, _TRIED = 2, 3
"""Nets and samples on which a module is tried."""
_BYTES = 3 * 4
"""Of a published parameter: itself and two moments of its gradient, each float32."""


@dataclass(frozen=True)
class _Form:
    """What a module of a job is made for."""

    kind: str
    inputs: InputShape
    hidden: tuple[int, ...]
    outputs: int

    def build(self, seed: int) -> nn.Module:
        """Call the factory; raises SpecError."""
        factory = factory_of(self.kind)
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                made = factory(self.inputs, self.hidden, self.outputs)
            except MarlessError:
                raise
            except Exception as error:  # the code of a third party may raise anything
                what = f"{self.inputs.size} inputs, hidden {list(self.hidden)} and {self.outputs} outputs"
                raise SpecError(f"net {self.kind}: its factory fails for {what}: {told(error)}") from error
        if not isinstance(made, nn.Module):
            raise SpecError(f"net {self.kind}: its factory returns {type(made).__name__}, expected a torch.nn.Module")
        # As in training, where modules compute what they do in use (`module_checks`): in use, some of torch's call
        # operations that have no gradient and no form in ONNX.
        return made.train()


@dataclass(frozen=True, eq=False)
class _Template:
    """A module that was checked. Its own values are used nowhere but for what is not trained."""

    form: _Form
    shapes: Mapping[str, torch.Size]
    """Of each parameter that is trained, by its name."""
    constants: Mapping[str, Tensor]
    """Buffers, and parameters that need no gradient; those that a factory draws at random are always the same."""
    memory: int
    """H."""
    idle: list[nn.Module] = field(default_factory=list)

    @property
    def numbers(self) -> int:
        return sum(map(prod, self.shapes.values()))

    @contextmanager
    def borrowed(self) -> Iterator[nn.Module]:
        """A module that no other thread computes with: `functional_call` puts weights into it and takes them out."""
        try:
            module = self.idle.pop()
        except IndexError:
            module = self.form.build(0)
        try:
            yield module
        finally:
            self.idle.append(module)

    def named(self, flat_PD: Tensor) -> dict[str, Tensor]:
        """Views [P, …] of each parameter."""
        spans = pairwise(accumulate(map(prod, self.shapes.values()), initial=0))
        return {
            name: flat_PD[:, start:end].view(len(flat_PD), *shape)
            for (name, shape), (start, end) in zip(self.shapes.items(), spans, strict=True)
        }

    def held(self, like: Tensor) -> dict[str, Tensor]:
        """The constants on the device, and those that are no integers in the dtype, of `like`."""
        return {
            name: each.to(like.device, like.dtype if each.is_floating_point() else each.dtype)
            for name, each in self.constants.items()
        }

    def compute(self, flat_PD: Tensor, given: Sequence[Tensor]) -> Tensor:
        """Outputs, and beside them the next memory, [P, M, K + H], of what `split` has made of inputs and, with memory,
        of the memory [P, M, H]; several nets are computed in one pass.
        """
        values, held = self.named(flat_PD), self.held(flat_PD)
        with self.borrowed() as module:

            def one(values: Mapping[str, Tensor], *given: Tensor) -> Tensor:
                found = functional_call(module, {**values, **held}, given)
                return torch.cat(found, dim=-1) if self.memory else found

            if len(flat_PD) > 1:
                found: Tensor = vmap(one)(values, *given)
                return found
            return one({name: each[0] for name, each in values.items()}, *(each[0] for each in given)).unsqueeze(0)


def layout_of_module(kind: str, inputs: InputShape, hidden: tuple[int, ...], outputs: int, free: int) -> ModuleLayout:
    """The layout of a module; raises SpecError with one sentence for a module that cannot be trained here."""
    template = _template(_Form(kind, inputs, hidden, outputs))
    numbers = template.numbers
    if numbers * _BYTES > MAX_PUBLISH_BYTES:
        raise SpecError(
            f"net {kind}: its {numbers:,} parameters take {numbers * _BYTES / 2**20:,.0f} MiB with their optimizer "
            f"state, and a round may publish {MAX_PUBLISH_BYTES / 2**20:,.0f}; make it smaller"
        )
    shape = inputs.size, hidden, outputs, free, kind, inputs.image, inputs.entities
    return ModuleLayout(*shape, numbers=numbers, remembered=template.memory)


def step_of_module(layout: ModuleLayout, flat_PD: Tensor, x_PIM: Tensor, memory_PHM: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs [P, K, M] and the next memory [P, H, M], as `NetKind.step` has them, for inputs [P, I, M]."""
    nets, samples = len(flat_PD), x_PIM.shape[2]
    if not samples:  # reshaping nothing is ambiguous, so no module is asked for it; its gradients are zeros
        none_P10 = flat_PD[:, :1].unsqueeze(2) + x_PIM.sum(dim=1, keepdim=True)
        return none_P10.expand(nets, layout.outputs, 0), memory_PHM
    given = split(layout.input_shape, x_PIM)
    if layout.memory:
        given = *given, memory_PHM.transpose(1, 2).contiguous()
    found_PKM = _template_of(layout).compute(flat_PD, given).transpose(1, 2)
    return found_PKM[:, : layout.outputs], found_PKM[:, layout.outputs :]


def split(inputs: InputShape, x_PIM: Tensor) -> tuple[Tensor, ...]:
    """What a module is called with, [P, M, …]: all inputs, or the images and, if there are others, these."""
    x_PMI = x_PIM.transpose(1, 2)
    if inputs.image is None:
        return (x_PMI.contiguous(),)
    images = x_PMI[..., : inputs.pixels].reshape(*x_PMI.shape[:2], *inputs.image)
    others = x_PMI[..., inputs.pixels :].contiguous()
    return (images, others) if others.shape[2] else (images,)


def initial(layout: ModuleLayout, seed: int) -> FloatArray:
    """The values with which the factory makes a module's parameters, float32 [numbers]; raises SpecError."""
    template = _template_of(layout)
    made = dict(template.form.build(seed).named_parameters())
    found = {name: made[name].detach() for name in template.shapes if name in made}
    if {name: each.shape for name, each in found.items()} != dict(template.shapes):
        raise SpecError(f"net {layout.kind}: its factory makes other parameters at each call; make the same ones")
    flat: FloatArray = torch.cat([each.flatten() for each in found.values()]).cpu().numpy()
    return flat


def exported(layout: ModuleLayout) -> bytes:
    """The ONNX graph of a module, see `nets.module_export`; raises SpecError."""
    return _graph(_template_of(layout))


@lru_cache(maxsize=64)
def _graph(template: _Template) -> bytes:
    from marless.learning.nets.module_export import graph_of  # imported here: only policies need it

    form = template.form
    with template.borrowed() as module:
        trained = {name: each for name, each in module.named_parameters() if name in template.shapes}
        given = [each[0] for each in _tried(form.inputs, template.memory)]
        return graph_of(f"net {form.kind}", module, trained, given, remembers=template.memory > 0)


def _template_of(layout: ModuleLayout) -> _Template:
    return _template(_Form(layout.kind, layout.input_shape, layout.hidden, layout.outputs))


@lru_cache(maxsize=64)
def _template(form: _Form) -> _Template:
    """Check a module; raises SpecError with one sentence for the first thing that is wrong."""
    # torch's fast attention on CPUs has neither second derivatives, for curvature, nor a rule for several nets at once.
    torch.backends.cuda.enable_flash_sdp(False)
    module, where = form.build(0), f"net {form.kind}"
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    trained = {name for name, each in module.named_parameters() if each.requires_grad}
    template = _Template(
        form,
        {name: tensors[name].shape for name in tensors if name in trained},
        {name: each.detach().clone() for name, each in tensors.items() if name not in trained},
        _memory_of(where, module),
        [module],
    )
    if not trained:
        raise SpecError(f"{where}: it has no parameters to train")
    odd = [name for name in template.shapes if tensors[name].dtype is not torch.float32]
    if odd:
        raise SpecError(f"{where}: its parameter {odd[0]} is of {tensors[odd[0]].dtype}, expected float32")
    given = _tried(form.inputs, template.memory, _NETS)
    with _BUILDING, torch.random.fork_rng(devices=[]):  # a module may draw numbers, which is what is looked for
        module_checks.check(where, module, [each[0] for each in given], form.outputs, template.memory)
    flat_PD = torch.cat([tensors[name].detach().flatten() for name in template.shapes]).repeat(_NETS, 1)
    module_checks.check_stacked(where, partial(template.compute, given=given), flat_PD)
    return template


def _memory_of(where: str, module: nn.Module) -> int:
    """What a module says that it remembers; an attribute `memory` of another type, such as a layer, says nothing."""
    said = getattr(module, "memory", 0)
    if type(said) is not int:
        return 0
    if not 0 <= said <= MAX_MEMORY:
        raise SpecError(f"{where}: its attribute memory is {said}; it may remember up to {MAX_MEMORY:,} numbers")
    return said


def _tried(inputs: InputShape, memory: int, nets: int = 1) -> tuple[Tensor, ...]:
    """Made-up inputs of some nets, and a memory if they have one, [P, M, …]."""
    generator = torch.Generator().manual_seed(1)
    given = split(inputs, torch.rand(nets, inputs.size, _TRIED, generator=generator))
    return (*given, torch.rand(nets, _TRIED, memory, generator=generator)) if memory else given
