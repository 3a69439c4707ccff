"""Checks of this machine: cores, memory, GPU, file descriptors and clock; installed software and its configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marless.app.cli.doctor.verb import Finding, fail, ok, warn
from marless.core.errors import SpecError, UnavailableError
from marless.core.installing import how_to_install
from marless.jobs.job import PreparedJob
from marless.learning.nets.layout import Layout
from marless.rpc import own_redis
from marless.rpc.security import SECRET_VARIABLES
from marless.rpc.tokens import Tokens

OLDEST_PYTHON = (3, 11)
_PINNING = ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_FILES = tuple(name for name in SECRET_VARIABLES if name.startswith(("MARLESS_TLS_", "MARLESS_WORKER_TLS_")))
SERVICES_BYTES = 350e6
ACTOR_WORKER_BYTES = 40e6
LEARNER_WORKER_BYTES = 300e6
"""Memory per worker as measured in docs/benchmarks_services.md, rounded up."""
KEPT_VERSIONS = 3
FEW_FILES, MANY_FILES = 256, 1024
SKEW_S = 1.0
_NVIDIA_TIMEOUT_S = 10.0
_TORCH_TIMEOUT_S = 120.0
_RELEASED_S = 1.75e9  # the date of this code: an earlier clock is wrong
_CGROUPS = Path("/sys/fs/cgroup")
_STATES = 3  # weights and Adam's two moments


def cores(seen: int, usable: float) -> Finding:
    """Check the number of cores, and those that CPU affinity and cgroup quota leave to this process."""
    whole = max(1, int(usable))
    if whole >= seen:
        return ok("cores", str(seen))
    return warn(
        "cores",
        f"{usable:g} of {seen} usable (affinity or quota), but workers and threads are started for {seen}",
        f"set MARLESS_ACTOR_WORKERS={whole} and MARLESS_LEARNER_THREADS={whole}",
    )


def quota(cpu_max: str) -> float | None:
    """Number of cores that a cgroup's cpu.max allows; None without a limit."""
    allowed, _, period = cpu_max.strip().partition(" ")
    return None if allowed in ("max", "-1", "") else int(allowed) / int(period or 100_000)


def memory(available_bytes: float, *, actor_workers: int, versions_bytes: float | None) -> Finding:
    """Check the available memory against the needs of services, workers and a job's stored policy versions."""
    need = SERVICES_BYTES + actor_workers * ACTOR_WORKER_BYTES + LEARNER_WORKER_BYTES + (versions_bytes or 0.0)
    rest = "" if versions_bytes is not None else ", plus policies × 3 versions × bytes of a version"
    found = (
        f"{available_bytes / 1e9:.1f} GB available; {actor_workers} actor workers and a learner take "
        f"{need / 1e9:.1f} GB{rest}"
    )
    if available_bytes < need:
        return fail("memory", found, "use fewer actor workers (MARLESS_ACTOR_WORKERS), or a bigger machine")
    if available_bytes < 2 * need:
        return warn("memory", found, "use fewer actor workers (MARLESS_ACTOR_WORKERS), and monitor the memory")
    return ok("memory", found)


def versions_bytes(job: PreparedJob) -> float:
    """Bytes that the store keeps of a job: policies × versions × size, assuming critics as large as policies."""
    total = 0.0
    for group in job.sharing.decide(()).groups:
        agents = job.spaces.class_of(group.agents[0])
        inputs = max(agents.obs_size, job.spaces.state_size if job.with_state else 0)
        layout = Layout(inputs, job.spec.model.hidden, agents.action.n)
        total += 2 * 4 * _STATES * layout.size
    return KEPT_VERSIONS * total


def available_memory(meminfo: str, limit: str, used: str) -> float:
    """Available bytes: of the machine (/proc/meminfo), or of this process's cgroup if its limit leaves less."""
    lines = (line.split() for line in meminfo.splitlines())
    free = next((1024.0 * int(words[1]) for words in lines if words[:1] == ["MemAvailable:"]), float("inf"))
    # "max", or no file; version 1 writes a number that is larger than any memory, which
    # the minimum below takes care of.
    if not limit.strip().isdecimal():
        return free
    return min(free, float(limit) - float(used or 0))


def cgroup_file(memberships: str, controller: str, names: tuple[str, str]) -> str:
    """Contents of a file of this process's cgroup, by its name in version 2 or version 1; "" if there is none."""
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        # Version 2 has one hierarchy for all controllers, whose line names none.
        unified = not controllers
        if not unified and controller not in controllers.split(","):
            continue
        top, name = (_CGROUPS, names[0]) if unified else (_CGROUPS / controller, names[1])
        for place in (top / path.lstrip("/"), top):  # in a container, the own cgroup is mounted at the root
            if (place / name).is_file():
                return (place / name).read_text(encoding="utf-8")
    return ""


def gpu(listing: str, trouble: str, torch_sees: int | None) -> Finding:
    """Check GPUs: the driver's list (one per line), its error if any, and the number that torch can use, if known."""
    names = [line.strip() for line in listing.splitlines() if line.strip()]
    if trouble:
        return warn("gpu", f"nvidia-smi: {trouble.strip().splitlines()[0]}", "repair the driver; learners use the CPU")
    if names and torch_sees == 0:
        return warn("gpu", f"{'; '.join(names)}, but torch cannot use it", "install torch for its CUDA version")
    return ok("gpu", "; ".join(names) or "none; learners use the CPU")


