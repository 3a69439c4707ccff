"""Measures an almost empty round over the four services: one actor, one environment copy, one step, one minibatch.

Its duration is the overhead of distribution: RPCs, weights, trajectories, the durable record.

`python -m bench.round_overhead --json round_overhead.json`; with `--before ../earlier`, in turns with an earlier
checkout, which has its environment in `.venv`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bench import harness
from bench.harness import ROOT, Row, percentile, spread
from bench.systems import WARM_UP, checkout, marless_job

SETTINGS: dict[str, object] = {
    "actors": {"count": 1, "envs": 1, "steps": 1},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
    "evaluation": {"every": 0, "episodes": 1, "random_episodes": 1},
    "checkpoint": {"every": 0},
}
PERCENTS = (50, 95)


def round_ms(rounds: int, seed: int, root: Path = ROOT) -> list[float]:
    """Milliseconds between the ends of successive rounds, without the first rounds and the last, which evaluates."""
    job = marless_job({**SETTINGS, "seed": seed, "stop": {"rounds": rounds}}, timeout_s=120, root=root)
    ends_s = [record["ended_s"] for record in job.records[WARM_UP - 1 : -1]]
    return [1000 * (after - before) for before, after in pairwise(ends_s)]


def row(code: str, runs: list[list[float]], first: list[list[float]]) -> Row:
    """Percentiles of the runs of one code, and its median as a percentage of the first code's run of the same turn."""
    cells = {f"p{percent} (ms)": spread([percentile(run, percent) for run in runs]).cell(2) for percent in PERCENTS}
    of_first = [100 * percentile(run, 50) / percentile(beside, 50) for run, beside in zip(runs, first, strict=True)]
    return {"code": code, **cells, "p50 of present (%)": spread(of_first).cell(1), "runs": len(runs)}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--rounds", type=harness.positive, default=200, help="rounds of each run")
    parser.add_argument("--before", type=Path, help="an earlier checkout, whose rounds are measured, too")
    args = parser.parse_args()
    before = checkout(parser, args.before)
    about = harness.machine()
    roots = {"present": ROOT} | ({"before": before} if before else {})
    runs: dict[str, list[list[float]]] = {code: [] for code in roots}
    for seed in range(args.runs):
        for code, root in roots.items():
            runs[code].append(round_ms(args.rounds, seed, root))
            harness.say(f"run {seed + 1} of {args.runs}: {code}: {percentile(runs[code][-1], 50):.1f} ms")
    rows = [row(code, each, runs["present"]) for code, each in runs.items()]
    p50, p95 = (spread([percentile(run, percent) for run in runs["present"]]).median for percent in PERCENTS)
    headline = {"rounds_a_run": args.rounds, "round_ms_p50": round(p50, 2), "round_ms_p95": round(p95, 2)}
    harness.report("round_overhead", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
