"""Published versions: their metadata, and cursors, which name positions in the job's stream of publications."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from marless.core.errors import NotFoundError, SpecError, shown
from services.param_store.keys import BlobPart, decode_manifest

_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


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
        parts=decode_manifest(manifest),
    )
