"""A bucket in memory, with the faults of a network and of servers that do less than S3."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from marless.core.errors import ConflictError, CorruptError, NotFoundError, UnreachableError
from marless.storage.bucket.objects import Held, ListedObject


class MemoryObjects:
    """See `marless.storage.bucket.objects.Objects`."""

    def __init__(self, *, honours_conditions: bool = True) -> None:
        self.held: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        """Method and key of each call so far."""
        self.before: Callable[[str, str], None] = lambda method, key: None
        """Called before a call takes effect; may raise, or write behind the caller's back."""
        self.after: Callable[[str, str], None] = lambda method, key: None
        """Called once a write has taken effect; may raise: the answer is lost."""
        self._honours = honours_conditions
        self._alone = threading.Lock()

    def unplug(self) -> None:
        """From here on, no call reaches the bucket."""

        def refuse(method: str, key: str) -> None:
            raise UnreachableError(f"{key}: {method} was not answered")

        self.before = refuse

    def plug_in(self) -> None:
        """All calls are answered again."""
        self.before = self.after = lambda method, key: None

    def get(self, key: str, most_bytes: int, *, unless: str = "") -> Held | None:
        self._begin("get", key)
        data = self._there(key)
        if len(data) > most_bytes:
            raise CorruptError(f"{key}: {len(data)} bytes")
        return None if unless == _tag(data) else Held(data, _tag(data))

    def fetch(self, key: str, target: Path, most_bytes: int) -> None:
        held = self.get(key, most_bytes)
        assert held
        target.write_bytes(held.data)

    def put(self, key: str, data: bytes) -> None:
        self._write("put", key, data, lambda: True)

    def send(self, key: str, source: Path) -> None:
        self._write("send", key, source.read_bytes(), lambda: True)

    def create(self, key: str, data: bytes) -> str:
        return self._write("create", key, data, lambda: key not in self.held)

    def replace(self, key: str, data: bytes, etag: str) -> str:
        return self._write("replace", key, data, lambda: key in self.held and _tag(self.held[key]) == etag)

    def listing(self, prefix: str) -> Iterator[ListedObject]:
        self._begin("listing", prefix)
        yield from (ListedObject(key, len(data)) for key, data in sorted(self.held.items()) if key.startswith(prefix))

    def folders(self, prefix: str) -> Iterator[str]:
        self._begin("folders", prefix)
        rests = (key.removeprefix(prefix) for key in self.held if key.startswith(prefix))
        yield from sorted({rest.split("/")[0] for rest in rests if "/" in rest})

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._begin("delete", key)
            self.held.pop(key, None)

    def remove(self, key: str, etag: str) -> None:
        self._begin("remove", key)
        with self._alone:
            if key not in self.held or (self._honours and _tag(self.held[key]) != etag):
                raise ConflictError(f"{key}: another program has written the object")
            del self.held[key]

    def _write(self, method: str, key: str, data: bytes, allowed: Callable[[], bool]) -> str:
        self._begin(method, key)
        with self._alone:
            if self._honours and not allowed():
                raise ConflictError(f"{key}: another program has written the object")
            self.held[key] = data
        self.after(method, key)
        return _tag(data)

    def _begin(self, method: str, key: str) -> None:
        self.calls.append((method, key))
        self.before(method, key)

    def _there(self, key: str) -> bytes:
        if key not in self.held:
            raise NotFoundError(f"{key}: there is no such object")
        return self.held[key]


def _tag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
