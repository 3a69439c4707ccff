"""Where readers find what was made for them: files, and an event loop."""

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


def files(contents: Mapping[str, bytes]) -> Path:
    """A directory with these files, the same for all inputs of a target."""
    place = directory() / "files"
    place.mkdir(exist_ok=True)
    for name, content in contents.items():
        (place / name).write_bytes(content)
    return place


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
