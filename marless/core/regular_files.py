"""Reads the files of run folders, checkpoints and policies, whatever is in their place.

Such a folder may come from anybody, and what is in place of a file may be a pipe or a device, which a reader waits for
or reads without end, a directory, or a file that is larger than memory. So every reader opens files here: without
waiting, and read only if the opened descriptor, which nobody can exchange any more, is of a regular file that is not
too large. A link to such a file is as good as the file.

All raise NotFoundError if there is no file, CorruptError for what is no readable file of its kind, and UnavailableError
if the system refuses to read it. Each message names the path.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from marless.core.errors import CorruptError, MarlessError, NotFoundError, UnavailableError
from marless.core.limits import MAX_RECORD_BYTES

_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""A pipe does not make its reader wait for a writer, and a terminal does not become that of the process."""
_MISSING = (errno.ENOENT, errno.ENOTDIR)
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def opened(path: Path) -> BufferedReader:
    """Open a regular file for reading."""
    try:
        _check(path, path.stat().st_mode)  # before it is opened, because opening a device or a pipe can have effects
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refused(path, error) from None
    file = os.fdopen(descriptor, "rb")
    try:
        _check(path, os.fstat(descriptor).st_mode)  # it may have been exchanged in between
    except CorruptError:
        file.close()
        raise
    return file


def read(path: Path, most_bytes: int) -> bytes:
    """The content of a file of at most `most_bytes` bytes: what it holds when it is opened."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise CorruptError(
                f"{path} has {size:,} bytes, and a file of its kind has {most_bytes:,} at most; remove it"
            )
        try:
            return file.read(size)
        except OSError as error:
            raise refused(path, error) from None


def text(path: Path, most_bytes: int) -> str:
    """The content of a file of UTF-8 text."""
    return decoded(read(path, most_bytes), str(path))


def decoded(data: bytes, where: str) -> str:
    """Bytes of UTF-8 as text; raises CorruptError that says which byte is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CorruptError(f"{where}: byte {error.start} ({data[error.start]:#04x}) is not UTF-8 text") from None


def lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines of a file from its present position on, with their newlines; a last one without is incomplete."""
    # One byte more than is allowed, so that a longer line is noticed without being read to its end.
    while line := file.readline(MAX_RECORD_BYTES + 1):
        check_line(len(line), path)
        yield line


def check_line(size_bytes: int, path: Path) -> None:
    """Raise CorruptError for a line that is longer than any that marless writes."""
    if size_bytes > MAX_RECORD_BYTES:
        raise CorruptError(f"{path}: a line has more than {MAX_RECORD_BYTES:,} bytes, so it is not a round record")


def is_there(path: Path) -> bool:
    """True unless nothing has this path: a reader says what is wrong with a link that leads nowhere, or with a
    directory that only its user may enter.
    """
    try:
        path.lstat()
    except (OSError, ValueError) as error:
        return isinstance(error, PermissionError)
    return True


def is_directory(path: Path) -> bool:
    """True for a directory and a link to one; False for anything else, and for what cannot be looked at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def refused(path: Path, error: OSError | ValueError) -> MarlessError:
    """The error to raise if the system refuses a path."""
    code = error.errno if isinstance(error, OSError) else None
    if code in _MISSING:
        return NotFoundError(f"{path}: there is no such file")
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if code == errno.ELOOP:
        return CorruptError(f"{path}: {why}; remove the link")
    return UnavailableError(f"{path}: {why}")


def _check(path: Path, mode: int) -> None:
    """Raise CorruptError unless this is the mode of a regular file."""
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
        raise CorruptError(f"{path} is {kind}, not a file; remove it")
