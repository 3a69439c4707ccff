"""Where readers find what was made for them: files in memory, and an event loop."""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Memory:
    """As much of a `Path` as readers of whole files need."""

    def __init__(self, files: Mapping[str, bytes], name: str = "") -> None:
        self._files, self._name = files, name

    def __truediv__(self, name: str) -> Memory:
        return Memory(self._files, name)

    def __str__(self) -> str:
        return f"memory/{self._name}"

    def absolute(self) -> Memory:
        return self

    def read_bytes(self) -> bytes:
        if self._name not in self._files:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return self._files[self._name]

    def read_text(self, encoding: str) -> str:
        return self.read_bytes().decode(encoding)


@cache
def directory() -> Path:
    """A directory of this process, in memory if there is such a place; gone when the process ends."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="marless-fuzz-", dir=shared if shared.is_dir() else None))
    atexit.register(clean)
    return made


def clean() -> None:
    """Remove the directory of this process, if it has one."""
    if directory.cache_info().currsize:
        shutil.rmtree(directory(), ignore_errors=True)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; one loop serves all inputs."""
    return _loop().run_until_complete(coroutine)


async def stream(frames: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Frames as they come from a peer."""
    for frame in frames:
        yield frame


def json_text(value: Any) -> str:  # Any: JSON
    """A document as text; numbers and characters that JSON does not know included."""
    return json.dumps(value, ensure_ascii=False)
