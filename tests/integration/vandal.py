"""An environment that changes its process in ways that nobody can undo, and says what it found when it was made."""

import builtins
import ctypes
import os
import random
import resource
import signal
import threading
from pathlib import Path

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

KINDS = 7
FILES = 200


def found() -> int:
    """How many of the changes that `change` makes are there."""
    return sum(
        (
            Path.cwd() == Path("/"),
            os.environ.get("VANDAL") == "1",
            _ignored() >> (signal.SIGUSR2 - 1) & 1,
            any(thread.name == "vandal" for thread in threading.enumerate()),
            hasattr(builtins, "vandal"),
            resource.getrlimit(resource.RLIMIT_NOFILE)[0] == FILES,
            random.getstate() == random.Random(17).getstate(),
        )
    )


def _ignored() -> int:
    """The signals that this process ignores, as bits."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(next(line for line in status.splitlines() if line.startswith("SigIgn:")).split()[1], 16)


def change() -> None:
    """Make `KINDS` changes."""
    os.chdir("/")
    os.environ["VANDAL"] = "1"
    ctypes.CDLL(None).signal(signal.SIGUSR2, 1)  # as C code may, in any thread
    threading.Thread(target=threading.Event().wait, name="vandal", daemon=True).start()
    builtins.vandal = True
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    random.seed(17)


class Vandal(ParallelEnv):
    """One step; its reward is what was found."""

    metadata = {"name": "vandal"}
    render_mode = None

    def __init__(self, made: int = 0) -> None:
        self.possible_agents = ["a"]
        self.found = found()
        change()

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        return {"a": np.zeros(1, np.float32)}, {"a": {}}

    def step(self, actions):
        self.agents = []
        return {"a": np.zeros(1, np.float32)}, {"a": float(self.found)}, {"a": True}, {"a": False}, {"a": {}}

    def close(self):
        pass
