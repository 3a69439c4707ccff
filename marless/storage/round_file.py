"""Reads `rounds.jsonl` from any round on, or backwards from its end, without reading all of it; and how far a job is.

Line n (from 0) holds round n; a file in which rounds are missing, or there twice, is damaged: sums over it would be
wrong. A line is found by bisecting the file by bytes, so that the cost grows only with the logarithm of its size. What
follows the last newline is incomplete (being written, or cut short by a crash) and ignored.

A file that does not exist has no rounds. All readers raise CorruptError for what is no regular file, and for a line of
more than `MAX_RECORD_BYTES` bytes; see `marless.core.regular_files`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from marless.core import regular_files
from marless.core.errors import CorruptError, NotFoundError
from marless.jobs.record import RoundRecord, from_json
from marless.learning.data.returns import EpisodeReturns

BATCH_BYTES = 2**19
"""Most bytes that `RoundReader.batch` returns, unless one line is longer."""
_STEP_BYTES = 2**18
_SEEK_BYTES = 2**16
_HEAD_BYTES = 2**12
_HEAD = re.compile(rb'\{"job": ?"(?:[^"\\]|\\.)*", ?"round": ?(\d{1,15})[,}]')
"""The beginning of a line; see `RoundRecord.to_json`."""
_EVALUATED = re.compile(rb'"(?:earlier_)?evaluation": ?\{')
_ARRIVALS = re.compile(rb'"arrivals": ?"([rgRGax0-9: ]*)"')
_SECONDS = rb"(\d{1,12}(?:\.\d{1,20})?)"
_TIMES = re.compile(rb'"started_s": ?' + _SECONDS + rb', ?"ended_s": ?' + _SECONDS + rb', ?"phases"')
_IDLE = re.compile(rb'"idle_s": ?(?:null|' + _SECONDS + rb")}$")


def read(path: Path, first: int = 0) -> Iterator[RoundRecord]:
    """The records from round `first` on; raises CorruptError, naming the line, for one that is none of its round."""
    file = _opened(path)
    if file is None:
        return
    with file:
        at = _offset(file, path, first)
        if at is None:
            return
        file.seek(at)
        for number, line in enumerate(regular_files.lines(file, path), first):
            if not line.endswith(b"\n"):
                return  # incomplete: its rest may be appended later
            try:
                record = from_json(line.decode())
            except ValueError:
                raise CorruptError(f"{path}, line {number + 1}: this is not a round record") from None
            check_order(record, number, str(path))
            yield record


def check_order(record: RoundRecord, round_: int, where: str) -> None:
    """Raise CorruptError unless the record on the line of a round is that round's."""
    if record.round != round_:
        raise CorruptError(
            f"{where}, line {round_ + 1}: this is the record of round {record.round + 1}; rounds are missing, or there "
            "twice, so that nothing can be added up; restore the file, in which line N is round N"
        )


def read_backwards(path: Path) -> Iterator[RoundRecord]:
    """The records, newest first; raises CorruptError for an invalid line."""
    for line in lines_backwards(path):
        yield parse(path, line)


def parse(path: Path, line: bytes) -> RoundRecord:
    """Parse a line of `lines_backwards`; raises CorruptError if it is not a record."""
    try:
        return from_json(line.decode())
    except ValueError:
        raise CorruptError(f"{path}: a line is not a round record: {line[:80]!r}") from None


def may_be_evaluated(line: bytes) -> bool:
    """False if the round of this line certainly evaluated nothing; far cheaper than parsing the line."""
    return _EVALUATED.search(line) is not None


def spent_s(path: Path, line: bytes) -> float:
    """`RoundRecord.spent_s` of a line, in seconds, usually without parsing all of it."""
    times, idle = _TIMES.search(line), _IDLE.search(line)
    if times and idle:
        return float(idle[1] or 0.0) + max(float(times[2]) - float(times[1]), 0.0)
    return parse(path, line).spent_s


def arrivals(path: Path) -> Iterator[str]:
    """What has happened in each round of an asynchronous job, as text, without parsing the records.

    Raises CorruptError for a record without it.
    """
    file = _opened(path)
    if file is None:
        return
    with file:
        for line in regular_files.lines(file, path):
            if not line.endswith(b"\n"):
                return  # incomplete
            found = _ARRIVALS.search(line)
            if found is None:
                raise CorruptError(f"{path}: a round has no events, so it is of another schedule: {line[:80]!r}")
            yield found[1].decode()


