"""Measures an almost empty round over the four services: one actor, one environment copy, one step, one minibatch.

Its duration is the overhead of distribution: RPCs, weights, trajectories, the durable record.

`python -m bench.round_overhead --json round_overhead.json`
"""

from __future__ import annotations

from itertools import pairwise

from bench import harness
from bench.harness import percentile, spread
from bench.systems import WARM_UP, marless_job

SETTINGS: dict[str, object] = {
    "actors": {"count": 1, "envs": 1, "steps": 1},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
    "evaluation": {"every": 0, "episodes": 1, "random_episodes": 1},
    "checkpoint": {"every": 0},
}


def round_ms(rounds: int, seed: int) -> list[float]:
    """Milliseconds between the ends of successive rounds, without the first rounds and the last, which evaluates."""
    job = marless_job({**SETTINGS, "seed": seed, "stop": {"rounds": rounds}}, timeout_s=120)
    ends_s = [record["ended_s"] for record in job.records[WARM_UP - 1 : -1]]
    return [1000 * (after - before) for before, after in pairwise(ends_s)]


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--rounds", type=int, default=200, help="rounds of each run")
    args = parser.parse_args()
    about = harness.machine()
    runs = [round_ms(args.rounds, seed) for seed in range(args.runs)]
    p50, p95 = (spread([percentile(run, percent) for run in runs]).cell(2) for percent in (50, 95))
    row = {"p50 (ms)": p50, "p95 (ms)": p95, "rounds a run": args.rounds, "runs": args.runs}
    headline = {"round_ms_p50": p50["median"], "round_ms_p95": p95["median"]}
    harness.report("round_overhead", about, [row], headline, args.json)


if __name__ == "__main__":
    main()
