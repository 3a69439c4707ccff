"""Files between the user's machine and a coordinator: run folders are downloaded, and checkpoints that jobs start from
are uploaded. Each downloaded file appears atomically.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from marless.app.client.connection import Connection
from marless.app.client.jobs import File
from marless.core import private_files, regular_files
from marless.core.errors import CorruptError, NotFoundError, SpecError, UnavailableError, UnreachableError
from marless.core.limits import (
    MAX_MACHINES_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_PUBLISH_BYTES,
    MAX_SPEC_BYTES,
    MAX_STATUS_BYTES,
    is_id,
)
from marless.core.machine import MACHINES
from marless.rpc import chunks
from marless.rpc.client import PACKAGE
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.storage import checkpoint
from marless.storage.checkpoint import MANIFEST, Manifest
from marless.storage.places import is_address

if TYPE_CHECKING:
    import grpc

    from marless.jobs.spec import JobSpec

UPLOAD_TIMEOUT_S = 600.0
_UPLOADED = "upload:"
_MOST_BYTES = {"job.json": MAX_STATUS_BYTES, "spec.yaml": MAX_SPEC_BYTES, MACHINES: MAX_MACHINES_BYTES}
"""Largest sizes of the files that are read whole, by name."""
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
    lacking = []
    for file in files:
        path = place(file, folder)
        present_bytes = path.stat().st_size if path.is_file() else -1
        if file.bytes <= REWRITTEN_BYTES or file.bytes != present_bytes:
            lacking.append(file)
    return sorted(lacking, key=lambda file: (file.path.endswith("manifest.json"), file.path))


def place(file: File, folder: Path) -> Path:
    """The local path of a file; raises CorruptError if it is outside the folder."""
    path = PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise CorruptError(f"the coordinator names a file {file.path!r}, which is not in a run folder")
    return folder / path


async def fetch(connection: Connection, job: str, file: File, folder: Path) -> None:
    """Download one file; raises NotFoundError if it no longer exists, UnavailableError if it cannot be written."""
    target = place(file, folder)

    async def once() -> None:
        with Arriving(target) as arriving:
            async for data in contents(connection, job, file.path):
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
        return b"".join([bytes(data) async for data in contents(connection, job, path, most_bytes)])

    return await connection.repeat(once)


async def contents(
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
        # Partial files that killed downloads of this file have left, and any file at our temporary path, are removed.
        self._partial.unlink(missing_ok=True)
        start, end = f".{self._target.name}.", ".partial"
        for each in self._target.parent.iterdir():
            if each.name.startswith(start) and each.name.endswith(end):
                process = each.name[len(start) : -len(end)].partition("-")[0]
                # A process that runs may still write its own.
                if process.isdecimal() and not Path("/proc", process).exists():
                    each.unlink(missing_ok=True)
        descriptor = private_files.open_own(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._file = os.fdopen(descriptor, "wb")
        return self

    def take(self, data: memoryview) -> None:
        """Write the next bytes."""
        self._file.write(data)

    def keep(self) -> None:
        """Complete the file: rename it to its target."""
        self._file.close()
        self._partial.replace(self._target)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)


@contextmanager
def local_checkpoint(spec: JobSpec) -> Iterator[Path | None]:
    """The local checkpoint directory that a job starts from; None if it starts from a job, an upload, or new weights.

    A checkpoint in a bucket (s3://...) is copied to this machine, with the user's credentials. Raises SpecError if
    there is no such directory or the checkpoint is damaged, and what `marless.storage.bucket.objects` lists.
    """
    reference = spec.start.checkpoint or ""
    if is_address(reference):
        from marless.storage.bucket import reading

        with reading.local_copy(reference, reading.checkpoint()) as copy:
            yield _checked(copy)
    elif not reference or reference.startswith(_UPLOADED) or is_id(reference):
        yield None
    elif (folder := Path(reference)).is_dir():
        yield _checked(folder)
    else:
        raise SpecError(f"start.checkpoint: {reference!r} is neither the id of a job nor a directory here")


def _checked(folder: Path) -> Path:
    try:
        found = checkpoint.newest(folder)
        checkpoint.read(found)
    except (NotFoundError, CorruptError) as error:
        raise SpecError(f"start.checkpoint: {error}") from None
    return found


async def sent(connection: Connection, directory: Path, spec: JobSpec) -> JobSpec:
    """Upload a checkpoint; returns the spec with `start.checkpoint` set to the upload."""
    data = regular_files.read(directory / MANIFEST, MAX_MANIFEST_BYTES)
    manifest = Manifest.parse(data, str(directory / MANIFEST))
    files = [regular_files.read(directory / file.name, MAX_PUBLISH_BYTES) for file in manifest.files]
    header = pb.CheckpointHeader(manifest_bytes=len(data), file_bytes=map(len, files))
    answer = await connection.repeat(
        lambda: connection.peer.send(
            "CoordinatorService/UploadCheckpoint",
            header,
            [data, *files],
            pb.UploadCheckpointResponse,
            timeout_s=UPLOAD_TIMEOUT_S,
        )
    )
    return spec.model_copy(update={"start": type(spec.start)(checkpoint=answer.checkpoint)})
