"""Measures env steps per second of CPU time of the embedded StarCraft engine, and where the time goes.

`python -m bench.smac_engine --json bench/results/smac_engine.json`. One thread, random legal actions drawn before each
measured step, with observations, states, masks and the starts of new battles.
"""

from __future__ import annotations

import time

import numpy as np

from bench import harness
from bench.harness import Row, spread
from bench.workers import on_one_thread
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions

BATCHES = (1, 32, 256)
TARGETS = {"8m": 8_000, "3s5z": 5_000}
"""Least env steps per second at the largest batch."""


def rate(name: str, batch: int, cpu_s: float) -> tuple[float, float]:
    """Env steps per second of CPU time spent in `step`, and the fraction of battles won by random actions."""
    env, rng = registry.make(f"smac/{name}", {}, batch), np.random.default_rng(0)
    frame, taken, steps, battles, won = env.reset(0), 0.0, 0, 0, 0
    while taken < cpu_s:
        actions = random_actions(env.spaces, frame, rng)
        start = time.process_time()
        moved = env.step(actions)
        taken += time.process_time() - start
        frame, steps = moved.frame, steps + batch
        battles += int(moved.ended.sum())
        won += 0 if moved.won is None else int(moved.won.sum())
    return steps / taken, won / max(battles, 1)


def measured(name: str, runs: int, cpu_s: float) -> Row:
    """The row of a map."""
    row: Row = {"map": name}
    for batch in BATCHES:
        rates = [rate(name, batch, cpu_s)[0] for _ in range(runs)]
        row[f"{batch} battles, env steps/s"] = spread(rates).cell(0)
    return row


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--maps", nargs="+", default=["3m", "8m", "25m", "2s3z", "3s5z", "1c3s5z", "MMM", "corridor"])
    parser.add_argument("--cpu-s", type=float, default=2.0, help="CPU seconds of each measurement")
    args = parser.parse_args()
    on_one_thread()
    about = harness.machine()
    rows = []
    for name in args.maps:
        harness.say(name)
        rows.append(measured(name, args.runs, args.cpu_s))
    last = f"{BATCHES[-1]} battles, env steps/s"
    reached = {row["map"]: row[last]["median"] >= TARGETS[row["map"]] for row in rows if row["map"] in TARGETS}
    harness.report("smac_engine", about, rows, {"targets_reached": reached}, args.json)


if __name__ == "__main__":
    main()
