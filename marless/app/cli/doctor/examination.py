"""Gathers the facts about this machine and runs all checks."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from packaging.utils import canonicalize_name

from marless.app.cli.background import StackFolder
from marless.app.cli.doctor import launchers, machine, places, software, standing
from marless.app.cli.doctor.finding import Finding
from marless.app.cli.runs import unfinished
from marless.app.client import Client, Info
from marless.app.client.address import find
from marless.core import documents, private_files
from marless.core.errors import MarlessError, SpecError
from marless.jobs.job import PreparedJob

CONTACT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The coordinator's answer, or the reason why there is none."""

    address: str
    info: Info | None
    reason: str = ""
    skew_s: float | None = None
    """This machine's clock minus the coordinator's."""


def examine(runs: Path, job: PreparedJob | None, *, deep: bool) -> Iterator[Finding]:
    """Every finding, the quick ones first."""
    folder = StackFolder.of(runs)
    answer = _ask_coordinator(runs)
    yield software.python(sys.version_info[:3])
    yield software.packages(
        requires("marless") or [], {canonicalize_name(each.name): each.version for each in distributions()}
    )
    yield software.learners(_version("torch"))
    yield software.redis()
    yield software.threads(os.environ)
    yield software.secrets(os.environ)
    yield from _of_machine(job, answer.skew_s if answer else None, deep=deep)
    yield _disk(runs)
    yield _spool()
    yield places.sockets(folder.data, places.bind_unix)
    yield places.loopback(places.bind_loopback)
    yield from launchers.launchers()
    supervisor = folder.supervisor()
    yield standing.stack(folder.read(), supervisor, folder.gave_up())
    if answer:
        yield standing.coordinator(answer.address, answer.info, answer.reason)
    yield standing.jobs(unfinished(runs), is_up=supervisor is not None)


def _of_machine(job: PreparedJob | None, skew_s: float | None, *, deep: bool) -> Iterator[Finding]:
    memberships = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    seen = os.cpu_count() or 1
    yield machine.cores(seen, _usable_cores(memberships))
    available = machine.available_memory(
        Path("/proc/meminfo").read_text(encoding="utf-8"),
        machine.cgroup_file(memberships, "memory", ("memory.max", "memory.limit_in_bytes")),
        machine.cgroup_file(memberships, "memory", ("memory.current", "memory.usage_in_bytes")),
    )
    kept = machine.versions_bytes(job) if job else None
    yield machine.memory(available, actor_workers=_actor_workers(seen), versions_bytes=kept)
    yield machine.gpu(*machine.ask_driver(), machine.ask_torch() if deep else None)
    yield machine.files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield machine.clock(time.time(), monotonic=time.get_clock_info("monotonic").monotonic, skew_s=skew_s)


def _actor_workers(cores: int) -> int:
    """Most actor workers that a pool would start; raises SpecError for a setting that the pool would refuse."""
    variable = "MARLESS_ACTOR_WORKERS"
    given = os.environ.get(variable, f"{cores}")
    try:
        return documents.whole(given)
    except ValueError:
        raise SpecError(f"${variable} is {given!r}; give a whole number of at least 1") from None


def _usable_cores(memberships: str) -> float:
    usable = float(len(os.sched_getaffinity(0)))
    of_version_1 = [
        machine.cgroup_file(memberships, "cpu", ("", name)).strip()
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    ]
    # Version 1 has in two files what version 2 has in one line.
    limit = machine.cgroup_file(memberships, "cpu", ("cpu.max", "")) or " ".join(of_version_1)
    return min(usable, machine.quota(limit) or usable)


def _disk(runs: Path) -> Finding:
    directory = places.existing(runs.absolute())
    try:
        return places.disk(directory, places.room(directory), places.fsync_s(directory))
    except OSError as error:
        return places.unusable_disk(directory, error.strerror or str(error))


def _spool() -> Finding:
    directory = places.spool_directory()
    try:
        private_files.look_for_home(places.existing(directory))
    except OSError as error:
        return places.unusable_spool(error.filename or directory, error.strerror or str(error))
    return places.spool(directory, places.room(places.existing(directory)), memory_backed=directory == Path("/dev/shm"))


def _ask_coordinator(runs: Path) -> _Answer | None:
    """Ask the coordinator; None if none is configured or running."""
    if not os.environ.get("MARLESS_COORDINATOR") and StackFolder.of(runs).standing() is None:
        return None
    address = find(None, runs)
    try:
        with Client(address, contact_s=CONTACT_S) as client:
            asked_s = time.time()
            info = client.info()
            answered_s = time.time()
    except MarlessError as error:
        return _Answer(address=address, info=None, reason=str(error))
    # The coordinator has read its clock about midway between question and answer.
    return _Answer(address=address, info=info, skew_s=(asked_s + answered_s) / 2 - info.now_s)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
