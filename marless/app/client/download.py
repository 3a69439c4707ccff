"""Downloads run folders file by file; each file appears atomically."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from marless.app.client.connection import Connection
from marless.app.client.jobs import File
from marless.core import private_files
from marless.core.errors import CorruptError, UnavailableError, UnreachableError
from marless.core.limits import MAX_MACHINES_BYTES, MAX_SPEC_BYTES, MAX_STATUS_BYTES
from marless.core.machine import MACHINES
from marless.rpc import chunks
from marless.rpc.client import PACKAGE
from marless.rpc.v1 import coordinator_pb2 as pb

if TYPE_CHECKING:
    import grpc

_NUMBERS = itertools.count()
"""Numbers this process's partial files."""
REWRITTEN_BYTES = 2**16
"""Files up to this size may have changed without changing size (job.json), so they are always downloaded again. Larger
ones are checkpoints, which never change, and journals, which grow."""


def wanted(files: tuple[File, ...], folder: Path) -> list[File]:
    """The files that `folder` lacks or may have in an older state. Manifests come last, because a manifest marks its
    checkpoint as complete.

    Raises CorruptError for a path outside the folder.
    """
    lacking = [file for file in files if file.bytes <= REWRITTEN_BYTES or file.bytes != _size(place(file, folder))]
    return sorted(lacking, key=lambda file: (file.path.endswith("manifest.json"), file.path))


def place(file: File, folder: Path) -> Path:
    """The local path of a file; raises CorruptError if it is outside the folder."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise CorruptError(f"the coordinator names a file {file.path!r}, which is not in a run folder")
    return folder / path


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


async def fetch(connection: Connection, job: str, file: File, folder: Path) -> None:
    """Download one file; raises NotFoundError if it no longer exists, UnavailableError if it cannot be written."""
    target = place(file, folder)

    async def once() -> None:
        with Arriving(target) as arriving:
            async for data in _contents(connection, job, file.path):
                arriving.take(data)
            arriving.keep()

    try:
        await connection.repeat(once)
    except OSError as error:
        raise UnavailableError(f"{target}: cannot be written ({error.strerror}); choose another directory") from None


async def read(connection: Connection, job: str, path: str) -> bytes:
    """Read one file into memory; raises NotFoundError, CorruptError for one that is larger than any of its name."""
    most_bytes = _MOST_BYTES.get(path)

    async def once() -> bytes:
        return b"".join([bytes(data) async for data in _contents(connection, job, path, most_bytes)])

    return await connection.repeat(once)


async def _contents(
    connection: Connection, job: str, path: str, most_bytes: int | None = None
) -> AsyncGenerator[memoryview, None]:
    """Stream a file's contents; raises UnreachableError if there are fewer bytes than announced, CorruptError if there
    are more than `most_bytes`."""
    method: grpc.aio.UnaryStreamMultiCallable[pb.ReadFileRequest, bytes] = connection.peer.channel.unary_stream(
        f"/{PACKAGE}.CoordinatorService/ReadFile",
        request_serializer=pb.ReadFileRequest.SerializeToString,
        # Frames are parsed by hand, because protobuf's own bytes would be copied once more.
        response_deserializer=None,
    )
    async with aclosing(connection.peer.stream(method, pb.ReadFileRequest(job=job, path=path))) as frames:
        info, contents = await chunks.read_header(frames, pb.FileInfo)
        lacking = info.bytes
        if most_bytes is not None and lacking > most_bytes:
            raise CorruptError(f"{path} of job {job} has {lacking:,} bytes, and such a file has {most_bytes:,} at most")
        async for frame in contents:
            data = chunks.data_of(frame)
            lacking -= len(data)
            yield data
    # The server sends a file as long as it was when it was opened; one that became shorter
    # since then ends without an error.
    if lacking:
        raise UnreachableError(f"{path} was cut short")


_MOST_BYTES = {"job.json": MAX_STATUS_BYTES, "spec.yaml": MAX_SPEC_BYTES, MACHINES: MAX_MACHINES_BYTES}
"""Largest sizes of the files that are read whole, by name."""


class Arriving:
    """Writes a file under a temporary name and renames it when complete; safe if several processes download it at once.

    A context manager. Raises OSError.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._partial = target.with_name(f".{target.name}.{os.getpid()}-{next(_NUMBERS)}.partial")
        self._file: BinaryIO

    def __enter__(self) -> Arriving:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._tidy()
        descriptor = private_files.open_own(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._file = os.fdopen(descriptor, "wb")
        return self

    def _tidy(self) -> None:
        """Remove partial files that killed downloads of this file left, and any file at our temporary path."""
        self._partial.unlink(missing_ok=True)
        start, end = f".{self._target.name}.", ".partial"
        for each in self._target.parent.iterdir():
            if each.name.startswith(start) and each.name.endswith(end):
                process = each.name[len(start) : -len(end)].partition("-")[0]
                # A process that runs may still write its own.
                if process.isdecimal() and not Path("/proc", process).exists():
                    each.unlink(missing_ok=True)

    def take(self, data: memoryview) -> None:
        """Write the next bytes."""
        self._file.write(data)

    def keep(self) -> None:
        """Complete the file: rename it to its target."""
        self._file.close()
        self._partial.replace(self._target)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)
