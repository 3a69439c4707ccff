"""Checks of what services need, and of what runs: disks, spool, sockets and ports; launchers, which start workers; the
stack in the background, its coordinator, and unfinished jobs that nobody runs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from marless.app.cli.background import RunningStack
from marless.app.cli.doctor.verb import Finding, Level, fail, ok, warn
from marless.app.cli.recorded import Unfinished
from marless.app.cli.stack import SERVICES, socket_directory
from marless.app.client import Info
from marless.core import private_files, process_environment
from marless.core.errors import MarlessError, SpecError, told
from marless.core.private_files import SOCKET_PATH_BYTES
from marless.fleet.launchers.base import Checked, Condition, WorkerProgram
from marless.fleet.launchers.registry import LAUNCHERS, Choice, launching, parse

CHECK_S = 20.0
"""Seconds that the check of one launcher may take."""
_WORKERS = "marless.services.actor_pool.worker"
FULL_BYTES, LOW_BYTES = 64 * 2**20, 2**30
SPOOL_BYTES = 2 * 2**30
"""Default limit of a learner pool on trajectories that wait for their update (--spool-bytes)."""
SLOW_FSYNC_S = 0.02
_SYNCS = 20
_PAGE = bytes(4096)


def disk(directory: Path, free_bytes: float, fsync_s: float) -> Finding:
    """Check free space and fsync time of the disk with the run folders; each round waits until its record is synced."""
    found = f"{directory}: {free_bytes / 1e9:.1f} GB free, fsync {1e3 * fsync_s:.1f} ms"
    if free_bytes < FULL_BYTES:
        return fail("disk", found, "make room, or choose another directory with --runs")
    if free_bytes < LOW_BYTES:
        return warn("disk", found, "make room: checkpoints and the store's log grow")
    if fsync_s > SLOW_FSYNC_S:
        return warn("disk", found, "each round and each version waits for an fsync: choose a local disk with --runs")
    return ok("disk", found)


def unusable_disk(directory: Path, reason: str) -> Finding:
    """The finding if the run folders cannot be written."""
    return fail("disk", f"{directory}: {reason}", "choose another directory with --runs")


def unusable_spool(directory: Path | str, reason: str) -> Finding:
    """The finding if a learner pool would refuse its spool directory."""
    return fail("spool", f"{directory}: {reason}", "set MARLESS_SPOOL to another directory")


def existing(directory: Path) -> Path:
    """The directory, or its nearest existing parent."""
    return next(place for place in (directory, *directory.parents) if place.exists())


def fsync_s(directory: Path) -> float:
    """Median seconds to write and sync a page to disk. Raises OSError."""
    seconds = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(_SYNCS):
            file.write(_PAGE)
            start_s = time.perf_counter()
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - start_s)
    return statistics.median(seconds)


def spool(directory: Path, free_bytes: float, *, memory_backed: bool) -> Finding:
    """Check the free space for trajectories between rollout and update."""
    found = f"{directory}: {free_bytes / 1e9:.1f} GB free"
    if free_bytes < FULL_BYTES:
        return fail(
            "spool", found, "make room there (a container: --shm-size), or set MARLESS_SPOOL to another directory"
        )
    if free_bytes < SPOOL_BYTES:
        return warn("spool", found, f"set MARLESS_SPOOL_BYTES={int(free_bytes / 2)}, or make room")
    if not memory_backed:
        return warn(
            "spool", f"{found}, on a disk", "make /dev/shm writable: trajectories are then not written to a disk"
        )
    return ok("spool", found)


def spool_directory(shared_memory: Path = Path("/dev/shm")) -> Path:
    """The spool directory of a learner pool: $MARLESS_SPOOL, else shared memory, else the temporary directory."""
    if named := os.environ.get("MARLESS_SPOOL"):
        return Path(named)
    return shared_memory if os.access(shared_memory, os.W_OK) else Path(tempfile.gettempdir())


def room(directory: Path) -> float:
    """Free bytes on the disk of a directory. Raises OSError."""
    return float(shutil.disk_usage(directory).free)


def sockets(data: Path, bind: Callable[[str], None]) -> Finding:
    """Check whether the services' unix sockets can be created; `bind` creates one, or raises OSError."""
    directory = socket_directory(data)
    longest = len(os.fsencode(directory / max(SERVICES, key=len))) + len(".sock")
    if longest > SOCKET_PATH_BYTES:
        return fail(
            "sockets",
            f"{directory}: a socket's path has {longest} bytes of {SOCKET_PATH_BYTES}",
            "set a shorter TMPDIR",
        )
    try:
        private_files.check_way(directory)
        if directory.parent.is_dir():
            private_files.check(directory.parent)
        with tempfile.TemporaryDirectory(dir=existing(directory)) as place:
            bind(f"{place}/s")
    except OSError as error:
        return fail("sockets", f"{directory}: {error.strerror or error}", "set TMPDIR to a directory of yours")
    return ok("sockets", f"{directory}, paths of {longest} of {SOCKET_PATH_BYTES} bytes")


