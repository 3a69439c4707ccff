"""The ONNX graph of a module of torch: its parameters are inputs of the graph, so one graph serves all versions.

It is written by torch's exporter that traces (`dynamo=False`). The newer one needs the package onnxscript, and takes
seconds; a table of operations of our own would know fewer modules.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from marless.core.errors import SpecError, told
from marless.learning.nets import acting_module
from marless.learning.nets.acting_module import NEXT_MEMORY, OPSET, OUTPUTS, PARAMETER

_CLOSE, _CLOSE_TO_ZERO = 1e-3, 1e-4


class _Fed(nn.Module):
    """Computes a module with the parameters that it is given after the inputs."""

    def __init__(self, module: nn.Module, names: Sequence[str], inputs: int) -> None:
        super().__init__()
        # Not a submodule, whose parameters would become constants of the graph.
        self.__dict__["_fed"] = module
        self._names, self._inputs = tuple(names), inputs

    def forward(self, *given: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        values = dict(zip(self._names, given[self._inputs :], strict=True))
        module: nn.Module = self.__dict__["_fed"]
        # What `functional_call` does, which refuses to be traced.
        with _reparametrize_module(module, values, tie_weights=True):
            found: Tensor | tuple[Tensor, Tensor] = module(*given[: self._inputs])
            return found


def graph_of(
    where: str, module: nn.Module, parameters: Mapping[str, Tensor], given: Sequence[Tensor], *, remembers: bool
) -> bytes:
    """The graph of a module, as `acting_module` runs it; `given` are inputs [M, …] to trace and try it, and last, if
    it remembers, a memory [M, H].

    Raises SpecError for a module that has no such graph, naming the operation, and without onnxruntime.
    """
    inputs, outputs = acting_module.input_names(len(given), remembers=remembers), [OUTPUTS]
    if remembers:
        outputs.append(NEXT_MEMORY)
    names = [*inputs, *(f"{PARAMETER}{name}" for name in parameters)]
    file = io.BytesIO()
    torch._C._jit_set_onnx_log_output_stream("stderr")  # where torch prints graphs that it cannot export
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter says that there is a newer one
            torch.onnx.export(
                _Fed(module, list(parameters), len(given)),
                (*given, *parameters.values()),
                file,  # type: ignore[arg-type]  # the exporter that traces takes files, too
                dynamo=False,
                opset_version=OPSET,
                input_names=names,
                output_names=outputs,
                dynamic_axes={name: {0: "batch"} for name in (*inputs, *outputs)},
            )
    except Exception as error:  # the exporter and the code of a third party may raise anything
        raise SpecError(f"{where}: it has no ONNX graph, which actors need to run it: {told(error)}") from error
    graph = file.getvalue()
    _check(where, graph, module, parameters, given)
    return graph


def _check(
    where: str, graph: bytes, module: nn.Module, parameters: Mapping[str, Tensor], given: Sequence[Tensor]
) -> None:
    """Raise SpecError if the graph computes something else for another number of samples than it was traced with."""
    run = acting_module.program(graph)
    unused = [name for name in parameters if f"{PARAMETER}{name}" not in run.names]
    if unused:
        raise SpecError(
            f"{where}: its outputs do not depend on its parameter {unused[0]}; leave it out, or make it a buffer"
        )
    values = [each.detach().numpy() for each in parameters.values()]
    for samples in (1, len(given[0]) + 1):
        some = [each[torch.arange(samples) % len(each)] for each in given]
        with torch.no_grad():
            expected = module(*some)
        wanted = torch.cat(expected, dim=1) if run.memory else expected
        found = np.concatenate(run([each.numpy() for each in some], values), axis=1)
        if found.shape != tuple(wanted.shape) or not np.allclose(found, wanted.numpy(), _CLOSE, _CLOSE_TO_ZERO):
            raise SpecError(
                f"{where}: its ONNX graph, which actors run, computes other numbers than it does; write it without "
                "Python numbers made of tensors, or of the count of samples"
            )
