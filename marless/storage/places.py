"""What the name of a run, checkpoint or policy means: a place in a bucket (`s3://bucket/prefix`), a path, or a job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from marless.core.errors import SpecError, shown

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_LONGEST_PREFIX_BYTES = 700
"""S3 takes keys of 1,024 bytes; the rest is for the names in a run folder."""


@dataclass(frozen=True)
class Address:
    """A place in a bucket: a bucket and what the keys of its objects start with."""

    bucket: str
    prefix: str
    """Without slashes at its ends; "": the whole bucket."""

    def key(self, name: str) -> str:
        """The key of the object of this name below the place."""
        return f"{self.prefix}/{name}" if self.prefix and name else self.prefix or name

    def below(self, name: str) -> Address:
        """The place of this name below the place."""
        return Address(self.bucket, self.key(name))

    @property
    def name(self) -> str:
        """The last part of the prefix."""
        return self.prefix.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def is_address(text: object) -> bool:
    """True for text that names a place in a bucket, well-formed or not."""
    return isinstance(text, str) and text.startswith(SCHEME)


def parse(text: str) -> Address:
    """Read `s3://bucket/prefix`; raises SpecError."""
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    parts = prefix.strip("/").split("/")
    if not is_address(text) or not _BUCKET.fullmatch(bucket):
        raise SpecError(f"{shown(text)} names no bucket; write s3://bucket/prefix")
    if any(part in (".", "..") or not part.isprintable() for part in parts) or (len(parts) > 1 and "" in parts):
        raise SpecError(f"{shown(text)}: a prefix has no empty part, and none that is . or ..")
    if len(prefix.encode()) > _LONGEST_PREFIX_BYTES:
        raise SpecError(f"{shown(text)}: a prefix has {_LONGEST_PREFIX_BYTES} bytes at most")
    return Address(bucket, "/".join(parts))


def ambiguity_note(name: str, runs: Path) -> str:
    """A note for the user if `name` is both a path in the working directory and a job in `runs`; else "".

    The path in the working directory takes precedence. A name with a slash is a path and never ambiguous.
    """
    here, there = Path(name), runs / name
    if here.name != name or not (here.exists() and there.exists()) or here.resolve() == there.resolve():
        return ""
    return (
        f"note: {name} is read from ./{name}, not from the job of that id; `{there}` names the job, and `./{name}` "
        "what is here"
    )
