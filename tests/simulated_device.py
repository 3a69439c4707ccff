"""A device that torch computes on without a GPU: its tensors refuse what a GPU's refuse, and transfers are counted.

Its tensors wrap others on the host, on which operations run. As on a GPU, an operation that is given tensors of the
device and of the host fails, but for numbers (no dimensions) and copies; NumPy cannot read it, and no C kernel gets an
address. In addition, indexing by a tensor of the host is refused, which a GPU allows, and waits for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

aten = torch.ops.aten
TYPE = "simulated"
DEVICE = f"{TYPE}:0"
OWN_DEVICE = torch.ops.prim.device.default
COPY, COPY_INTO, READ = aten._to_copy.default, aten.copy_.default, aten._local_scalar_dense.default


class DeviceTensor(Tensor):
    """A tensor of the device, whose content lies in `hosted`."""

    hosted: Tensor

    @staticmethod
    def __new__(cls, hosted: Tensor) -> DeviceTensor:
        # Its memory is that of `hosted`, so that torch's own checks of what overlaps hold; only its device is another.
        made = Tensor._make_subclass(cls, hosted, dispatch_device=True, device_for_backend_keys=torch.device(DEVICE))
        made.hosted = hosted
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation where the context is not active, as in the threads of autograd."""
        return torch.device(DEVICE) if operation is OWN_DEVICE else _run(operation, args, kwargs or {}, Counter())

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def data_ptr(self) -> int:
        raise AssertionError("an address on the device is asked for, which code of the host would read from")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        stream.tensors.append(self)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.hosted!r})"


class Streams:
    """The part of `torch.cuda` that queues work: copies of a stream happen as late as they may.

    That is, before the first operation of the main stream after it was told to wait for the other one. Until then the
    content on the device is NaN, and the source may not change.
    """

    def __init__(self) -> None:
        self.main = Stream()
        self.current = self.main

    def Stream(self, device: torch.device) -> Stream:  # noqa: N802  # torch's name
        return Stream()

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        _STREAMS.append(self)
        try:
            yield
        finally:
            _STREAMS.remove(self)
            self.current = before


class Stream:
    """A queue of copies."""

    def __init__(self) -> None:
        self.copies: list[Callable[[], object]] = []
        self.waits_for: list[Stream] = []
        self.tensors: list[Tensor] = []
        """Those of other streams whose memory is kept until this one has done its work."""
        self.synchronized = 0

    def wait_stream(self, other: Stream) -> None:
        self.waits_for.append(other)
        _WAITING.append(self)

    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None:
        self.synchronized += 1

    def catch_up(self) -> None:
        """Do what is queued where this one waits."""
        for other in self.waits_for:
            for copy in other.copies:
                copy()
            other.copies.clear()
        self.waits_for.clear()


class Graphs:
    """The part of `torch.cuda` that captures graphs; waiting for the device is refused meanwhile, as on a GPU."""

    def __init__(self) -> None:
        self.made: list[Graph] = []

    def CUDAGraph(self) -> Graph:  # noqa: N802  # torch's name
        self.made.append(Graph())
        return self.made[-1]

    @contextmanager
    def graph(self, graph: Graph, *, capture_error_mode: str) -> Iterator[None]:
        _CAPTURES.append(graph)
        try:
            yield
        finally:
            _CAPTURES.remove(graph)
            graph.end()


