"""The Redis keys of a job, and the encoding of a version's parts as fields.

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
from collections.abc import Sequence
from dataclasses import dataclass

from marless.core.errors import SpecError, shown

PIECE_BYTES = 8 * 2**20
"""Longest value of a field: Redis serves no other client while it copies one."""
_NAME = re.compile(r"[^\s{}]{1,200}")


@dataclass(frozen=True)
class BlobPart:
    """One blob of a version."""

    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class JobKeys:
    """The keys of one job; raises SpecError for a name that cannot be part of a key."""

    job: str

    def __post_init__(self) -> None:
        check_name("job", self.job)

    @property
    def prefix(self) -> str:
        """The prefix of all keys of the job."""
        return f"marless:{{{self.job}}}:"

    @property
    def fence(self) -> str:
        """Key of the epochs."""
        return f"{self.prefix}fence"

    @property
    def heads(self) -> str:
        """Key of the head versions by policy."""
        return f"{self.prefix}heads"

    @property
    def events(self) -> str:
        """Key of the stream of new heads."""
        return f"{self.prefix}events"

    @property
    def versions(self) -> str:
        """The prefix of the keys of versions."""
        return f"{self.prefix}v:"

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


def encode_manifest(parts: Sequence[BlobPart]) -> str:
    """Encode the names, sizes and checksums of a version's parts as JSON."""
    return json.dumps([[part.name, part.size_bytes, part.sha256.hex()] for part in parts])


def decode_manifest(text: bytes) -> tuple[BlobPart, ...]:
    """The inverse of `encode_manifest`."""
    return tuple(BlobPart(name, size, bytes.fromhex(sha256)) for name, size, sha256 in json.loads(text))
