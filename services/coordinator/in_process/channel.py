"""Messages between this process and its workers over a socket: JSON, bytes, and arrays in shared memory.

A trajectory is written into anonymous memory, whose descriptor is sent: nobody copies it on the way.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_LENGTHS = struct.Struct("<QQ")
"""Bytes of the JSON, and of what follows it."""
_ALIGNED = 64


class Message(NamedTuple):
    """One message, as it was received."""

    facts: dict[str, Any]  # Any: JSON
    data: memoryview
    arrays: dict[str, NDArray[np.generic]]
    """Read-only views of memory that ends with the last of them."""


def send(
    sock: socket.socket,
    facts: Mapping[str, Any],  # Any: JSON
    blobs: Sequence[bytes] = (),
    arrays: Mapping[str, NDArray[np.generic]] | None = None,
) -> None:
    """Send one message; raises OSError if the other side is gone."""
    shared, described = _written(arrays) if arrays else (None, [])
    text = json.dumps({**facts, "arrays": described}).encode()
    try:
        head = _LENGTHS.pack(len(text), sum(map(len, blobs)))
        socket.send_fds(sock, [head], [] if shared is None else [shared])
        for part in (text, *blobs):
            sock.sendall(part)
    finally:
        if shared is not None:
            os.close(shared)


def receive(sock: socket.socket) -> Message:
    """Wait for one message; raises EOFError if the other side has ended, TimeoutError if the socket has a timeout."""
    head, descriptors, _, _ = socket.recv_fds(sock, _LENGTHS.size, 1)
    if not head:
        raise EOFError
    head += _exactly(sock, _LENGTHS.size - len(head))
    text_bytes, data_bytes = _LENGTHS.unpack(head)
    facts = json.loads(bytes(_exactly(sock, text_bytes)))
    described = facts.pop("arrays")
    arrays = _mapped(descriptors[0], described) if descriptors else {}
    return Message(facts, _exactly(sock, data_bytes), arrays)


def _exactly(sock: socket.socket, size: int) -> memoryview:
    found = memoryview(bytearray(size))
    at = 0
    while at < size:
        got = sock.recv_into(found[at:])
        if not got:
            raise EOFError
        at += got
    return found


def _written(arrays: Mapping[str, NDArray[np.generic]]) -> tuple[int, list[tuple[str, str, tuple[int, ...], int]]]:
    """The descriptor of memory that holds these arrays; and name, dtype, shape and offset of each."""
    described, size = [], 0
    for name, array in arrays.items():
        described.append((name, array.dtype.str, array.shape, size))
        size += -(-array.nbytes // _ALIGNED) * _ALIGNED
    descriptor = os.memfd_create("trajectory")
    os.truncate(descriptor, max(size, 1))
    with mmap.mmap(descriptor, max(size, 1)) as memory:
        for (_, _, _, at), array in zip(described, arrays.values(), strict=True):
            view = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
            np.copyto(view, array)
            del view  # else the memory cannot be unmapped
    return descriptor, described


def _mapped(descriptor: int, described: Sequence[Sequence[Any]]) -> dict[str, NDArray[np.generic]]:  # Any: JSON
    try:
        memory = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return {
        name: np.frombuffer(memory, np.dtype(dtype), int(np.prod(shape)), at).reshape(shape)
        for name, dtype, shape, at in described
    }