def ask_driver() -> tuple[str, str]:
    """The output of nvidia-smi, and its error; both "" if it is not installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "", ""
    query = (program, "--query-gpu=name,memory.total", "--format=csv,noheader")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_NVIDIA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr or done.stdout or "it failed")


def ask_torch() -> int | None:
    """Number of GPUs that torch can use, asked in a process of its own, as torch loads slowly; None without torch."""
    program = (sys.executable, "-P", "-c", "import torch; print(torch.cuda.device_count())")
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=_TORCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return 0
    return int(done.stdout) if done.returncode == 0 else None


def files(limit: int) -> Finding:
    """Check the limit on open files per process."""
    if limit < FEW_FILES:
        return fail("files", f"{limit} open files a process", f"ulimit -n {MANY_FILES}")
    if limit < MANY_FILES:
        return warn("files", f"{limit} open files a process, enough for few workers", f"ulimit -n {MANY_FILES}")
    return ok("files", f"{limit} open files a process")


def clock(now_s: float, *, monotonic: bool, skew_s: float | None) -> Finding:
    """Check this machine's clock; `skew_s` is its lead over the coordinator's, if known."""
    if not monotonic:
        return fail("clock", "the monotonic clock can be set", "leases and timeouts need a clock that cannot be set")
    date = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s))
    if now_s < _RELEASED_S:
        return warn(
            "clock",
            f"it shows {date}, a date in the past",
            "set the clock, e.g. with NTP: run folders are named by time",
        )
    if skew_s is None:
        return ok("clock", date)
    found = f"{date}, {abs(skew_s):.2f} s {'ahead of' if skew_s > 0 else 'behind'} the coordinator"
    if abs(skew_s) > SKEW_S:
        return warn("clock", found, "run NTP on both machines: times in records and logs disagree")
    return ok("clock", found)


def python(version: Sequence[int]) -> Finding:
    """Check the version of Python."""
    found = ".".join(map(str, version[:3]))
    if tuple(version[:2]) < OLDEST_PYTHON:
        return fail("python", found, "install Python 3.11 or newer")
    return ok("python", found)


def packages(requirements: Sequence[str], installed: Mapping[str, str]) -> Finding:
    """Check whether required packages have suitable versions; `installed` maps canonical names to versions."""
    wrong, seen = [], 0
    for requirement in map(Requirement, requirements):
        # Requirements of extras have a marker that is false where no extra is named.
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        seen += 1
        version = installed.get(canonicalize_name(requirement.name))
        if version is None:
            wrong.append(f"{requirement.name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} does not work (needs {requirement.specifier})")
    if wrong:
        return fail("packages", "; ".join(wrong), "pip install --upgrade marless")
    return ok("packages", f"all {seen}, grpcio {installed.get('grpcio', '')}")


def learners(torch: str | None) -> Finding:
    """Check whether learner workers can run here, by the version of torch."""
    if torch is None:
        how = how_to_install("torch", "marless[learner]")
        return warn("learners", "torch is not installed: no policy can be trained here", how)
    return ok("learners", f"torch {torch}")


def redis() -> Finding:
    """Check the Redis program that a parameter store would start."""
    try:
        binary = own_redis.find_binary()
        name, version = own_redis.version_of(binary)
    except UnavailableError as error:
        return fail("redis", str(error), "pip install 'marless[embedded]'")
    return redis_version(name, version, str(binary))


def redis_version(name: str, version: tuple[int, ...], binary: str) -> Finding:
    """Check whether a Redis or Valkey version is recent enough."""
    found = f"{name} {'.'.join(map(str, version))} ({binary})"
    if name == "Redis" and version < own_redis.OLDEST:
        return fail("redis", found, "install Redis 6.2 or newer, or Valkey")
    return ok("redis", found)


def threads(environment: Mapping[str, str]) -> Finding:
    """Check for OpenMP settings that workers inherit and that slow them; workers set thread counts themselves."""
    slow = [
        f"{name}={environment[name]} puts all workers on the same cores"
        for name in _PINNING
        if environment.get(name, "false").lower() not in ("false", "disabled", "none", "")
    ]
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        slow.append("OMP_WAIT_POLICY=active makes waiting threads take cores from working ones")
    if environment.get("KMP_BLOCKTIME") == "infinite":
        slow.append("KMP_BLOCKTIME=infinite makes waiting threads take cores from working ones")
    if slow:
        return warn("threads", "; ".join(slow), "unset it where marless runs")
    return ok("threads", "no setting slows workers")


def secrets(environment: Mapping[str, str]) -> Finding:
    """Check tokens and TLS files, for services on other machines; secrets are never shown."""
    files = {name: Path(environment[name]) for name in _FILES if environment.get(name)}
    for name, path in files.items():
        if not os.access(path, os.R_OK):
            return fail("secrets", f"${name} names {path}, which cannot be read", "name a PEM file that you may read")
    for key in (path for name, path in files.items() if name.endswith("_KEY")):
        if key.stat().st_mode & 0o077:
            return warn("secrets", f"others may read {key}", f"chmod 600 {key}")
    directory = environment.get("MARLESS_TOKENS", "")
    if directory:
        try:
            Tokens(Path(directory)).check()
        except SpecError as error:
            return fail("secrets", str(error), "correct $MARLESS_TOKENS, or unset it")
    token = bool(environment.get("MARLESS_TOKEN"))
    if files and not token and not directory:
        advice = "set MARLESS_TOKENS for services (`marless tokens DIR`), MARLESS_TOKEN for clients"
        return warn("secrets", "TLS files are set, neither MARLESS_TOKENS nor MARLESS_TOKEN is", advice)
    found = (f"token {'set' if token else 'not set'}", f"tokens {directory or 'not set'}")
    return ok("secrets", f"{'; '.join(found)}; TLS files: {', '.join(files) or 'none'}")
