"""What a module of torch must keep to be trained and published: checks before a job trains one, each with one sentence.

Shapes: P nets, D parameters, K outputs, M samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn

from marless.core.errors import SpecError, told

_CLOSE, _CLOSE_TO_ZERO = 1e-3, 1e-4
"""Differences that rounding explains, in any net of float32 with initial weights."""
_OF_TORCH = frozenset({"_parameters", "_buffers", "_modules", "training"})
"""Attributes of every module that are checked in other ways."""
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType)


def check(where: str, module: nn.Module, given: Sequence[Tensor], outputs: int, memory: int) -> None:
    """Raise SpecError for outputs of another shape or dtype than float32 [M, outputs], for a next memory of another one
    than float32 [M, memory], for buffers and attributes that change, and for results that depend on chance, on
    `train()`, or on the other samples.
    """
    buffers = {name: each.clone() for name, each in module.named_buffers()}
    attributes, chance = _attributes(module), torch.get_rng_state()
    module.eval()
    results = _Results(where, module, outputs, memory)
    used = results.of(given)
    module.train()
    first, second = (results.of(given) for _ in range(2))
    for name, each in module.named_buffers():
        if name not in buffers or not torch.equal(each, buffers[name]):
            raise SpecError(
                f"{where}: computing changes its buffer {name}, and only parameters are trained and published; use "
                "LayerNorm or GroupNorm in place of BatchNorm"
            )
    now = _attributes(module)
    for name in sorted(now.keys() | attributes.keys()):
        if name not in now or name not in attributes or now[name] != attributes[name]:
            raise SpecError(
                f"{where}: computing changes its attribute {name}, but actors run a graph in which it is constant; "
                "compute it in forward, or in the factory"
            )
    # One that draws numbers is random even if its outputs on these samples are the same.
    drawn = not torch.equal(torch.get_rng_state(), chance)
    if drawn or not torch.equal(first, second) or not torch.allclose(first, used, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(f"{where}: in training its outputs are random, or others than in use; leave dropout out")
    apart = torch.cat([results.of([each[m : m + 1] for each in given]) for m in range(len(given[0]))])
    if not torch.allclose(apart, first, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(
            f"{where}: its outputs for one sample depend on the other samples; normalise over the numbers of each "
            "sample, as LayerNorm does"
        )


def check_stacked(where: str, compute: Callable[[Tensor], Tensor], flat_PD: Tensor) -> None:
    """Raise SpecError for a module that several nets cannot be computed of in one pass, or that learns nothing.

    `compute` returns what nets of flat parameters [P, D] find, [P, M, …].
    """
    leaf_PD = flat_PD.clone().requires_grad_()
    try:
        found, alone = compute(leaf_PD), compute(leaf_PD[:1])
    except Exception as error:  # the code of a third party may raise anything
        raise SpecError(
            f"{where}: torch.func.vmap cannot compute several of it at once: {told(error)}; write it without branches "
            "that depend on values, operations in place, and torch's GRU, LSTM and LSTMCell"
        ) from error
    if not torch.allclose(found[:1], alone, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(f"{where}: several of it, computed at once by torch.func.vmap, have other outputs than one")
    if not found.requires_grad:
        raise SpecError(f"{where}: its outputs depend on no parameter that is trained")


@dataclass(frozen=True)
class _Results:
    """What a module returns, checked."""

    where: str
    module: nn.Module
    outputs: int
    memory: int

    def of(self, given: Sequence[Tensor]) -> Tensor:
        """Outputs and the next memory of samples, [M, K + H]; raises SpecError for other shapes and types."""
        try:
            found = self.module(*given)
        except Exception as error:  # the code of a third party may raise anything
            raise SpecError(f"{self.where}: it fails for {_told(given)}: {told(error)}") from error
        samples = len(given[0])
        if self.memory:
            expected = [[samples, self.outputs], [samples, self.memory]]
            wanted = f"(outputs, next memory), as its attribute memory is {self.memory}"
            parts = found if isinstance(found, tuple) else (found,)
        else:
            expected, parts = [[samples, self.outputs]], (found,)
            wanted = "a tensor; one with memory has an attribute `memory`, how many numbers it remembers"
        if len(parts) != len(expected) or not all(isinstance(part, Tensor) for part in parts):
            raise SpecError(f"{self.where}: it returns {type(found).__name__}, expected {wanted}")
        for part, shape in zip(parts, expected, strict=True):
            if list(part.shape) != shape or part.dtype is not torch.float32:
                raise SpecError(
                    f"{self.where}: it maps {_told(given)} to {_told(parts)}, expected "
                    + " and ".join(f"float32{each}" for each in expected)
                )
        return torch.cat(parts, dim=1).detach()


def _told(tensors: Sequence[Tensor]) -> str:
    return " and ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in tensors)


def _attributes(module: nn.Module) -> dict[str, object]:
    """The attributes of a module, of the modules in it, and of their classes, in a form that stays and compares."""
    found: dict[str, object] = {}
    seen: _Seen = {}
    for path, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in _OF_TORCH}
        found |= {f"{path}.{name}".lstrip("."): _frozen(value, seen) for name, value in own.items()}
        for kind in type(part).__mro__:
            if kind.__module__.partition(".")[0] not in ("builtins", "torch"):
                found |= {f"{kind.__name__}.{name}": _frozen(value, seen) for name, value in vars(kind).items()}
    return found


_Seen = dict[int, tuple[int, object]]
"""What has been frozen, by id: its number, and itself, so that its id is not used again."""


def _frozen(value: object, seen: _Seen) -> object:
    """The value's type and contents, which later changes of the value do not change; what holds itself has an end."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)  # nan is not equal to itself, its text is
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value
    return type(value), _contents(value, seen)


def _contents(value: object, seen: _Seen) -> object:
    if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
        numbers = value.detach().resolve_conj().cpu().contiguous().flatten().view(torch.uint8)
        return value.dtype, value.shape, numbers.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(_frozen(key, seen), _frozen(each, seen)) for key, each in value.items()]
    if isinstance(value, AbstractSet):
        return frozenset(value)
    if isinstance(value, list | tuple):
        return [_frozen(each, seen) for each in value]
    state = None if isinstance(value, _CODE) else object.__getstate__(value)
    # Without attributes and slots, some objects, such as itertools' counters, say in their text where they are.
    return (id(value), repr(value)) if state is None else _frozen(state, seen)
