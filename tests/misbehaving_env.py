"""An environment that misbehaves in one of many ways, in one of its calls: `way` and `call` are its options.

`pettingzoo/tests.misbehaving_env:Misbehaving` with MARLESS_ENV_MODULES=tests.misbehaving_env. Whatever it does, it may
harm its own job only.
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ctypes
import gc
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

LONG_S = 10**5
HANGING = ("hold_the_lock", "regex", "spin", "sleep", "wait", "deadlock", "socket", "sigstop")
"""Ways that end by a time limit only."""
CALLS = ("make", "reset", "step", "close")
NAME = f"pettingzoo/{__name__}:Misbehaving"
_held: list[object] = []
"""What must outlive the call that made it."""


class UnprintableError(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raise(error: BaseException) -> Callable[[], None]:
    def way() -> None:
        raise error

    return way


def _signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _recurse() -> None:
    _recurse()


def _spin() -> None:
    while True:
        pass


def _deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _allocate() -> None:
    _held.append([bytearray(2**26) for _ in range(16)])  # a gigabyte
    raise MemoryError("enough")


def _fork_that_stays() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(LONG_S)


def _fork_that_returns() -> None:
    """Two processes go on from here, as after a fork that its author forgot to end."""
    os.fork()


def _detached() -> None:
    subprocess.Popen(["sleep", str(LONG_S)], start_new_session=True, stdout=subprocess.DEVNULL)


def _many_children() -> None:
    _held.extend(subprocess.Popen(["sleep", str(LONG_S)]) for _ in range(20))


def _limit(what: int, value: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (value, resource.getrlimit(what)[1]))


def _gone_directory() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)


def _threads_that_stay() -> None:
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(LONG_S,), daemon=daemon).start()


def _busy_thread() -> None:
    threading.Thread(target=_spin, daemon=True).start()


def _overwrite_descriptors() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3, 64):
        os.dup2(nowhere, descriptor)


def _print_much() -> None:
    for _ in range(20):
        os.write(1, b"x" * 2**20)
        os.write(2, b"y" * 2**20)


def _patch_numpy() -> None:
    np.zeros = np.ones = None  # type: ignore[assignment]


def _patch_time() -> None:
    time.monotonic = time.time = lambda: 0.0  # type: ignore[assignment]


def _patch_builtins() -> None:
    builtins.open = builtins.len = None  # type: ignore[assignment]


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _own_loop() -> None:
    asyncio.set_event_loop_policy(None)
    asyncio.run(asyncio.sleep(0))


def _hang_at_exit() -> None:
    atexit.register(time.sleep, LONG_S)


def _corrupt() -> None:
    ctypes.memset(id(_held), 0xFF, 16)
    gc.collect()


WAYS: dict[str, Callable[[], object]] = {
    "segmentation_fault": lambda: ctypes.string_at(0),
    "exit_0": lambda: os._exit(0),
    "exit_7": lambda: os._exit(7),
    "abort": os.abort,
    "sigkill": _signal(signal.SIGKILL),
    "sigterm": _signal(signal.SIGTERM),
    "sigint": _signal(signal.SIGINT),
    "sighup": _signal(signal.SIGHUP),
    "sigstop": _signal(signal.SIGSTOP),
    "sigsegv": _signal(signal.SIGSEGV),
    "sigfpe": _signal(signal.SIGFPE),
    "sigpipe": _signal(signal.SIGPIPE),
    "sys_exit": lambda: sys.exit(0),
    "sys_exit_text": lambda: sys.exit("I give up"),
    "keyboard_interrupt": _raise(KeyboardInterrupt()),
    "generator_exit": _raise(GeneratorExit()),
    "stop_iteration": _raise(StopIteration()),
    "cancelled": _raise(asyncio.CancelledError()),
    "memory_error": _raise(MemoryError()),
    "unprintable_error": _raise(UnprintableError()),
    "long_error": _raise(RuntimeError("x" * 10**7)),
    "group_of_errors": _raise(ExceptionGroup("many", [KeyError("a"), OSError("b")])),
    "recursion": _recurse,
    "hold_the_lock": lambda: ctypes.PyDLL(None).sleep(LONG_S),
    "regex": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "spin": _spin,
    "sleep": lambda: time.sleep(LONG_S),
    "wait": lambda: threading.Event().wait(),
    "deadlock": _deadlock,
    "socket": lambda: socket.socketpair()[0].recv(1),
    "allocate": _allocate,
    "close_descriptors": lambda: os.closerange(0, 4096),
    "close_standard": lambda: os.closerange(0, 3),
    "overwrite_descriptors": _overwrite_descriptors,
    "no_streams": lambda: [setattr(sys, name, None) for name in ("stdin", "stdout", "stderr")],
    "print_much": _print_much,
    "gone_directory": _gone_directory,
    "umask": lambda: os.umask(0o777),
    "no_environment": os.environ.clear,
    "no_modules": lambda: [sys.modules.pop(name) for name in list(sys.modules) if name.startswith("marless")],
    "ignore_signals": _ignore_signals,
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.2),
    "few_files": _limit(resource.RLIMIT_NOFILE, 3),
    "little_memory": _limit(resource.RLIMIT_AS, 2**20),
    "little_time": _limit(resource.RLIMIT_CPU, 1),
    "no_file_sizes": _limit(resource.RLIMIT_FSIZE, 0),
    "low_priority": lambda: os.nice(19),
    "threads": _threads_that_stay,
    "busy_thread": _busy_thread,
    "fork_that_stays": _fork_that_stays,
    "fork_that_returns": _fork_that_returns,
    "detached_process": _detached,
    "many_children": _many_children,
    "patch_numpy": _patch_numpy,
    "patch_time": _patch_time,
    "patch_builtins": _patch_builtins,
    "numpy_errors": lambda: np.seterr(all="raise"),
    "warnings_as_errors": lambda: warnings.simplefilter("error"),
    "no_logging": logging.disable,
    "no_collector": gc.disable,
    "no_path": sys.path.clear,
    "recursion_limit": lambda: sys.setrecursionlimit(80),
    "directory_of_descriptors": lambda: os.chdir("/proc/self/fd"),
    "own_loop": _own_loop,
    "hang_at_exit": _hang_at_exit,
    "corrupt_memory": _corrupt,
}


class Misbehaving(ParallelEnv):
    """Two agents, five steps, reward 1 for action 1; in the call that is named, it misbehaves as named."""

    metadata = {"name": "misbehaving"}
    possible_agents = ["a", "b"]

    def __init__(self, way: str = "exit_7", call: str = "make", later: bool = False) -> None:
        """With `later` it behaves while it is examined, as one does that breaks when the job has been accepted."""
        self._way, self._call = WAYS[way], call
        if later and Path(sys.argv[0]).stem == "examining":
            self._call = ""
        self._do("make")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self._do("reset")
        self.agents, self.t = list(self.possible_agents), 0
        return self._seen(), {a: {} for a in self.agents}

    def step(self, actions):
        if self.t == 2:
            self._do("step")
        self.t += 1
        acted, over = self.agents, self.t == 5
        rewards = {a: float(actions[a] == 1) for a in acted}
        self.agents = [] if over else acted
        no = dict.fromkeys(acted, False)
        return {a: np.zeros(2, np.float32) for a in acted}, rewards, dict.fromkeys(acted, over), no, {}

    def close(self):
        self._do("close")

    def _seen(self):
        return {a: np.zeros(2, np.float32) for a in self.agents}

    def _do(self, call: str) -> None:
        if call == self._call:
            self._way()
