"""Gathers the facts about this machine and runs all checks."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distributions, requires
from pathlib import Path

from packaging.utils import canonicalize_name

from marless.app.cli.background import StackFolder
from marless.app.cli.doctor import machine, services
from marless.app.cli.doctor.verb import Finding
from marless.app.cli.recorded import unfinished
from marless.app.client import Client, Info
from marless.app.client.connection import find_coordinator
from marless.core import documents, private_files
from marless.core.errors import MarlessError, SpecError
from marless.core.machine import usable_cores
from marless.jobs.job import PreparedJob

CONTACT_S = 2.0
ACTOR_WORKERS = "MARLESS_ACTOR_WORKERS"
"""Environment variable: the most actor workers that a pool starts."""


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
    yield machine.python(sys.version_info[:3])
    installed: dict[str, str] = {canonicalize_name(each.name): each.version for each in distributions()}
    yield machine.packages(requires("marless") or [], installed)
    yield machine.learners(installed.get("torch"))
    yield machine.redis()
    yield machine.threads(os.environ)
    yield machine.secrets(os.environ)
    yield from _of_machine(job, answer.skew_s if answer else None, deep=deep)
    yield _disk(runs)
    yield _spool()
    yield services.sockets(folder.data, services.bind_unix)
    yield services.loopback(services.bind_loopback)
    yield from services.launchers()
    supervisor = folder.supervisor()
    yield services.stack(folder.read(), supervisor, folder.gave_up())
    if answer:
        yield services.coordinator(answer.address, answer.info, answer.reason)
    yield services.jobs(unfinished(runs), is_up=supervisor is not None)


def _of_machine(job: PreparedJob | None, skew_s: float | None, *, deep: bool) -> Iterator[Finding]:
    memberships = Path("/proc/self/cgroup").read_text(encoding="utf-8")
    seen = os.cpu_count() or 1
    of_version_1 = [
        machine.cgroup_file(memberships, "cpu", ("", name)).strip()
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    ]
    # Version 1 of cgroups has in two files what version 2 has in one line.
    limit = machine.cgroup_file(memberships, "cpu", ("cpu.max", "")) or " ".join(of_version_1)
    usable = float(usable_cores())
    yield machine.cores(seen, min(usable, machine.quota(limit) or usable))
    available = machine.available_memory(
        Path("/proc/meminfo").read_text(encoding="utf-8"),
        machine.cgroup_file(memberships, "memory", ("memory.max", "memory.limit_in_bytes")),
        machine.cgroup_file(memberships, "memory", ("memory.current", "memory.usage_in_bytes")),
    )
    kept = machine.versions_bytes(job) if job else None
    given = os.environ.get(ACTOR_WORKERS, f"{seen}")
    try:
        workers = documents.whole(given)
    except ValueError:  # the pool would refuse it, too
        raise SpecError(f"${ACTOR_WORKERS} is {given!r}; give a whole number of at least 1") from None
    yield machine.memory(available, actor_workers=workers, versions_bytes=kept)
    yield machine.gpu(*machine.ask_driver(), machine.ask_torch() if deep else None)
    yield machine.files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield machine.clock(time.time(), monotonic=time.get_clock_info("monotonic").monotonic, skew_s=skew_s)


def _disk(runs: Path) -> Finding:
    directory = services.existing(runs.absolute())
    try:
        return services.disk(directory, services.room(directory), services.fsync_s(directory))
    except OSError as error:
        return services.unusable_disk(directory, error.strerror or str(error))


def _spool() -> Finding:
    directory = services.spool_directory()
    try:
        private_files.look_for_home(services.existing(directory))
    except OSError as error:
        return services.unusable_spool(error.filename or directory, error.strerror or str(error))
    free_bytes = services.room(services.existing(directory))
    return services.spool(directory, free_bytes, memory_backed=directory == Path("/dev/shm"))


def _ask_coordinator(runs: Path) -> _Answer | None:
    """Ask the coordinator; None if none is configured or running."""
    if not os.environ.get("MARLESS_COORDINATOR") and StackFolder.of(runs).standing() is None:
        return None
    address = find_coordinator(None, runs)
    try:
        with Client(address, contact_s=CONTACT_S) as client:
            asked_s = time.time()
            info = client.info()
            answered_s = time.time()
    except MarlessError as error:
        return _Answer(address=address, info=None, reason=str(error))
    # The coordinator has read its clock about midway between question and answer.
    return _Answer(address=address, info=info, skew_s=(asked_s + answered_s) / 2 - info.now_s)