def bind_unix(path: str) -> None:
    """Create a unix socket. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def loopback(bind: Callable[[], None]) -> Finding:
    """Check whether a loopback port can be bound; `bind` binds any free one, or raises OSError."""
    try:
        bind()
    except OSError as error:
        return warn(
            "ports", f"127.0.0.1: {error.strerror or error}", "services can only use unix sockets, as by default"
        )
    return ok("ports", "services can listen on 127.0.0.1")


def bind_loopback() -> None:
    """Bind any free loopback port. Raises OSError."""
    with socket.socket(socket.AF_INET) as made:
        made.bind(("127.0.0.1", 0))


def stack(noted: RunningStack | None, supervisor: int | None, last_words: str) -> Finding:
    """Check the stack of `marless up`: stack.json, the supervisor's process, and the last supervisor's error."""
    if supervisor is not None:
        if noted and noted.pid == supervisor:
            return ok("stack", f"up: {noted.coordinator}, supervised by process {supervisor}")
        return warn(
            "stack", f"process {supervisor} is starting or stopping it", "run `marless doctor` again in a moment"
        )
    if noted:
        return warn(
            "stack", f"its supervisor, process {noted.pid}, was killed", "`marless up` starts it and its jobs again"
        )
    if last_words:
        return warn("stack", f"it gave up: {last_words}", "fix this, then run `marless up`")
    return ok("stack", "not up; `marless up` starts the services, `marless train` does not need them")


def coordinator(address: str, info: Info | None, reason: str) -> Finding:
    """Check the coordinator that commands use, and the other services as it sees them."""
    if info is None:
        return fail("coordinator", f"{address}: {reason}", "`marless up`, or correct $MARLESS_COORDINATOR")
    silent = [service.name for service in info.services if not service.serving]
    if silent:
        return fail(
            "coordinator", f"{address}: it cannot use {', '.join(silent)}", "their logs say why; they are started again"
        )
    return ok("coordinator", f"{address}: marless {info.version}, run folders in {info.runs}")


def jobs(unfinished: Sequence[Unfinished], *, is_up: bool) -> Finding:
    """Check for unfinished jobs that no coordinator runs."""
    idle = [job for job in unfinished if not job.run_by_somebody]
    if not idle:
        running = len(unfinished)
        return ok("jobs", f"{running} running" if running else "none is unfinished")
    ways = [f"`marless train --resume {job.job}`" for job in idle if job.attached]
    if len(ways) < len(idle):
        ways.append("`marless list` says what they wait for" if is_up else "`marless up`")
    return warn("jobs", f"interrupted: {', '.join(job.job for job in idle)}", "; ".join(ways))


def launchers() -> Iterator[Finding]:
    """One finding for each launcher; a problem matters for the one that $MARLESS_LAUNCHER names, or `local`."""
    try:
        chosen = parse(os.environ.get("MARLESS_LAUNCHER", "local"))
    except SpecError as error:
        yield fail("launcher", f"$MARLESS_LAUNCHER: {error}", "correct it, or unset it")
        return
    for name in sorted(LAUNCHERS.names() | {chosen.name}):
        choice = chosen if name == chosen.name else Choice(name)
        yield finding(name, asyncio.run(_condition(choice)), is_chosen=name == chosen.name)


def finding(name: str, condition: Condition, *, is_chosen: bool) -> Finding:
    """What a launcher says about itself; only the chosen one keeps jobs from running."""
    if condition.advice and is_chosen:
        return fail(f"launcher-{name}", condition.found, condition.advice)
    if condition.advice:
        found = f"not chosen, and not usable: {condition.found}"
        return Finding(check=f"launcher-{name}", level=Level.ok, found=found, advice=condition.advice)
    return ok(f"launcher-{name}", condition.found if is_chosen else f"not chosen; {condition.found}")


async def _condition(choice: Choice) -> Condition:
    program = WorkerProgram(_WORKERS, (), process_environment.inherited(os.environ), str, process_environment.ACTOR)
    try:
        async with asyncio.timeout(CHECK_S), launching(choice, program) as launcher:
            if isinstance(launcher, Checked):
                return await launcher.check()
            return Condition("it has no check of its own")
    except TimeoutError:
        return Condition(f"its check took more than {CHECK_S:g} s", "see what it connects to")
    except MarlessError as error:
        found = str(error).removeprefix(f"launcher {choice.name}: ")
        what, _, install = found.rpartition(": ")
        return Condition(what, install) if install.startswith("pip ") else Condition(found, "correct $MARLESS_LAUNCHER")
    except Exception as error:  # noqa: BLE001  # a bug of third parties must not hide the other findings
        return Condition(f"its check failed: {told(error)}", "tell its author")
