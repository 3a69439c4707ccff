"""What marless needs of a bucket: reads, writes on a condition, lists and deletions.

S3 is strongly consistent: a read or list that begins after a write has been answered sees it. A write on a condition is
applied or refused as a whole, whatever other writers do at the same time.

Every method may raise UnreachableError (no answer, throttled), UnauthenticatedError (no or wrong credentials),
PermissionDeniedError, and NotFoundError for a bucket that does not exist.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from marless.core.errors import ConflictError, SpecError
from marless.storage.bucket.address import Address


@dataclass(frozen=True)
class Held:
    """An object that was read."""

    data: bytes
    etag: str
    """Names this content of the object: another one has another tag."""


@dataclass(frozen=True)
class ListedObject:
    """An object in a list."""

    key: str
    bytes: int


class Objects(Protocol):
    """The objects of one bucket, by key. Its methods block, and may be called from any thread."""

    def get(self, key: str, most_bytes: int, *, unless: str = "") -> Held | None:
        """Read an object; None if its tag is `unless`. Raises NotFoundError, CorruptError if it is too large."""

    def fetch(self, key: str, target: Path, most_bytes: int) -> None:
        """Copy an object to a file; raises as `get`, and OSError."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whether or not it exists."""

    def send(self, key: str, source: Path) -> None:
        """Write an object from a file; raises as `put`, and OSError."""

    def create(self, key: str, data: bytes) -> str:
        """Write a new object, and return its tag; raises ConflictError if it exists."""

    def replace(self, key: str, data: bytes, etag: str) -> str:
        """Replace an object whose tag is `etag`, and return its new tag; raises ConflictError if it has another tag, or
        does not exist."""

    def listing(self, prefix: str) -> Iterator[ListedObject]:
        """The objects whose keys start with `prefix`, by key."""

    def folders(self, prefix: str) -> Iterator[str]:
        """What follows `prefix` in keys up to their next slash, each once."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete these objects, as far as they exist."""

    def remove(self, key: str, etag: str) -> None:
        """Delete an object whose tag is `etag`.

        Raises ConflictError if it has another tag, or does not exist, SpecError if the server has no such deletions.
        """


def check_conditions(objects: Objects, place: Address) -> None:
    """Raise SpecError if the bucket does not honour conditions, without which two coordinators could run one job.

    Writes a small object at `place`, and deletes it. Some servers take requests with conditions and ignore those.
    """
    # A random name, because several coordinators may try this at the same time.
    key = place.key(f".conditions-{secrets.token_hex(8)}")
    ignored = []
    try:
        etag = objects.create(key, b"1")
        if not _refuses(lambda: objects.create(key, b"2")):
            ignored.append("If-None-Match")
        objects.replace(key, b"3", etag)
        if not _refuses(lambda: objects.replace(key, b"4", etag)):
            ignored.append("If-Match")
    finally:
        objects.delete([key])
    if ignored:
        raise SpecError(
            f"{place}: this server ignores {' and '.join(ignored)}, so two coordinators could run one job; use one "
            "with conditional writes"
        )


def _refuses(write: Callable[[], object]) -> bool:
    try:
        write()
    except ConflictError:
        return True
    return False
