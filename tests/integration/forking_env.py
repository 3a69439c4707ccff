"""An environment that starts processes in `step`, as wrappers round simulators do, and is paid by what they answer."""

import multiprocessing  # noqa: TID251  # as the environments of others do
import os
import subprocess
import sys

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


def answer(queue) -> None:
    queue.put(1.0)


def _by_multiprocessing(method: str) -> float:
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=answer, args=(queue,))
    child.start()
    paid = queue.get()
    child.join(10)
    if child.exitcode != 0:
        raise RuntimeError(f"its exit code is {child.exitcode}")
    return paid


def _by_fork() -> float:
    reads, writes = os.pipe()
    if not (child := os.fork()):
        os.write(writes, b"1")
        os._exit(0)
    paid = float(os.read(reads, 1))
    os.close(reads)
    os.close(writes)
    return paid if os.waitpid(child, 0)[1] == 0 else -1.0


def _by_subprocess(**options: object) -> float:
    return float(subprocess.run([sys.executable, "-c", "print(1)"], check=True, capture_output=True, **options).stdout)


def _by_pool() -> float:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return float(sum(pool.map(abs, [-1, 0])))


WAYS = {
    "fork": lambda: _by_multiprocessing("fork"),
    "forkserver": lambda: _by_multiprocessing("forkserver"),
    "spawn": lambda: _by_multiprocessing("spawn"),
    "os.fork": _by_fork,
    "pool": _by_pool,
    "subprocess": _by_subprocess,
    "preexec": lambda: _by_subprocess(preexec_fn=os.getpid),  # which forks, where others call posix_spawn or vfork
}


class Forking(ParallelEnv):
    """Three steps, each of which starts processes in one of `WAYS`."""

    metadata = {"name": "forking"}
    render_mode = None

    def __init__(self, way: str = "fork") -> None:
        self.possible_agents = ["a"]
        self.way = WAYS[way]

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = ["a"], 0
        return {"a": np.zeros(1, np.float32)}, {"a": {}}

    def step(self, actions):
        self.steps += 1
        ends = self.steps == 3
        self.agents = [] if ends else ["a"]
        return {"a": np.zeros(1, np.float32)}, {"a": self.way()}, {"a": ends}, {"a": False}, {"a": {}}

    def close(self):
        pass
