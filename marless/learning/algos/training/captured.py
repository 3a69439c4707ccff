"""Gradient steps that a GPU repeats by itself: the kernels that torch has started once, captured as a graph.

A gradient step of small nets is some hundred kernels of a few microseconds each, and torch takes longer to start one
than the GPU to compute it. A graph starts all of them at once. It repeats the same kernels at the same addresses, so
inputs are copied to where they were, and results are read from there. Shapes: P nets, D parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

Batch = Mapping[str, Tensor]
Metrics = dict[str, Tensor]
Compute = Callable[[Batch], Metrics]
_MOST = 8
"""Shapes of batches for which a step is kept: each has memory of its own."""
_CLOSE = 1e-4
"""The largest error of results, of the largest of them, where kernels need not compute the same bits again."""


class DeviceGraphs(Protocol):
    """The part of `torch.cuda` that is needed here."""

    def CUDAGraph(self) -> Any:  # noqa: N802  # torch's name
        """An empty graph."""

    def graph(self, graph: Any, *, capture_error_mode: str) -> AbstractContextManager[Any]:
        """Context in which what is asked of the device becomes part of a graph, and is not computed."""


def graphs_of(device: torch.device) -> DeviceGraphs | None:
    """What captures the work of a device, or None if nothing does."""
    return torch.cuda if device.type == "cuda" else None


class CapturedSteps:
    """Computes the gradients of one function, from its first batch of each shape on as a captured graph.

    Whatever goes wrong, gradients are right: a captured step is used only if it finds what the same kernels find one
    by one, bit for bit where torch was told to be deterministic. If it does not, or if it cannot be captured, there is
    a warning, and steps are computed as on other devices.

    Even the result of the first step of a shape is that of the graph. If it were that of kernels one by one, a resumed
    job would compute other steps so than one that was never interrupted, and could get other bits.
    """

    def __init__(self, graphs: DeviceGraphs, gradient_PD: Tensor, release: Callable[[], None]) -> None:
        """Make one for nets that write their gradients to `gradient_PD`, and give back all buffers by `release`."""
        self._graphs, self._gradient_PD, self._release = graphs, gradient_PD, release
        self._steps: dict[object, _Step] = {}
        self._gave_up = False

    def run(self, compute: Compute, batch: Batch, kind: object) -> Metrics:
        """What `compute` does with a batch: write the gradient, and return metrics [P], which are new tensors.

        Computations of one `kind` must differ in nothing but the content of their batches and of tensors that stay
        where they are, such as the nets' parameters: numbers become a part of the kernels.
        """
        if self._gave_up:
            return compute(batch)
        form = kind, tuple((name, x.shape, x.dtype) for name, x in batch.items())
        step = self._steps.pop(form, None) or self._captured(compute, batch)
        if step is None:
            return compute(batch)
        if len(self._steps) == _MOST:
            del self._steps[next(iter(self._steps))]  # the one that was not used for longest
        self._steps[form] = step
        return step.repeat(batch)

    def _captured(self, compute: Compute, batch: Batch) -> _Step | None:
        """The step for batches like this one; None if it is not what `compute` does."""
        inputs = {name: x.clone() for name, x in batch.items()}
        # One by one first: what kernels load at their first call cannot be captured.
        expected = [each.clone() for each in (*compute(inputs).values(), self._gradient_PD)]
        # The nets' next buffers are then memory of the graph, which nobody else gets while there is the graph.
        self._release()
        try:
            step = _Step(self._graphs, inputs, compute)
            found = [*step.repeat(inputs).values(), self._gradient_PD]
        except RuntimeError as error:
            reason = f"they cannot be captured ({error})"
        else:
            if len(found) == len(expected) and all(map(_same, found, expected)):
                return step
            reason = "a captured one has other results"
        warnings.warn(f"gradient steps are started kernel by kernel: {reason}", RuntimeWarning, stacklevel=2)
        self._gave_up = True
        self._steps.clear()
        # Buffers that were made in a capture which failed were never filled: what stays 1 in them is not even that.
        self._release()
        return None


class _Step:
    """A captured gradient step."""

    def __init__(self, graphs: DeviceGraphs, inputs: Mapping[str, Tensor], compute: Compute) -> None:
        self._inputs, self._graph = inputs, graphs.CUDAGraph()
        # Other threads of this process may use the device meanwhile.
        with graphs.graph(self._graph, capture_error_mode="thread_local"):
            metrics = compute(inputs)
            self._names = list(metrics)
            self._metrics_KP = torch.stack(list(metrics.values())) if metrics else None

    def repeat(self, batch: Batch) -> Metrics:
        """Compute the step for a batch."""
        for name, x in self._inputs.items():
            if x is not batch[name]:
                x.copy_(batch[name])
        self._graph.replay()
        # A copy, since the next step writes there.
        return {} if self._metrics_KP is None else dict(zip(self._names, self._metrics_KP.clone(), strict=True))


def _same(found: Tensor, expected: Tensor) -> bool:
    if torch.are_deterministic_algorithms_enabled():
        return torch.equal(found, expected)
    return bool((found - expected).abs().max() <= _CLOSE * expected.abs().max())
