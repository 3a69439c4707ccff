"""Saves an update's result if the store could not take it, because its epoch was over or the store was down.

The worker writes it into a file of its pool, wherever the worker runs. The pool publishes the file when the update is
requested again with the same inputs, and does not compute it again.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from marless.core import private_files
from marless.core.errors import FencedError, MarlessError, OverloadedError, UnauthenticatedError, UnavailableError
from marless.core.log import structlog
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.refs import Borrowed
from marless.rpc.v1 import common_pb2, learner_pool_pb2, param_store_pb2

PASSING = (FencedError, UnavailableError, OverloadedError, UnauthenticatedError)
"""Errors of a publish that may succeed later; FencedError: under the epoch of the next coordinator;
UnauthenticatedError: with the next token."""
_log = structlog.get_logger("learner")


async def set_aside(
    borrowed: Borrowed, spare: common_pb2.Ref, writes: Sequence[PolicyWrite], error: MarlessError
) -> learner_pool_pb2.Unpublished:
    """Write the blobs that were not published because of `error` to the task's spare file, which is the pool's.

    Raises `error` if that fails, too.
    """
    content = b"".join(blob for write in writes for blob in write.blobs.values())
    try:
        await borrowed.write(spare, [slice(0, len(content))], memoryview(content))
    except MarlessError as problem:
        _log.warning("update.not_kept", error=str(problem))
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
    return learner_pool_pb2.Unpublished(policies=policies, error_code=type(error).__name__, error=str(error))


def is_whole(left: learner_pool_pb2.Unpublished, spare: Path) -> bool:
    """True if the file has all bytes that the worker says to have left in it."""
    declared = sum(blob.bytes for policy in left.policies for blob in policy.blobs)
    with suppress(FileNotFoundError):
        return 0 < declared <= spare.stat().st_size
    return False


async def publish(
    store: ParamStore,
    job: str,
    epoch: int,
    round_: int,
    left: learner_pool_pb2.Unpublished,
    spare: Path,
    *,
    keep: int = 0,
) -> Mapping[str, int]:
    """Publish the content of such a file; returns the versions. Raises the errors of `ParamStore.publish`."""
    return await store.publish(job, epoch, round_, list(_writes(left, spare)), keep=keep)


def _writes(left: learner_pool_pb2.Unpublished, spare: Path) -> Iterator[PolicyWrite]:
    descriptor = private_files.open_own(spare, os.O_RDONLY)
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
