"""Copies of minibatches to a GPU, made while it still computes with the ones before.

A copy from ordinary memory waits until the GPU has done all work that was asked of it. From pinned memory, and on a
stream of its own, it waits for nothing, and the host goes on to gather the next minibatch.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_AHEAD = 2
"""Batches that may wait on the device for their gradient steps: their memory is in use until then."""


class DeviceStreams(Protocol):
    """The part of `torch.cuda` that is needed here."""

    def Stream(self, device: torch.device) -> Any:  # noqa: N802  # torch's name
        """A new queue of work."""

    def stream(self, stream: Any) -> AbstractContextManager[Any]:
        """Context in which work goes to a queue."""

    def current_stream(self, device: torch.device) -> Any:
        """The queue of gradient steps."""


class Uploads:
    """Copies arrays to a device; to a GPU as the module says, to others at once. On the CPU, memory is shared.

    Args:
        device: Of the tensors.
        streams: Of a GPU, by default those of CUDA; None for devices without.
    """

    def __init__(self, device: torch.device, streams: DeviceStreams | None = None) -> None:
        self._device = device
        self._streams = torch.cuda if streams is None and device.type == "cuda" else streams
        self._copies = self._streams.Stream(device) if self._streams else None
        self._begun: deque[Any] = deque()
        """Events, of each batch the one after which no gradient step needs those before it."""

    def begin(self) -> None:
        """Begin a batch; waits for the gradient steps of those that are more than `_AHEAD` older."""
        if self._streams is None:
            return
        self._begun.append(self._streams.current_stream(self._device).record_event())
        if len(self._begun) > _AHEAD:
            self._begun.popleft().synchronize()

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """The array on the device, as gradient steps find it that are taken after this call."""
        host = torch.from_numpy(np.ascontiguousarray(array))
        if self._streams is None:
            return host.to(self._device)
        steps = self._streams.current_stream(self._device)
        with self._streams.stream(self._copies):
            # A pinned copy of its own: torch gives its memory to others only after the transfer.
            found = host.pin_memory().to(self._device, non_blocking=True)
        steps.wait_stream(self._copies)
        found.record_stream(steps)  # or the next upload could overwrite it while a gradient step still reads it
        return found
