"""The log of a job, log.jsonl in its run folder: one JSON object per line, written for people."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from marless.core import regular_files
from marless.core.errors import NotFoundError, SpecError
from marless.core.log import structlog
from marless.services.coordinator.state.run_folder import RunFolder

INFO_LIMIT_BYTES = 8 * 2**20
"""Size from which lines of level info are dropped; the line that would reach it is replaced by a warning."""
LIMIT_BYTES = 10 * 2**20
"""Size from which all lines are dropped."""
BATCH_BYTES = 2**18
_log = structlog.get_logger("coordinator")


class StoredLine(NamedTuple):
    """A line of a log, and the byte offset of its end, where a reader continues."""

    cursor: int
    json: str


class JobLog:
    """Writes the log of one job; the same lines go to the coordinator's own log, with the job's id.

    A line is one append without fsync: it survives the end of this process, though not a power failure, and costs a
    round some 30 µs. If the disk refuses a line, the line is lost, and the job continues. The late lines of a
    coordinator that another one has replaced go to its own log only. `wrote` is called after each line.
    """

    def __init__(self, folder: RunFolder, job: str, wrote: Callable[[], None]) -> None:
        self._folder = folder
        self._job = job
        self._wrote = wrote

    def info(self, event: str, **fields: object) -> None:
        """Log an event of normal operation."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem that did not end the job."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a problem that ended the job or lost data."""
        self._write("error", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        getattr(_log, level)(event, job=self._job, **fields)
        if self._folder.replaced:
            return
        try:
            self._append(level, _line(level, event, fields))
        except OSError as problem:
            _log.warning("job.log_not_written", job=self._job, error=str(problem))
        self._wrote()

    def _append(self, level: str, line: bytes) -> None:
        with self._folder.log_path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size >= (INFO_LIMIT_BYTES if level == "info" else LIMIT_BYTES):
                return
            if level == "info" and size + len(line) >= INFO_LIMIT_BYTES:
                line = _line("warning", "log.full", {"hint": "from here on only warnings and errors are noted"})
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line  # the last line is torn: the machine crashed, or the disk was full
            file.write(line)


def lines(path: Path, cursor: int) -> list[StoredLine]:
    """Whole lines from the byte offset `cursor` on, BATCH_BYTES at most; raises SpecError if no line starts there."""
    try:
        file = regular_files.opened(path)
    except NotFoundError:
        return []
    with file:
        if cursor > os.fstat(file.fileno()).st_size:
            return []
        if cursor and (cursor < 0 or os.pread(file.fileno(), 1, cursor - 1) != b"\n"):
            raise SpecError(f"cursor {cursor} is not the end of a line of this log; use one that it gave, or 0")
        file.seek(cursor)
        return list(_whole(file.read(BATCH_BYTES), cursor))


def tail(path: Path, count: int) -> int:
    """The cursor after which the last `count` lines of the log follow."""
    last: deque[int] = deque([0], maxlen=count + 1)
    while batch := lines(path, last[-1]):
        last.extend(line.cursor for line in batch)
    return last[0]


def _whole(data: bytes, start: int) -> Iterator[StoredLine]:
    cursor = start
    for raw in data.splitlines(keepends=True):
        cursor += len(raw)
        try:
            is_whole = raw.endswith(b"\n") and isinstance(json.loads(raw), dict)
        except ValueError:  # a torn line, which a crash may leave in the middle of a log
            continue
        if is_whole:
            yield StoredLine(cursor, raw.decode().rstrip("\n"))


def _line(level: str, event: str, fields: dict[str, object]) -> bytes:
    timestamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return json.dumps({"timestamp": timestamp, "level": level, "event": event, **fields}, default=str).encode() + b"\n"
