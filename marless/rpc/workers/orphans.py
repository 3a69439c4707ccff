"""Ends what workers leave behind: processes that an environment has started, and those that they have started.

Every process below a worker carries the worker's mark in its environment, also one that has a session of its own or
that its parents have left. A worker's pool ends them when the worker has ended; a worker does so itself when its pool
is gone; and the next pool ends those of pools that were killed together with their workers. Linux only: reads /proc.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "MARLESS_WORKER"
"""The environment variable of the mark."""
GONE_S = 5.0
"""How long those that are killed may take to go: one that waits for a disk cannot be killed."""
_POLL_S = 0.005
_PR_SET_CHILD_SUBREAPER = 36
_adopting = False


@dataclass(frozen=True)
class _Seen:
    """A process of this machine that has not ended."""

    pid: int
    parent: int
    session: int
    mark: str
    """Of its worker; "" if it has none, or is another user's."""


def new_mark() -> str:
    """The mark of a worker of this process."""
    return f"{_namespace()}/{os.getpid()}/{secrets.token_hex(8)}"


def adopt() -> None:
    """From now on become the parent of every process below this one whose own parent ends, and wait for those too, so
    that no zombie is left. For a process that starts nothing but workers.
    """
    global _adopting  # noqa: PLW0603  # the kernel, too, keeps this for the process as a whole
    _adopting = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def reap(own: Collection[int]) -> None:
    """Wait for adopted processes that have ended; `own` ones have somebody who waits for them."""
    while _adopting:
        with suppress(ChildProcessError):
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended and ended.si_pid not in own:
                os.waitpid(ended.si_pid, os.WNOHANG)
                continue
        return


def end_below(worker: int, mark: str) -> None:
    """End whatever a worker, which has ended, has left behind."""
    _end(lambda seen: seen.mark == mark or seen.session == worker)


@contextmanager
def contained() -> Iterator[None]:
    """While code of others may start processes here: those are gone at the end. If this process is killed, it is what
    `end_of_dead_pools` takes for a pool.
    """
    os.environ.setdefault(MARK, new_mark())
    try:
        yield
    finally:
        end_own()


def end_own() -> None:
    """End whatever is below this process, whose pool may be gone: nobody else will."""
    mark, here = os.environ.get(MARK), os.getpid()
    _end(lambda seen: seen.mark == mark or here in (seen.parent, seen.session))


def end_of_dead_pools() -> None:
    """End workers of this user whose pool is gone, for they hang, and what is below such, and below killed ones."""
    here = _namespace()

    def is_left(seen: _Seen) -> bool:
        namespace, _, rest = seen.mark.partition("/")
        pool = rest.partition("/")[0]
        return namespace == here and pool.isdecimal() and not Path("/proc", pool).exists()

    _end(is_left)


def _end(wanted: Callable[[_Seen], bool]) -> None:
    """Kill those processes and all below them, but this one, until there are none; they may start more meanwhile."""
    give_up_s = time.monotonic() + GONE_S
    while found := _below([seen for seen in _processes() if seen.pid != os.getpid()], wanted):
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


def _processes() -> list[_Seen]:
    return [seen for name in os.listdir("/proc") if name.isdecimal() and (seen := _look(int(name)))]  # noqa: PTH208


def _look(pid: int) -> _Seen | None:
    try:
        # The name in parentheses may hold anything.
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
    except (OSError, ValueError):
        return None  # it has ended
    if state in b"ZX":
        return None
    mark = b""
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        mark = next((each for each in environment if each.startswith(MARK.encode() + b"=")), b"")
    return _Seen(pid, int(parent), int(session), mark.partition(b"=")[2].decode(errors="replace"))


def _namespace() -> str:
    """Process ids mean the same to all that have the same one."""
    return str(Path("/proc/self/ns/pid").stat().st_ino)
