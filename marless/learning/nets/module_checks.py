"""What a module of torch must keep to be trained and published: checks before a job trains one, each with one sentence.

Shapes: P nets, D parameters, K outputs, M samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from marless.core.errors import SpecError, told

_CLOSE, _CLOSE_TO_ZERO = 1e-3, 1e-4
"""Differences that rounding explains, in any net of float32 with initial weights."""


def check(where: str, module: nn.Module, given: Sequence[Tensor], outputs: int) -> None:
    """Raise SpecError for outputs of another shape or dtype than float32 [M, outputs], for buffers that change, and for
    outputs that depend on chance, on `train()`, or on the other samples.
    """
    buffers = {name: each.clone() for name, each in module.named_buffers()}
    module.eval()
    used = _called(where, module, given)
    module.train()
    samples = len(given[0])
    if list(used.shape) != [samples, outputs] or used.dtype is not torch.float32:
        dtype = str(used.dtype).removeprefix("torch.")
        raise SpecError(
            f"{where}: it maps {_told(given)} to {dtype}{list(used.shape)}, expected float32{[samples, outputs]}"
        )
    first, second = (_called(where, module, given) for _ in range(2))
    for name, each in module.named_buffers():
        if name not in buffers or not torch.equal(each, buffers[name]):
            raise SpecError(
                f"{where}: computing changes its buffer {name}, and only parameters are trained and published; use "
                "LayerNorm or GroupNorm in place of BatchNorm"
            )
    if not torch.equal(first, second) or not torch.allclose(first, used, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(f"{where}: in training its outputs are random, or others than in use; leave dropout out")
    apart = torch.cat([_called(where, module, [each[m : m + 1] for each in given]) for m in range(samples)])
    if not torch.allclose(apart, first, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(
            f"{where}: its outputs for one sample depend on the other samples; normalise over the numbers of each "
            "sample, as LayerNorm does"
        )


def check_stacked(where: str, compute: Callable[[Tensor], Tensor], flat_PD: Tensor) -> None:
    """Raise SpecError for a module that several nets cannot be computed of in one pass, or that learns nothing.

    `compute` returns outputs [P, M, K] of flat parameters.
    """
    leaf_PD = flat_PD.clone().requires_grad_()
    try:
        found, alone = compute(leaf_PD), compute(leaf_PD[:1])
    except Exception as error:  # the code of a third party may raise anything
        raise SpecError(
            f"{where}: torch.func.vmap cannot compute several of it at once: {told(error)}; write it without branches "
            "that depend on values, operations in place, and torch's GRU and LSTM"
        ) from error
    if not torch.allclose(found[:1], alone, _CLOSE, _CLOSE_TO_ZERO):
        raise SpecError(f"{where}: several of it, computed at once by torch.func.vmap, have other outputs than one")
    if not found.requires_grad:
        raise SpecError(f"{where}: its outputs depend on no parameter that is trained")


def _called(where: str, module: nn.Module, given: Sequence[Tensor]) -> Tensor:
    try:
        found = module(*given)
    except Exception as error:  # the code of a third party may raise anything
        raise SpecError(f"{where}: it fails for {_told(given)}: {told(error)}") from error
    if not isinstance(found, Tensor):
        raise SpecError(
            f"{where}: it returns {type(found).__name__}, expected a tensor; modules have no memory, kinds of nets may"
        )
    return found.detach()


def _told(given: Sequence[Tensor]) -> str:
    return " and ".join(f"float32{list(each.shape)}" for each in given)
