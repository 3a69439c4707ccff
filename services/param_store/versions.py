"""Versions of policies: how they are written, with checks, attempts in Redis and the meaning of a script's answer; and
as they are published, with cursors, which name positions in the job's stream of publications; and the keys of a job.

All keys of a job have the job as their hash tag, so that a cluster keeps them on one node, where a script reads the
job's epoch, a policy's head and the job's events atomically. A lane of environment copies is a policy here, named
`lane/<index>` (`marless.rpc.carries`), and a gradient, named `gradient/<learner>/<scope>` (`marless.rpc.gradients`),
until it is applied or discarded; then none of its keys is left.

| key `marless:{<job>}:…`  | type   | holds                                                                    |
|--------------------------|--------|--------------------------------------------------------------------------|
| `fence`                  | hash   | `epoch`, and `req:<req_id>` → the epoch it was given                     |
| `heads`                  | hash   | policy → version                                                         |
| `events`                 | stream | one entry per new head, except gradients; its id is the cursor of `Watch`|
| `v:<version>:<policy>`   | hash   | round, epoch, req_id, published_s, event, manifest, `<part>:<i>` = bytes |
| `kept:<policy>`          | zset   | versions that exist                                                      |
| `pinned:<policy>`        | set    | versions that are kept whatever their age                                |
| `requests:<policy>`      | hash   | req_id → version, for those that exist                                   |
| `attempt:<random>`       | hash   | a version being written; expires unless it is published                  |
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marless.core.errors import ConflictError, FencedError, NotFoundError, SpecError, shown
from marless.core.limits import MAX_COUNT, MAX_POLICIES
from marless.rpc.requests import check_names, check_number, check_text
from marless.services.param_store.blobs import BlobPart, batches, pieces_of

_NAME = re.compile(r"[^\s{}]{1,200}")
_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
ATTEMPT_TTL_S = 60
LONGEST_REQUEST = 1000


class JobKeys:
    """The keys of one job; raises SpecError for a name that cannot be part of a key."""

    def __init__(self, job: str) -> None:
        check_name("job", job)
        self.job = job
        self.prefix = f"marless:{{{job}}}:"
        """Of all keys of the job."""
        self.fence, self.heads, self.events = f"{self.prefix}fence", f"{self.prefix}heads", f"{self.prefix}events"
        self.versions = f"{self.prefix}v:"
        """The prefix of the keys of versions."""

    def version(self, policy: str, version: int) -> str:
        """Key of one version."""
        return f"{self.versions}{version}:{policy}"

    def kept(self, policy: str) -> str:
        """Key of the numbers of existing versions."""
        return f"{self.prefix}kept:{policy}"

    def pinned(self, policy: str) -> str:
        """Key of the numbers of pinned versions."""
        return f"{self.prefix}pinned:{policy}"

    def requests(self, policy: str) -> str:
        """Key of the versions by the request that published them."""
        return f"{self.prefix}requests:{policy}"

    def attempt(self) -> str:
        """A new, random key for one attempt to publish, so that competing writers never share a key."""
        return f"{self.prefix}attempt:{secrets.token_hex(16)}"


def check_name(kind: str, name: str) -> None:
    """Raise SpecError unless `name` can be part of a key."""
    if not _NAME.fullmatch(name):
        raise SpecError(f"{kind} name {shown(name)}: use 1 to 200 characters without white space or braces")


@dataclass(frozen=True)
class VersionMetadata:
    """The metadata of a published version: everything but its bytes."""

    policy: str
    version: int
    round: int
    epoch: int
    req_id: str
    published_s: float
    cursor: str
    """Id of its publication in the job's stream of events."""
    parts: tuple[BlobPart, ...]

    @property
    def position(self) -> tuple[int, int]:
        """The cursor as a pair, which orders as the events do."""
        return position(self.cursor)

    def part(self, name: str) -> BlobPart:
        """The part of this name; raises NotFoundError."""
        for part in self.parts:
            if part.name == name:
                return part
        have = ", ".join(part.name for part in self.parts)
        raise NotFoundError(f"{self.policy}@{self.version} has no part {name!r}; it has {have}")


@dataclass(frozen=True)
class ListedPolicy:
    """The head of a policy, with the numbers of its existing and its pinned versions."""

    head: VersionMetadata
    versions: tuple[int, ...]
    pinned: tuple[int, ...]


def position(cursor: str) -> tuple[int, int]:
    """A cursor as a pair, which orders as the events do; "" comes first. Raises SpecError for an invalid cursor."""
    first, _, second = (cursor or "0-0").partition("-")
    if not _CURSOR.fullmatch(cursor or "0-0") or max(int(first), int(second)) >= 2**64:
        raise SpecError(f"{shown(cursor)} is not a cursor: continue from one that this store gave, or from ''")
    return int(first), int(second)


