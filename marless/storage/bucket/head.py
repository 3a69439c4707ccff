"""head.json: the one object of a run folder in a bucket that changes, and so the truth about it.

    s3://bucket/prefix/<job>/head.json
    s3://bucket/prefix/<job>/<change>/spec.yaml
    s3://bucket/prefix/<job>/<change>/checkpoints/round-000050/manifest.json, ...
    s3://bucket/prefix/<job>/<change>/rounds.jsonl

The head is only ever replaced on the condition that it is still the one that its writer knows. It holds what is small
and changes every round: job.json, pending.json, and the newest lines of rounds.jsonl. It names all other objects, with
sizes and digests. These are written before the head that first names them, under the name of that change, and never
again. So each head is a whole run folder, and two writers never mix theirs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from marless.core.documents import dataclass_of
from marless.core.errors import CorruptError
from marless.storage.places import Address

HEAD = "head.json"
ROUNDS = "rounds.jsonl"
FORMAT = 1
MOST_HEAD_BYTES = 2**26
MOST_FILES = 2**14
MOST_PART_BYTES = 5 * 10**9
MOST_SEGMENT_ROUNDS = 2**40
"""S3 takes no larger object in one call."""
_CHANGE = re.compile(r"[0-9a-f]{16}-\d{1,12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LONGEST_PATH_BYTES = 300
_NOT_KEPT = ("owner.lock", "store")


@dataclass(frozen=True, kw_only=True)
class BucketPart:
    """An object that is written once: a file of the run folder, or a piece of rounds.jsonl."""

    change: str
    """Name of the change that wrote it, the first part of its key in the job's prefix."""
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A piece of rounds.jsonl: the lines of consecutive rounds."""

    part: BucketPart
    rounds: int


@dataclass(frozen=True, kw_only=True)
class RunHead:
    """The contents of head.json."""

    owner: str
    """Random name of the coordinator that may write; "" if there is none."""
    holder: str = ""
    """Host and process of the owner, for people."""
    serial: int = 0
    """Number of changes so far: no two heads of a job are equal."""
    deleted: bool = False
    """The job is deleted, and its other objects may be gone."""
    status: str = ""
    """job.json."""
    pending: str = ""
    """pending.json; "" if there is none."""
    files: Mapping[str, BucketPart] = field(default_factory=dict)
    """All other files of the run folder, by path."""
    segments: tuple[Segment, ...] = ()
    """The first lines of rounds.jsonl."""
    tail: tuple[str, ...] = ()
    """The lines after those, without newlines."""

    @property
    def rounds(self) -> int:
        """Number of recorded rounds."""
        return sum(segment.rounds for segment in self.segments) + len(self.tail)

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Rounds that have a checkpoint, ascending."""
        found = (_ROUND.fullmatch(path) for path in self.files)
        return tuple(sorted(int(each[1]) for each in found if each))

    def keys(self, place: Address) -> set[str]:
        """The keys of all objects that this head names; `place` is that of the job."""
        pieces = {place.key(key_of(ROUNDS, segment.part)) for segment in self.segments}
        return pieces | {place.key(key_of(path, part)) for path, part in self.files.items()}

    def same_content(self, other: RunHead) -> bool:
        """True if both hold the same run folder, whoever wrote them."""
        return replace(self, owner=other.owner, holder=other.holder, serial=other.serial) == other

    def encoded(self) -> bytes:
        """The object's bytes."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, data: bytes, where: str) -> RunHead:
        """Read the object's bytes, which are untrusted; raises CorruptError."""
        try:
            held = json.loads(data)
            if held.pop("format") != FORMAT or len(held["files"]) > MOST_FILES or not {"segments", "tail"} <= set(held):
                raise ValueError(held)
            head = dataclass_of(cls, held)
            parts = (*head.files.values(), *(segment.part for segment in head.segments))
            if not (
                all(_CHANGE.fullmatch(part.change) and _DIGEST.fullmatch(part.sha256) for part in parts)
                and all(0 <= part.bytes <= MOST_PART_BYTES for part in parts)
                and all(map(is_path, head.files))
                and not any("\n" in line for line in head.tail)
                and head.serial >= 0
                and all(0 <= segment.rounds <= MOST_SEGMENT_ROUNDS for segment in head.segments)
            ):
                raise ValueError(head)
            return head
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CorruptError(f"{where}: not a run folder that marless wrote, or one of another version") from None


_ROUND = re.compile(r"checkpoints/round-(\d{6,12})/manifest\.json")


def key_of(path: str, part: BucketPart) -> str:
    """The key of a part in the prefix of its job."""
    return f"{part.change}/{path}"


def without(head: RunHead, paths: set[str]) -> RunHead:
    """The head without these files."""
    return replace(head, files={path: part for path, part in head.files.items() if path not in paths})


def is_path(path: str) -> bool:
    """True for a path in a run folder, False for one that leads out of it, or that marless does not keep in buckets."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or len(path.encode()) > _LONGEST_PATH_BYTES:
        return False
    return parts[0] not in _NOT_KEPT and all(part and not part.startswith(".") for part in parts)
