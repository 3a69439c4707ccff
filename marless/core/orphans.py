"""Kills processes that workers leave behind: those that an environment started, and their descendants.

Every process below a worker inherits the worker's mark in its environment, even with a session of its own or after its
parent has ended. A worker's pool kills them when the worker has ended; a worker does so itself when its pool is gone;
and the next pool kills those of pools that were killed together with their workers. Linux only: reads /proc.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from marless.core import process_environment, process_table

MARK = "MARLESS_WORKER"
"""Environment variable that holds the mark."""
GONE_S = 5.0
"""Seconds to wait for killed processes to end; a process in uninterruptible I/O cannot be killed."""
_POLL_S = 0.005
_PR_SET_CHILD_SUBREAPER = 36
_adopting = False


@dataclass(frozen=True)
class Orphan:
    """What a pool that has ended has left running."""

    launcher: str
    """What had started it: `local` for a process of this machine."""
    id: str
    """By which to end it: a process id, for `local`."""
    pool: str
    """What its pool was: a process id, for `local`."""
    what: str
    """Its command line."""
    age_s: float
    """Seconds since its start."""


@dataclass(frozen=True)
class _Seen:
    """A running process of this machine."""

    pid: int
    parent: int
    session: int
    mark: str
    """The mark of its worker; "" if it has none or belongs to another user."""
    started: int
    """When it started, in clock ticks after the machine."""

    @property
    def dead_pool(self) -> str:
        """The process id of its pool, if that has ended; "" otherwise, and for what has no mark of this namespace."""
        where, _, rest = self.mark.partition("/")
        pool = rest.partition("/")[0]
        return pool if where == namespace() and pool.isdecimal() and not Path("/proc", pool).exists() else ""


def new_mark() -> str:
    """Create the mark for a worker of this process: PID namespace, this process's id, random part."""
    return f"{namespace()}/{os.getpid()}/{secrets.token_hex(8)}"


def new_mark_within() -> str:
    """Create a mark for a process that `end_own` of this one must find, too, also once its parent has ended."""
    own = os.environ.get(MARK)
    return f"{own}/{secrets.token_hex(8)}" if own else new_mark()


def adopt() -> None:
    """Make this process a child subreaper: orphans below it become its children, and `reap` waits for them, so that no
    zombies are left. For a process that starts nothing but workers.
    """
    global _adopting  # noqa: PLW0603  # a property of the whole process in the kernel, too
    _adopting = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap(own: Collection[int]) -> None:
    """Reap adopted processes that have ended, but not those in `own`, for which asyncio waits."""
    while _adopting:
        with suppress(ChildProcessError):
            # WNOWAIT only looks: a child for which asyncio waits must be left to it.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended and ended.si_pid not in own:
                os.waitpid(ended.si_pid, os.WNOHANG)
                continue
        return


def end_below(worker: int, mark: str) -> None:
    """Kill the processes that an ended worker has left behind."""
    _end(lambda seen: seen.mark == mark or seen.session == worker)


@contextmanager
def contained(*, spare: bool = False) -> Iterator[None]:
    """Context in which third-party code may start processes; on exit they are killed, but with `spare` none that ran
    before. If this process itself is killed, `end_of_dead_pools` kills them, as it does for a pool.
    """
    before = {(seen.pid, seen.started) for seen in _others() if _is_below(seen)} if spare else set()
    # A worker that was launched has the mark of its launcher already.
    ours = {} if MARK in os.environ else {MARK: new_mark()}
    with process_environment.changed(ours):
        try:
            yield
        finally:
            _end(lambda seen: _is_below(seen) and (seen.pid, seen.started) not in before)


def end_own() -> None:
    """Kill all processes below this one, for a worker whose pool may be gone."""
    _end(_is_below)


def _is_below(seen: _Seen) -> bool:
    here, own = os.getpid(), os.environ.get(MARK)
    # marks that this process gave to others begin with its own, see `new_mark_within`
    marked = own is not None and f"{seen.mark}/".startswith(f"{own}/")
    return marked or here in (seen.parent, seen.session)


def end_of_dead_pools() -> None:
    """Kill this user's workers that did not exit although their pool is gone, and what dead workers left behind."""
    _end(lambda seen: bool(seen.dead_pool))


def of_dead_pools() -> list[Orphan]:
    """What `end_of_dead_pools` would kill, the oldest first."""
    running = {seen.pid: seen for seen in _others()}
    found = sorted(_below(running.values(), lambda seen: bool(seen.dead_pool)), key=lambda pid: running[pid].started)
    return [_orphan(running[pid], running) for pid in found]


def _orphan(seen: _Seen, running: Mapping[int, _Seen]) -> Orphan:
    try:
        words = Path(f"/proc/{seen.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        words = []  # it has ended meanwhile
    marked = seen
    while not marked.dead_pool:  # what has no mark of its own was found below a process that has one
        marked = running[marked.parent]
    what, age_s = b" ".join(words).decode(errors="replace"), process_table.age_s(seen.started)
    return Orphan("local", f"{seen.pid}", marked.dead_pool, what, round(age_s, 1))


def _end(wanted: Callable[[_Seen], bool]) -> None:
    """Kill the processes that match and all below them, except this one; repeat, because they may start more."""
    give_up_s = time.monotonic() + GONE_S
    while found := _below(_others(), wanted):
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up_s:
            return
        time.sleep(_POLL_S)


def _below(processes: Collection[_Seen], wanted: Callable[[_Seen], bool]) -> set[int]:
    found = {seen.pid for seen in processes if wanted(seen)}
    while more := {seen.pid for seen in processes if seen.parent in found} - found:
        found |= more
    return found


def _others() -> list[_Seen]:
    """All running processes but this one."""
    return [seen for pid in process_table.process_ids() if pid != os.getpid() and (seen := _look(pid))]


def _look(pid: int) -> _Seen | None:
    # One that has ended, and whose parent has not waited for it, is none: killing it again would change nothing.
    stat = process_table.stat_of(pid)
    if stat is None:
        return None
    mark = b""
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        mark = next((each for each in environment if each.startswith(MARK.encode() + b"=")), b"")
    text = mark.partition(b"=")[2].decode(errors="replace")
    return _Seen(pid, stat.parent, stat.session, text, stat.started)


def started(pid: int) -> int | None:
    """When a process started, in clock ticks after the machine; None if it has ended."""
    seen = _look(pid)
    return seen.started if seen else None


def namespace() -> str:
    """Identifier of this process's PID namespace: process ids are comparable only within one."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)