class RoundReader:
    """Reads a growing file in batches of bounded size; a batch that continues the last one needs no search.

    The file is reopened for each batch, because a coordinator that takes over a job replaces it by a copy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = (0, 0)
        """The round after the last batch, and the byte offset of its line."""

    def batch(self, first: int) -> list[str]:
        """The lines of round `first` and later, without newlines: at most `BATCH_BYTES`, or one line if that is longer;
        none if the round is not recorded. Raises CorruptError for a line that is not the record of its round.
        """
        file = _opened(self._path)
        if file is None:
            return []
        with file:
            known, at = self._next
            # The file may have been replaced since, so what is at this offset now is looked at.
            found = at if known == first and _starts(file, at, first) else _offset(file, self._path, first)
            return [] if found is None else self._read_lines(file, first, found)

    def _read_lines(self, file: BinaryIO, first: int, start: int) -> list[str]:
        lines: list[str] = []
        file.seek(start)
        end = start
        for line in regular_files.lines(file, self._path):
            if not line.endswith(b"\n"):
                break
            if lines and end + len(line) - start > BATCH_BYTES:
                break
            number = first + len(lines)
            try:
                text = line[:-1].decode()
            except UnicodeDecodeError:
                text = ""
            if not text.endswith("}") or _number(line) != number:
                raise CorruptError(f"{self._path}, line {number + 1}: this is not the record of round {number + 1}")
            lines.append(text)
            end += len(line)
        self._next = (first + len(lines), end)
        return lines


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Complete lines without their newlines, last one first. Read lazily: few lines cost little of a long file."""
    file = _opened(path)
    if file is None:
        return
    with file:
        at, ahead, whole = file.seek(0, os.SEEK_END), list[bytes](), False
        while at > 0:
            start = max(at - _STEP_BYTES, 0)
            file.seek(start)
            first, *lines = file.read(at - start).split(b"\n")
            at = start
            if lines:
                # The last line of this step goes on in what was read before, which lies behind it.
                lines[-1] = b"".join([lines[-1], *reversed(ahead)])
                ahead.clear()
                if not whole:
                    lines.pop()  # after the last newline: empty, or an incomplete line
                    whole = True
                yield from reversed(lines)
            ahead.append(first)  # the end of a line that begins further ahead
            # A file without newlines must not come into memory as a whole.
            regular_files.check_line(sum(map(len, ahead)), path)
        if whole:
            yield b"".join(reversed(ahead))


def complete_bytes(path: Path) -> int:
    """Number of bytes up to the end of the last complete line; 0 without one, or without a file."""
    file = _opened(path)
    if file is None:
        return 0
    with file:
        return _line_start(file, path, file.seek(0, os.SEEK_END), 0)


def _opened(path: Path) -> BinaryIO | None:
    try:
        return regular_files.opened(path)
    except NotFoundError:
        return None


def _number(line: bytes) -> int | None:
    """The round number in a line, or in the beginning of one; None if there is none."""
    if found := _HEAD.match(line):
        return int(found[1])
    try:
        round_ = json.loads(line)["round"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return round_ if isinstance(round_, int) else None


def _starts(file: BinaryIO, at: int, round_: int) -> bool:
    """True if the line of this round starts at byte `at`."""
    after_newline = at == 0 or os.pread(file.fileno(), 1, at - 1) == b"\n"
    return after_newline and _number(os.pread(file.fileno(), _HEAD_BYTES, at)) == round_


def _offset(file: BinaryIO, path: Path, round_: int) -> int | None:
    """Byte offset of a round's line; None if there is none."""
    if round_ <= 0:
        return 0
    descriptor = file.fileno()
    low, high = 0, os.fstat(descriptor).st_size  # the line starts in between
    while low < high:
        middle = (low + high) // 2
        start, end = _line_start(file, path, middle, low), _line_end(file, path, middle, high)
        # Its beginning tells the round of a line, which may have megabytes.
        number = _number(os.pread(descriptor, _HEAD_BYTES, start))
        if end and number is None:
            return _counted(file, path, round_)
        if end and number is not None and number < round_:
            low = end
        else:
            high = start
    return low if _starts(file, low, round_) else _counted(file, path, round_)


def _line_start(file: BinaryIO, path: Path, inside: int, least: int) -> int:
    """Byte offset of the line that holds byte `inside`; `least` is the offset of that line or of an earlier one."""
    end = inside
    while end > least:
        regular_files.check_line(inside - end, path)
        start = max(end - _SEEK_BYTES, least)
        if (newline := os.pread(file.fileno(), end - start, start).rfind(b"\n")) >= 0:
            return start + newline + 1
        end = start
    return least


def _line_end(file: BinaryIO, path: Path, inside: int, most: int) -> int | None:
    """Byte offset after the newline of the line that holds byte `inside`; None if it has no newline before `most`."""
    at = inside
    while at < most:
        regular_files.check_line(at - inside, path)
        piece = os.pread(file.fileno(), min(_SEEK_BYTES, most - at), at)
        if (newline := piece.find(b"\n")) >= 0:
            return at + newline + 1
        # If the file is cut short meanwhile, nothing is read, and this must still come to an end.
        at += max(len(piece), 1)
    return None


def _counted(file: BinaryIO, path: Path, round_: int) -> int | None:
    """The offset, as `_offset` finds it, by counting lines: for files in which bisecting fails or does not find the
    round.
    """
    file.seek(0)
    at = 0
    for number, line in enumerate(regular_files.lines(file, path)):
        if number == round_ and line.endswith(b"\n"):
            return at
        at += len(line)
    return None


LOOK_BACK_ROUNDS = 512
"""An evaluation older than this many rounds is not searched for."""


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """The progress of a job."""

    rounds: int = 0
    """Recorded rounds."""
    env_steps: int = 0
    """Env steps sampled for training in the recorded rounds."""
    greedy: EpisodeReturns | None = None
    """Returns of the newest evaluation."""

    def after(self, record: RoundRecord) -> JobProgress:
        """The progress after one more round."""
        return JobProgress(
            rounds=record.round + 1, env_steps=record.env_steps, greedy=record.newest_evaluation or self.greedy
        )


def progress_of(rounds: Path) -> JobProgress:
    """Read a job's progress from the end of its rounds.jsonl; raises CorruptError."""
    newest: RoundRecord | None = None
    for looked, line in enumerate(lines_backwards(rounds)):
        if newest is None or may_be_evaluated(line):
            record = parse(rounds, line)
            newest = newest or record
            if record.evaluations:
                return replace(JobProgress().after(newest), greedy=record.newest_evaluation)
        if looked >= LOOK_BACK_ROUNDS:
            break
    return JobProgress().after(newest) if newest else JobProgress()
