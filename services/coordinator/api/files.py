"""Lists and opens the files of a run folder that clients may download; refuses every path outside of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from marless.core.errors import NotFoundError
from services.coordinator.state.ownership import LOCK

_NOT_FOR_USERS = ("store",)
"""Folders that clients cannot download: `store`, the database of the Redis that `marless train` starts."""


class ListedFile(NamedTuple):
    """A file's path relative to the run folder, with forward slashes, and its present size in bytes."""

    path: str
    bytes: int


def listing(folder: Path) -> list[ListedFile]:
    """All finished regular files of a run folder, sorted by path."""
    return sorted(_files(folder))


def open_file(folder: Path, path: str) -> tuple[BinaryIO, int]:
    """Open a file that `listing` returns; returns it with its present size in bytes.

    Raises NotFoundError for every other path, symbolic links included.
    """
    missing = NotFoundError(f"there is no file {path!r} in {folder}; `marless download` fetches those that exist")
    if not _is_for_users(path) or path != Path(path).as_posix():
        raise missing
    target = folder / path
    try:
        if target.resolve(strict=True) != folder.resolve() / path:
            raise missing  # a link, which may lead anywhere
        # What has been put in place of the file since may be a link, or a pipe that would be waited for.
        descriptor = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (OSError, ValueError):
        raise missing from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise missing
    return os.fdopen(descriptor, "rb"), found.st_size


def _files(folder: Path) -> Iterator[ListedFile]:
    for directory, subfolders, names in os.walk(folder):
        here = Path(directory).relative_to(folder)
        subfolders[:] = [name for name in subfolders if _is_for_users((here / name).as_posix())]
        for name in names:
            path = (here / name).as_posix()
            try:
                found = (folder / path).lstat()
            except FileNotFoundError:  # removed since it was listed, as old checkpoints are
                continue
            if _is_for_users(path) and stat.S_ISREG(found.st_mode):
                yield ListedFile(path, found.st_size)


def _is_for_users(path: str) -> bool:
    """False for files being written, lock files, folders in _NOT_FOR_USERS, and paths that leave the folder."""
    parts = path.split("/")
    return not (
        parts[0] in _NOT_FOR_USERS
        or any(part in ("", ".", "..") or part.startswith(LOCK) or part.endswith(".partial") for part in parts)
    )
