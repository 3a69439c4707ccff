"""What the system says of running processes: /proc on Linux, `ps` elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER_TICKS, _SYSTEM_TICKS, _STARTED, _PAGES = 11, 12, 19, 21
"""Positions in /proc/<pid>/stat, counted from the field after the command's name: 14, 15, 22 and 24 of proc(5)."""
_COLUMNS = ("pid", "ppid", "uid", "stat", "etime", "time", "rss", "command")
"""What `ps` is asked for; every system has these."""


@dataclass(frozen=True, kw_only=True)
class ProcessStat:
    """The numbers of a process in /proc. Ticks are `SC_CLK_TCK` a second."""

    pid: int
    parent: int
    session: int
    started: int
    """Ticks from the start of the machine to its own."""
    cpu: int
    """Ticks on a CPU, of all its threads."""
    pages: int
    """Pages of memory that it has resident, those that it shares included."""


@dataclass(frozen=True, kw_only=True)
class RunningProcess:
    """A process of this user."""

    pid: int
    parent: int
    words: tuple[str, ...]
    """Its command line."""
    up_s: float
    """Seconds since its start."""
    cpu_s: float
    memory_bytes: int
    """Resident memory, that which it shares with others included."""


def stat_of(pid: int) -> ProcessStat | None:
    """The numbers of a process on Linux; None if it has ended, also if its parent has not waited for it."""
    try:
        # Split after the name in parentheses, which may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        state, parent, _, session = fields[:4]
    except (OSError, ValueError):
        return None
    if state in b"ZX":
        return None
    return ProcessStat(
        pid=pid,
        parent=int(parent),
        session=int(session),
        started=int(fields[_STARTED]),
        cpu=int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]),
        pages=int(fields[_PAGES]),
    )


def process_ids() -> list[int]:
    """The ids of all processes on Linux."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208


def age_s(started: int) -> float:
    """Seconds since a process started, from `ProcessStat.started`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS


def own_processes() -> list[RunningProcess]:
    """The running processes of this user but for this one. Raises OSError where neither /proc nor `ps` is there."""
    if not sys.platform.startswith("linux"):
        return processes_of_ps()
    return [found for pid in process_ids() if pid != os.getpid() and (found := _own(pid))]


def processes_of_ps() -> list[RunningProcess]:
    """The same as `own_processes`, as `ps` tells it; words that hold spaces are several there. Raises OSError."""
    listing = ["ps", "-ww", "-axo", ",".join(f"{column}=" for column in _COLUMNS)]
    with subprocess.Popen(listing, stdout=subprocess.PIPE, text=True, errors="replace") as ps:
        lines = ps.communicate()[0].splitlines()
    found = []
    for line in lines:
        pid, parent, user, state, up, cpu, kilobytes, *words = line.split()
        # One that has ended, and whose parent has not waited for it, is none.
        if int(user) == os.getuid() and int(pid) not in (os.getpid(), ps.pid) and not state.startswith("Z"):
            found.append(
                RunningProcess(
                    pid=int(pid),
                    parent=int(parent),
                    words=tuple(words),
                    up_s=seconds_of_ps(up),
                    cpu_s=seconds_of_ps(cpu),
                    memory_bytes=int(kilobytes) * 1024,
                )
            )
    return found


def seconds_of_ps(text: str) -> float:
    """The seconds of a time as `ps` writes it: [[days-]hours:]minutes:seconds, on macOS with hundredths."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":"):
        seconds = 60 * seconds + float(part)
    return 86_400 * int(days or 0) + seconds


def open_files(pid: int) -> Iterator[Path]:
    """The files that a process has open; none where the system does not say."""
    with suppress(OSError):
        for name in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield name.readlink()


def _own(pid: int) -> RunningProcess | None:
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return None
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None  # it has ended
    # Processes that show another command line than they were started with fill the rest with zeros.
    words = tuple(os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0"))
    stat = stat_of(pid)
    if stat is None:
        return None
    return RunningProcess(
        pid=pid,
        parent=stat.parent,
        words=words,
        up_s=max(age_s(stat.started), 0.0),
        cpu_s=stat.cpu / _TICKS,
        memory_bytes=stat.pages * _PAGE_BYTES,
    )
