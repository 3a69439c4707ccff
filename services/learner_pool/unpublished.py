"""Saves an update's result to a file if the store could not take it, because its epoch was over or the store was down.

The pool publishes the file when the update is requested again with the same inputs, and does not compute it again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marless import private_files
from marless.errors import FencedError, MarlessError, OverloadedError, UnauthenticatedError, UnavailableError
from marless.log import structlog
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.v1 import learner_pool_pb2, param_store_pb2

PASSING = (FencedError, UnavailableError, OverloadedError, UnauthenticatedError)
"""Errors of a publish that may succeed later; FencedError: under the epoch of the next coordinator;
UnauthenticatedError: with the next token."""
_log = structlog.get_logger("learner")


def leave(path: Path, writes: Sequence[PolicyWrite], error: MarlessError) -> learner_pool_pb2.Unpublished:
    """Write the blobs that were not published because of `error` to a file; raises `error` if that fails, too."""
    try:
        path.unlink(missing_ok=True)  # left by an earlier attempt whose worker died
        with os.fdopen(private_files.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            for write in writes:
                file.writelines(write.blobs.values())
    except OSError as problem:
        _log.warning("update.not_kept", path=str(path), error=problem.strerror)
        path.unlink(missing_ok=True)
        raise error from None
    policies = [
        param_store_pb2.PolicyPublish(
            policy=write.policy,
            expected=write.expected,
            req_id=write.req_id,
            blobs=[param_store_pb2.BlobInfo(part=part, bytes=len(blob)) for part, blob in write.blobs.items()],
        )
        for write in writes
    ]
    return learner_pool_pb2.Unpublished(
        path=str(path), policies=policies, error_code=type(error).__name__, error=str(error)
    )


async def publish(
    store: ParamStore, job: str, epoch: int, round_: int, left: learner_pool_pb2.Unpublished
) -> Mapping[str, int]:
    """Publish the content of such a file; returns the versions. Raises the errors of `ParamStore.publish`."""
    return await store.publish(job, epoch, round_, list(_writes(left)))


def _writes(left: learner_pool_pb2.Unpublished) -> Iterator[PolicyWrite]:
    descriptor = private_files.open_own(Path(left.path), os.O_RDONLY)
    try:
        view = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))  # stays mapped as long as the blobs exist
    finally:
        os.close(descriptor)
    at = 0
    for each in left.policies:
        blobs: dict[str, bytes | memoryview] = {}
        for blob in each.blobs:
            blobs[blob.part] = view[at : at + blob.bytes]
            at += blob.bytes
        yield PolicyWrite(policy=each.policy, expected=each.expected, req_id=each.req_id, blobs=blobs)