def version_from(fields: Sequence[bytes]) -> VersionMetadata:
    """The version whose fields `read.lua` has answered."""
    policy, version, round_, epoch, req_id, published_s, event, manifest = fields
    return VersionMetadata(
        policy=policy.decode(),
        version=int(version),
        round=int(round_),
        epoch=int(epoch),
        req_id=req_id.decode(),
        published_s=float(published_s),
        cursor=event.decode(),
        parts=tuple(BlobPart(name, size, bytes.fromhex(sha256)) for name, size, sha256 in json.loads(manifest)),
    )


@dataclass(frozen=True)
class Write:
    """The next version of one policy."""

    policy: str
    expected: int
    """The present head, which this version follows; 0 if there is none."""
    req_id: str
    """Idempotency key: unique to this write, the same when it is retried."""
    parts: tuple[BlobPart, ...]
    blobs: tuple[memoryview, ...]
    """The bytes of each part."""
    first_version: int = 1
    """The number of this version if it is the policy's first."""


def check_writes(epoch: int, round_: int, writes: Sequence[Write]) -> None:
    """Raise SpecError for a number, name or key that is out of bounds, and for a policy that is written twice."""
    check_number("epoch", epoch)
    check_number("round", round_)
    check_names("policies", [write.policy for write in writes], MAX_POLICIES)
    for write in writes:
        check_name("policy", write.policy)
        check_text("req_id", write.req_id, LONGEST_REQUEST)
        check_number(f"the version that policy {write.policy} is expected at", write.expected)
        if not 1 <= write.first_version <= MAX_COUNT:
            raise SpecError(f"policy {write.policy!r}: first_version {write.first_version}; versions start at 1")


def add_attempt(transaction: Any, key: str, epoch: int, round_: int, write: Write) -> None:  # Any: Pipeline
    """Add the commands that put a write into Redis under a key of its own; it expires unless a script publishes it."""
    facts: dict[str, object] = {
        "round": round_,
        "epoch": epoch,
        "req_id": write.req_id,
        "published_s": time.time(),
        "manifest": json.dumps([[part.name, part.size_bytes, part.sha256.hex()] for part in write.parts]),
    }
    blobs = {part.name: blob for part, blob in zip(write.parts, write.blobs, strict=True)}
    pieces = [piece for part in write.parts for piece in pieces_of(key, part)]
    values: list[dict[str, object]] = [
        {piece.field: blobs[piece.part.name][piece.start : piece.start + piece.size_bytes] for piece in batch}
        for batch in batches(pieces)
    ]
    # The facts go with the first pieces, so that a small version takes one command.
    for fields in (facts | (values[0] if values else {}), *values[1:]):
        transaction.execute_command("HSET", key, *(word for pair in fields.items() for word in pair))
    transaction.execute_command("EXPIRE", key, ATTEMPT_TTL_S)


def version_of(job: str, epoch: int, write: Write, outcome: Sequence[Any]) -> int:  # Any: a script's answer
    """The version that a script has published; raises the domain error for which it refused the write."""
    name, number = outcome[0], int(outcome[1])
    if name == b"conflict" and not number:  # refused because of its version, so it follows one
        raise NotFoundError(
            f"policy {write.policy!r} of job {job!r} has no version any more; this write expects {write.expected}"
        )
    if name == b"conflict":
        raise ConflictError(
            f"policy {write.policy!r} of job {job!r} is at version {number}; this write expects {write.expected}"
        )
    if name == b"fenced":
        raise FencedError(f"epoch {epoch} of job {job!r} is over: epoch {number} has begun, and only it may publish")
    if name == b"early":
        raise FencedError(f"epoch {epoch} of job {job!r} has not begun: the store's is {number}; acquire one first")
    return number


def advanced(
    job: str,
    epoch: int,
    writes: Sequence[Write],
    gradients: Sequence[tuple[str, int]],
    answer: Sequence[Any],  # Any: a script's answer
) -> dict[str, int]:
    """The versions that `advance.lua` has published; raises the domain error for which it refused all of them."""
    outcome, *numbers = answer
    if outcome == b"published":
        return {write.policy: int(version) for write, version in zip(writes, numbers, strict=True)}
    if outcome == b"missing":
        raise NotFoundError(missing(job, *gradients[numbers[0]]))
    write = writes[numbers[1]] if len(numbers) > 1 else writes[0]
    if outcome == b"partly":
        raise ConflictError(
            f"policy {write.policy!r} of job {job!r} has version {numbers[0]} of this round already, and others have "
            "none; go on from the present heads"
        )
    version_of(job, epoch, write, answer)
    raise AssertionError(f"{outcome!r} refuses a publish, and version_of raises")


def missing(job: str, gradient: str, version: int) -> str:
    """The sentence about a gradient that does not exist."""
    return (
        f"gradient {gradient!r}, version {version}, of job {job!r} is not in the store: it was never published, has "
        "been applied or discarded, or was lost; compute it once more, or go on without it"
    )
