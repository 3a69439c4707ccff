"""Measures env steps per second of CPU time in each particle game, next to mpe2's own implementation.

`python -m bench.mpe --json bench/results/mpe.json`. One thread, random actions drawn beforehand, and episodes of 25
steps with their resets. Ours steps 256 copies at once, mpe2 has one copy. Both are measured in turns, and a ratio is of
two neighbouring measurements, so that other load on the machine affects both alike.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import numpy as np

from bench import harness
from bench.harness import Row, spread
from bench.workers import on_one_thread
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions

BATCH = 256
DRAWN = 50
"""Number of different joint actions, used in turn."""
GAMES = (
    "simple_v3",
    "simple_adversary_v3",
    "simple_crypto_v3",
    "simple_push_v3",
    "simple_reference_v3",
    "simple_speaker_listener_v4",
    "simple_spread_v3",
    "simple_tag_v3",
    "simple_world_comm_v3",
)
"""Modules of mpe2; ours have the same names without the version."""

Step = Callable[[int], None]
"""Lets the agents of all copies take the i-th action."""


def ours(game: str, *, continuous: bool, batch: int = BATCH) -> Step:
    """Our engine, ready to step."""
    env = registry.make(f"mpe/{game.rpartition('_v')[0]}", {"continuous_actions": continuous}, batch)
    frame, rng = env.reset(0), np.random.default_rng(0)
    actions = [random_actions(env.spaces, frame, rng) for _ in range(DRAWN)]

    def step(i: int) -> None:
        env.step(actions[i % DRAWN])

    return step


def theirs(game: str, *, continuous: bool) -> Step:
    """mpe2's environment, ready to step."""
    env = importlib.import_module(f"mpe2.{game}").parallel_env(continuous_actions=continuous)
    env.reset(seed=0)
    for name in env.possible_agents:
        env.action_space(name).seed(0)
    actions = [{name: env.action_space(name).sample() for name in env.possible_agents} for _ in range(DRAWN)]

    def step(i: int) -> None:
        env.step(actions[i % DRAWN])
        if not env.agents:
            env.reset()

    return step


def rate(step: Step, cpu_s: float) -> float:
    """Calls of `step` per second of CPU time, measured for `cpu_s` seconds of it."""
    calls, start = 0, time.process_time()
    while (taken := time.process_time() - start) < cpu_s:
        for i in range(DRAWN):
            step(calls + i)
        calls += DRAWN
    return calls / taken


def compare(game: str, *, continuous: bool, runs: int, cpu_s: float = 0.5) -> Row:
    """The row of a game: rates of both, and their ratio, over repetitions in turns."""
    fast, slow = ours(game, continuous=continuous), theirs(game, continuous=continuous)
    for step in (fast, slow):
        rate(step, cpu_s / 5)
    measured = [(BATCH * rate(fast, cpu_s), rate(slow, cpu_s)) for _ in range(runs)]
    return {
        "game": game.rpartition("_v")[0],
        "actions": "continuous" if continuous else "discrete",
        "marless, env steps/s": spread([fast for fast, _ in measured]).cell(0),
        "mpe2, env steps/s": spread([slow for _, slow in measured]).cell(0),
        "ratio": spread([fast / slow for fast, slow in measured]).cell(0),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=5).parse_args()
    on_one_thread()
    about = harness.machine()
    rows = []
    for game in GAMES:
        for continuous in (False, True):
            harness.say(f"{game}, {'continuous' if continuous else 'discrete'} actions")
            rows.append(compare(game, continuous=continuous, runs=args.runs))
    least = {
        "least_rate": min(row["marless, env steps/s"]["min"] for row in rows),
        "least_ratio": min(row["ratio"]["min"] for row in rows),
    }
    harness.report("mpe", about, rows, least, args.json)


if __name__ == "__main__":
    main()
