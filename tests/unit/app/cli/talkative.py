"""An environment that prints by every way there is, whenever its code runs."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import subprocess
import sys
import threading

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

_LIBC = ctypes.CDLL(None)


@functools.cache  # once for each: a process takes milliseconds to start, and a calibration makes thousands of steps
def talk(when: str) -> None:
    """Print by Python, by the descriptor, from another thread, from a subprocess, and into the buffer of C's stdout."""
    sys.stdout.write(f"python {when}\n")
    print(f"original {when}", file=sys.__stdout__)
    os.write(1, f"descriptor {when}\n".encode())
    thread = threading.Thread(target=print, args=(f"thread {when}",))
    thread.start()
    thread.join()
    subprocess.run(["echo", f"subprocess {when}"], check=True)
    _LIBC.printf(f"c {when}\n".encode())


talk("import")
atexit.register(talk, "exit")


class Talkative(ParallelEnv):
    """Two agents, three steps, reward 1."""

    metadata = {"name": "talkative", "render_modes": ["rgb_array"]}
    possible_agents = ["agent_0", "agent_1"]

    def __init__(self, render_mode: str | None = None, *, ends: bool = False, forks: bool = False) -> None:
        """With `ends`, it ends its process in `step`; with `forks`, two processes return from there."""
        self.render_mode, self._ends, self._forks = render_mode, ends, forks
        talk("make")

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (12,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        talk("reset")
        self.agents, self.t = list(self.possible_agents), 0
        return self._seen(), {a: {} for a in self.agents}

    def step(self, actions):
        talk("step")
        if self._ends:
            ctypes.string_at(0)
        if self._forks:
            self._forks = False
            os.fork()
        self.t += 1
        acted, over = self.agents, self.t == 3
        self.agents = [] if over else acted
        no = dict.fromkeys(acted, False)
        return self._seen(), dict.fromkeys(acted, 1.0), no, dict.fromkeys(acted, over), {a: {} for a in acted}

    def render(self):
        talk("render")
        return np.zeros((8, 8, 3), np.uint8)

    def close(self):
        talk("close")

    def _seen(self):
        return {a: np.zeros(12, np.float32) for a in self.possible_agents}