class Graph:
    """Operations on the device, which `replay` does again, on the same memory. To capture them computes nothing: what
    they wrote is put back, and what they made is NaN.
    """

    def __init__(self) -> None:
        self.replayed = 0
        self._done: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        """By address, all memory that was there before, and what it held."""
        self._made: dict[int, Tensor] = {}

    def note(self, given: list[Tensor]) -> None:
        """Keep the content of what an operation may write to."""
        for each in map(_hosted, given):
            whole = _memory_of(each)
            if whole.data_ptr() not in self._before.keys() | self._made.keys():
                self._before[whole.data_ptr()] = whole, whole.clone()

    def record(self, operation: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._done.append((operation, args, kwargs, out))
        found: list[Tensor] = []
        _mapped(out, found.append)
        for each in found:
            if (whole := _memory_of(each)).data_ptr() not in self._before:
                self._made[whole.data_ptr()] = whole

    def end(self) -> None:
        for whole, content in self._before.values():
            whole.copy_(content)
        for whole in self._made.values():
            whole.fill_(0xFF)  # NaN of floats, and indices that no tensor has

    def replay(self) -> None:
        self.replayed += 1
        for operation, args, kwargs, out in self._done:
            outs, again = list[Tensor](), list[Tensor]()
            _mapped(out, outs.append)
            _mapped(operation(*args, **kwargs), again.append)
            for old, new in zip(outs, again, strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():  # no view, nor in place
                    old.copy_(new)


def _memory_of(x: Tensor) -> Tensor:
    """The bytes of all memory that a tensor is a view of."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())


_CAPTURES: list[Graph] = []
"""The graph that operations become a part of at present, if any."""
_STREAMS: list[Streams] = []
"""Whose work is queued at present, instead of done."""
_WAITING: list[Stream] = []
"""Main streams that wait for copies."""


class _OnDevice(TorchDispatchMode):
    """Makes tensors of the device where torch is asked for some."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler, for seconds, to keep it away from this class

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.device(DEVICE) if operation is OWN_DEVICE else _run(operation, args, kwargs or {}, self.transfers)


@contextmanager
def simulated_device() -> Iterator[Counter[str]]:
    """Context in which torch has `DEVICE`, for the calling thread; provides the numbers of its transfers so far.

    Of tensors "to device" and "to host", and of numbers that were read, for which a GPU finishes all work: "reads".
    """
    _register()
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(…, device=…) is a copy to the device
    try:
        with _OnDevice() as mode:
            yield mode.transfers
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


@cache
def _register() -> None:
    """Give torch's device for others our name; a process can do so once."""
    _setup_privateuseone_for_python_backend(TYPE)


def _run(operation: Any, args: Any, kwargs: Any, transfers: Counter[str]) -> Any:
    given: list[Tensor] = []
    args, kwargs = _mapped(args, given.append), _mapped(kwargs, given.append)
    wrapped = {id(each.hosted): each for each in given if isinstance(each, DeviceTensor)}
    host = [each for each in given if not isinstance(each, DeviceTensor)]
    if wrapped and operation not in {COPY, COPY_INTO} and any(each.dim() for each in host):
        raise RuntimeError(f"{operation}: Expected all tensors to be on the same device, but found {DEVICE} and cpu!")
    asked = kwargs.get("device")
    on_device = bool(wrapped) if asked is None else torch.device(asked).type == TYPE
    _count(operation, given, on_device, transfers)
    if _STREAMS:
        if operation is COPY and kwargs.get("non_blocking") and _STREAMS[-1].current is not _STREAMS[-1].main:
            return _queued(args[0], _STREAMS[-1].current)
    elif on_device or wrapped:
        while _WAITING:
            _WAITING.pop().catch_up()
    capture = _CAPTURES[-1] if _CAPTURES and (on_device or wrapped) else None
    if capture is not None:
        if operation is READ or (operation in {COPY, COPY_INTO} and (host or not on_device)):
            raise RuntimeError(f"{operation}: operation not permitted when stream is capturing")
        capture.note(given)
    if operation is aten.is_pinned.default:
        return False
    if operation is aten._pin_memory.default:
        return args[0].clone()  # there is no such memory without a GPU
    if on_device and asked is not None:
        kwargs = kwargs | {"device": "cpu"}
    args, kwargs = _mapped(args, _hosted), _mapped(kwargs, _hosted)
    out = operation(*args, **kwargs)
    if capture is not None:
        capture.record(operation, args, kwargs, out)
    for each in wrapped.values():
        same = each.shape == each.hosted.shape and each.stride() == each.hosted.stride()
        assert same, f"{operation} has changed a shape in place, which is not simulated"

    def on_its_device(x: Tensor) -> Tensor:
        known = wrapped.get(id(x))  # what was written to is returned itself
        return DeviceTensor(x) if known is None else known

    return _mapped(out, on_its_device) if on_device else out


def _queued(source: Tensor, stream: Stream) -> DeviceTensor:
    """A tensor of the device into which `source` is copied later."""
    into = torch.empty_like(source)
    if into.dtype.is_floating_point:
        into.fill_(float("nan"))
    else:
        into.zero_()
    stream.copies.append(lambda: into.copy_(source))
    return DeviceTensor(into)


def _hosted(x: Tensor) -> Tensor:
    return x.hosted if isinstance(x, DeviceTensor) else x


def _mapped(what: Any, change: Callable[[Tensor], Tensor | None]) -> Any:
    """Arguments or results of an operation with all tensors changed; the same ones where `change` returns None."""
    if isinstance(what, Tensor):
        changed = change(what)
        return what if changed is None else changed
    if isinstance(what, dict):
        return {key: _mapped(each, change) for key, each in what.items()}
    return type(what)(_mapped(each, change) for each in what) if type(what) in (list, tuple) else what


def _count(operation: Any, given: list[Tensor], on_device: bool, transfers: Counter[str]) -> None:
    if operation is READ:
        transfers["reads"] += isinstance(given[0], DeviceTensor)
    elif operation is COPY or operation is COPY_INTO:
        source = given[0] if operation is COPY else given[1]
        target_on_device = on_device if operation is COPY else isinstance(given[0], DeviceTensor)
        if isinstance(source, DeviceTensor) != target_on_device:
            transfers["to device" if target_on_device else "to host"] += 1
