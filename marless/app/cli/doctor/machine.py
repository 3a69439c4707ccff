"""Checks of cores, memory, GPU, file descriptors and clock."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from marless.app.cli.doctor.finding import Finding, fail, ok, warn
from marless.jobs.job import PreparedJob
from marless.learning.nets.layout import Layout

SERVICES_BYTES = 350e6
ACTOR_WORKER_BYTES = 40e6
LEARNER_WORKER_BYTES = 300e6
"""Memory per worker as measured in docs/benchmarks.md, rounded up."""
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
    found = f"{_gb(available_bytes)} available; {actor_workers} actor workers and a learner take {_gb(need)}{rest}"
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


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"
