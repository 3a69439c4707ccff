"""Measures env steps per second of CPU time in MuJoCo's tasks, next to Gymnasium's own.

`python -m bench.mujoco --json bench/results/mujoco.json`. One thread, random actions drawn beforehand, episodes with
their resets. Ours steps 64 copies at once; Gymnasium's vector environment has as many, which it steps one after
another, as `gymnasium.make_vec` makes it. Both are measured in turns, and a ratio is of two neighbouring measurements,
so that other load on the machine affects both alike. "contacts" is the part of our time in which the forces of contacts
are computed, where a task uses them.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

from bench import harness
from bench.harness import Row, Spread, spread
from bench.mpe import DRAWN, Step, rate
from bench.workers import on_one_thread
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions

BATCH = 64
TASKS = {
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "half_cheetah": "HalfCheetah-v5",
    "swimmer": "Swimmer-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
    "reacher": "Reacher-v5",
    "pusher": "Pusher-v5",
    "inverted_pendulum": "InvertedPendulum-v5",
    "inverted_double_pendulum": "InvertedDoublePendulum-v5",
}


class Timed:
    """Calls a method of an object in its place, and adds up the seconds of CPU time that it takes."""

    def __init__(self, owner: Any, method: str) -> None:  # Any: whatever has the method
        self._method = getattr(owner, method)
        self.seconds = 0.0
        setattr(owner, method, self)

    def __call__(self) -> None:
        start = time.process_time()
        self._method()
        self.seconds += time.process_time() - start


def ours(task: str) -> tuple[Step, Timed]:
    """Our batch, ready to step, and the time of its contacts."""
    env = registry.make(f"mujoco/{task}", {}, BATCH)
    contacts = Timed(env, "_find_contacts")
    frame, rng = env.reset(0), np.random.default_rng(0)
    actions = [random_actions(env.spaces, frame, rng) for _ in range(DRAWN)]
    return lambda i: void(env.step(actions[i % DRAWN])), contacts


def theirs(task: str) -> Step:
    """Gymnasium's vector environment, ready to step."""
    env = gymnasium.make_vec(TASKS[task], num_envs=BATCH, vectorization_mode="sync")
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(DRAWN)]
    return lambda i: void(env.step(actions[i % DRAWN]))


def void(_: object) -> None:
    """Drop a result."""


def compare(task: str, *, runs: int, cpu_s: float) -> Row:
    """The row of a task: rates of both, and their ratio, over repetitions in turns."""
    (fast, contacts), slow = ours(task), theirs(task)
    for step in (fast, slow):
        rate(step, cpu_s / 5)
    contacts.seconds, start = 0.0, time.process_time()
    rate(fast, cpu_s)
    share = contacts.seconds / (time.process_time() - start)
    measured = [(BATCH * rate(fast, cpu_s), BATCH * rate(slow, cpu_s)) for _ in range(runs)]
    return {
        "task": task,
        "marless, env steps/s": spread([fast for fast, _ in measured]).cell(0),
        "Gymnasium, env steps/s": spread([slow for _, slow in measured]).cell(0),
        "ratio": ratio(measured).cell(1),
        "contacts": f"{share:.0%}" if share else "",
    }


def ratio(measured: list[tuple[float, float]]) -> Spread:
    """Ratios of neighbouring measurements."""
    return spread([fast / slow for fast, slow in measured])


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=3).parse_args()
    on_one_thread()
    about = harness.machine()
    rows = []
    for task in TASKS:
        harness.say(task)
        rows.append(compare(task, runs=args.runs, cpu_s=2.0))
    harness.report("mujoco", about, rows, {"least_ratio": min(row["ratio"]["min"] for row in rows)}, args.json)


if __name__ == "__main__":
    main()
