"""Uploads checkpoints from the user's machine to a coordinator, for jobs that start from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marless.app.client.connection import Connection
from marless.core import regular_files
from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.limits import MAX_MANIFEST_BYTES, MAX_PUBLISH_BYTES, is_id
from marless.jobs.sections import StartSpec
from marless.jobs.spec import JobSpec
from marless.rpc.v1 import coordinator_pb2 as pb
from marless.storage import checkpoint
from marless.storage.checkpoint import MANIFEST, Manifest
from marless.storage.places import is_address

TIMEOUT_S = 600.0
_UPLOADED = "upload:"


@contextmanager
def local(spec: JobSpec) -> Iterator[Path | None]:
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
            timeout_s=TIMEOUT_S,
        )
    )
    return spec.model_copy(update={"start": StartSpec(checkpoint=answer.checkpoint)})
