"""What the process of a worker finds in its environment: how many threads compute, how memory is kept, and which share
of the CPUs it gets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_KEPT = ("MARLESS_FAILPOINT",)
_LOWEST = 19
"""Of Linux's nice values."""
_CREDENTIALS = ("WANDB_API_KEY", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Of metrics sinks, which only coordinators feed."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""NumPy and torch read these when they are imported."""
# Workers are the parallelism, and results must not depend on the number of cores. And one heap: the threads of gRPC
# would each keep their own free memory.
ACTOR = ONE_THREAD | {"MALLOC_ARENA_MAX": "1"}


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a worker inherits of its pool's environment: nothing of marless's own, for a worker is told what it must
    know, and no credentials. Third parties' code runs there.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name.startswith("MARLESS_") or name in _CREDENTIALS)
    }


def learner(threads: int) -> dict[str, str]:
    """Of a learner worker whose functions compute side by side on so many threads.

    Each gradient step frees arrays of megabytes that the next one asks for again. By default glibc returns them to the
    system whenever they lie on top of the heap, and every page is then faulted in anew.
    """
    kept = {"MALLOC_TRIM_THRESHOLD_": str(256 * 2**20), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}
    return ONE_THREAD | {"OMP_NUM_THREADS": str(threads)} | kept


def yield_cpu() -> None:
    """Give this process, and all that it starts, the lowest CPU priority: a busy machine leaves it about 1.5 % of a
    CPU beside each process of normal priority.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    if os.getsid(0) == os.getpid():
        # Where Linux groups processes by session (sched_autogroup), it weighs whole groups against each other, and a
        # worker is a group of its own.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_LOWEST), encoding="ascii")
