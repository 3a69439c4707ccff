"""Where things are in Redis, and how a version's parts are cut into fields.

All keys of a job carry the job as their hash tag, so that in a cluster they lie together: one script sees the job's
epoch, a policy's head, and the job's events as of one moment.

| key `marless:{<job>}:…`  | type   | holds                                                                    |
|--------------------------|--------|--------------------------------------------------------------------------|
| `fence`                  | hash   | `epoch`, and `req:<req_id>` → the epoch it was given                     |
| `heads`                  | hash   | policy → version                                                         |
| `events`                 | stream | one entry per new head; its id is the cursor of a watch                  |
| `v:<version>:<policy>`   | hash   | round, epoch, req_id, published_s, event, manifest, `<part>:<i>` = bytes |
| `kept:<policy>`          | zset   | versions that exist                                                      |
| `pinned:<policy>`        | set    | versions that retention keeps                                            |
| `requests:<policy>`      | hash   | req_id → version, for those that exist                                   |
| `attempt:<random>`       | hash   | a version being written; expires unless it is published                  |
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from marless.errors import SpecError, shown

PIECE_BYTES = 8 * 2**20
"""Longest value: Redis answers nobody else while it copies one."""
_NAME = re.compile(r"[^\s{}]{1,200}")


@dataclass(frozen=True)
class Part:
    """One blob of a version."""

    name: str
    size_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class JobKeys:
    """The keys of one job; raises SpecError for names that cannot be part of a key."""

    job: str

    def __post_init__(self) -> None:
        check_name("job", self.job)

    @property
    def prefix(self) -> str:
        """What all keys of the job start with."""
        return f"marless:{{{self.job}}}:"

    @property
    def fence(self) -> str:
        """Epochs."""
        return f"{self.prefix}fence"

    @property
    def heads(self) -> str:
        """Heads by policy."""
        return f"{self.prefix}heads"

    @property
    def events(self) -> str:
        """New heads in order."""
        return f"{self.prefix}events"

    @property
    def versions(self) -> str:
        """What keys of versions start with."""
        return f"{self.prefix}v:"

    def version(self, policy: str, version: int) -> str:
        """One version."""
        return f"{self.versions}{version}:{policy}"

    def kept(self, policy: str) -> str:
        """Versions that exist."""
        return f"{self.prefix}kept:{policy}"

    def pinned(self, policy: str) -> str:
        """Versions that retention keeps."""
        return f"{self.prefix}pinned:{policy}"

    def requests(self, policy: str) -> str:
        """Which request published what."""
        return f"{self.prefix}requests:{policy}"

    def attempt(self) -> str:
        """A new key for one attempt to publish: writers that compete never touch each other's bytes."""
        return f"{self.prefix}attempt:{secrets.token_hex(16)}"


def check_name(kind: str, name: str) -> None:
    """Raises SpecError unless `name` can be part of a key."""
    if not _NAME.fullmatch(name):
        raise SpecError(f"{kind} name {shown(name)}: use 1 to 200 characters without white space or braces")


def encode_manifest(parts: Sequence[Part]) -> str:
    """What a version consists of, as text."""
    return json.dumps([[part.name, part.size_bytes, part.sha256.hex()] for part in parts])


def decode_manifest(text: bytes) -> tuple[Part, ...]:
    """The inverse of `encode_manifest`."""
    return tuple(Part(name, size, bytes.fromhex(sha256)) for name, size, sha256 in json.loads(text))
