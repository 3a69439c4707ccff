"""What a process gets from the one that starts it: environment variables (threads, malloc settings, no secrets), the
modules whose environments its operator trusts, CPU priority, and a standard output for data alone.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import thread as executors
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from marless.core.errors import SpecError
from marless.core.machine import VARIABLE

KERNELS = "MARLESS_KERNELS"
"""Which kernels a process computes with; see `marless.core.compiling`."""
_KEPT = ("MARLESS_FAILPOINT", VARIABLE, KERNELS)
GPU, GPU_SHARE = "MARLESS_GPU", "MARLESS_GPU_SHARE"
"""By which a launcher tells a worker its GPU, as CUDA_VISIBLE_DEVICES names it, and its part of the memory, up to 1."""
_LOWEST = 19
"""The lowest priority as a nice value of Linux."""
_CREDENTIALS = (
    *("WANDB_API_KEY", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
"""Credentials of metrics sinks, which only coordinators write to, and of AWS, which workers do not call."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""NumPy and torch read these when they are imported."""
# One thread, because parallelism comes from the number of workers, and results must not depend on the number of cores.
# One malloc arena, because each of gRPC's threads would keep its own free memory.
_TRIM_BYTES, _MMAP_BYTES = 256 * 2**20, 32 * 2**20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of options of glibc's mallopt."""
_FORKS = {"GRPC_ENABLE_FORK_SUPPORT": "0"}
"""An environment may fork in a step. In the child, handlers of gRPC would wait for ever for threads that are gone."""
ACTOR = ONE_THREAD | {"MALLOC_ARENA_MAX": "1"} | _FORKS
ENV_MODULES = "MARLESS_ENV_MODULES"
MODULE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""The name of a module."""
_STDOUT, _STDERR = 1, 2


CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""With room of a fixed size, NVIDIA's products are the same bits again; read when a GPU is first used.

Without it, torch refuses to compute them for a learner that must find the same bits.
"""


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a worker inherits from its pool. Credentials and MARLESS_* variables are left out, because
    third-party code runs there; a worker gets its settings from the command line and standard input.
    """
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not (name.startswith("MARLESS_") or name in _CREDENTIALS)
    }


def learner(threads: int) -> dict[str, str]:
    """Variables of a learner worker whose functions compute on this many threads.

    Each gradient step frees arrays of megabytes that the next one allocates again. By default glibc returns them to the
    system whenever they are at the top of the heap, which then causes a page fault for every page.
    """
    kept = {"MALLOC_TRIM_THRESHOLD_": str(_TRIM_BYTES), "MALLOC_MMAP_THRESHOLD_": str(_MMAP_BYTES)}
    return ONE_THREAD | {"OMP_NUM_THREADS": str(threads)} | kept | CUBLAS


@contextmanager
def changed(variables: Mapping[str, str]) -> Iterator[None]:
    """Context in which this process has these variables; afterwards it has those from before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def keep_freed_memory() -> None:
    """Set for this process, which runs already, what `learner` sets for one that starts; only glibc has it."""
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def begin_anew(given: Mapping[str, str]) -> None:
    """Start this process's program again with the variables of an actor that libraries read when they are imported.

    For a worker that no pool has launched; returns if they are set. `given` are the variables that the process was
    started with: by now it has removed those of its secrets.
    """
    if missing := {name: value for name, value in _FORKS.items() if name not in given}:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**given, **missing})


def end_forks_well() -> None:
    """Have processes that an environment forks from here end without an error of Python's own.

    At its end, Python joins the threads of executors. In a fork of such a thread, in which environments run, that is
    the thread itself, so that the exit code would be 1 whatever the process did.
    """
    queues = cast("dict[object, object]", executors._threads_queues)
    os.register_at_fork(after_in_child=queues.clear)


def yield_cpu() -> None:
    """Give this process and its children the lowest CPU priority: about 1.5 % of a CPU beside each busy process of
    normal priority.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST)
    if os.getsid(0) == os.getpid():
        # With sched_autogroup, Linux schedules sessions as groups and nice values count only within one; a worker has a
        # session of its own.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_LOWEST), encoding="ascii")


def allow_env_modules(names: Sequence[str]) -> None:
    """Set the modules that this process allows in addition to PettingZoo's own; called by its `__main__`."""
    os.environ[ENV_MODULES] = ",".join(names)


def env_modules() -> tuple[str, ...]:
    """The modules that the operator of this process allows, each with its submodules. Raises SpecError."""
    return parsed_env_modules(os.environ.get(ENV_MODULES, ""))


def parsed_env_modules(text: str) -> tuple[str, ...]:
    """Read a comma-separated list of modules; raises SpecError for an invalid name."""
    if not text.strip():
        return ()
    listed = tuple(name.strip() for name in text.split(","))
    for name in listed:
        if not MODULE_NAME.fullmatch(name):
            raise SpecError(
                f"{ENV_MODULES} or --env-modules: {name!r} is not the name of a module; e.g. cogrid,my_games"
            )
    return listed


def stdout_for_data() -> TextIO:
    """Take standard output away from all other code of this process; returns it, for data.

    For the rest of the process's life, descriptor 1 leads to standard error. The descriptor, and not only `sys.stdout`,
    because C code and subprocesses write to it; and to the end, because threads and functions that run at the exit
    print after all data, and so does C code that has written into a buffer.
    """
    stream = sys.stdout
    stream.flush()
    # The copy is closed in subprocesses, so that none writes to it or keeps its reader waiting.
    copy = fcntl.fcntl(_STDOUT, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    data = os.fdopen(copy, "w", encoding=stream.encoding, errors=stream.errors)
    try:
        os.dup2(_STDERR, _STDOUT)
    except OSError:  # standard error is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
    return data
