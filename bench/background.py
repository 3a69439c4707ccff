"""Measures how much the random baseline, evaluated by the background worker, slows down concurrent rounds.

`python -m bench.background --json background.json`. Runs of `marless train` come in pairs with equal seeds, one right
after the other, with alternating order. In one run of a pair the baseline lasts as long as training; in the other it is
a single episode, which ends before the measured rounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import harness
from bench.harness import BenchError, Row, spread
from bench.systems import marless_job

TRAINED_S = 10.0
"""Training time of a run, in seconds."""
SETTLED_S = 2.0
"""Rounds that end in the first seconds do not count, because workers are still starting."""
PLAYED_S = 25.0
"""Duration of the long baseline in seconds: longer than training and the start of the learners before it."""
TIMEOUT_S = 180.0
ALONE, BESIDE = "a single episode", "as long as training"
EPISODES = {ALONE: 1, BESIDE: 10**6}


def settings(seed: int, episodes: int) -> Row:
    """The spread example for `TRAINED_S`, evaluated once at the end, with a baseline of this many episodes."""
    return {
        "seed": seed,
        "evaluation": {
            "every": 0,
            "episodes": 1,
            "random_episodes": episodes,
            "limit_s": PLAYED_S,
            "relative_error": 0.0,
        },
        "checkpoint": {"every": 0},
        "stop": {"wall_s": TRAINED_S},
    }


def rounds_per_s(records: Sequence[Row]) -> float:
    """Rounds per second after the first seconds, without the last round, which evaluates; raises BenchError."""
    settled_s = records[0]["started_s"] + SETTLED_S
    ends_s = [record["ended_s"] for record in records[:-1] if record["ended_s"] >= settled_s]
    if len(ends_s) < 2:
        raise BenchError(f"{len(records)} rounds in {TRAINED_S:g} s are too few to tell a rate")
    return float((len(ends_s) - 1) / (ends_s[-1] - ends_s[0]))


def check_lasted(events: Sequence[str]) -> None:
    """Raises BenchError if, by the events of the job's log, the baseline ended before training did."""
    if "baseline.measured" in events[: events.index("round.evaluated")]:
        raise BenchError("the random baseline ended before training did; raise PLAYED_S")


def measure(seed: int, baseline: str) -> float:
    """Rounds per second of one run."""
    events: list[str] = []

    def look(run_dir: Path) -> None:
        lines = (run_dir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        events.extend(json.loads(line)["event"] for line in lines)

    job = marless_job(settings(seed, EPISODES[baseline]), TIMEOUT_S, look=look)
    if baseline == BESIDE:
        check_lasted(events)
    rate = rounds_per_s(job.records)
    harness.say(f"seed {seed}: baseline of {baseline}: {rate:.2f} rounds/s")
    return rate


def table(rates: Mapping[str, Sequence[float]]) -> tuple[list[Row], Row]:
    """The rows, and the ratio over pairs: 1.0 if the baseline does not slow down rounds."""
    ratios = spread([beside / alone for beside, alone in zip(rates[BESIDE], rates[ALONE], strict=True)])
    rows = [
        {"random baseline": baseline, "rounds/s": spread(each).cell(2), "ratio": 1, "runs": len(each)}
        for baseline, each in rates.items()
    ]
    rows[-1]["ratio"] = ratios.cell(3)
    return rows, {
        "rounds_per_s_ratio": round(ratios.median, 3),
        "low": round(ratios.low, 3),
        "high": round(ratios.high, 3),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=5).parse_args()
    about = harness.machine()
    rates: dict[str, list[float]] = {ALONE: [], BESIDE: []}
    for seed in range(args.runs):
        for baseline in (ALONE, BESIDE) if seed % 2 == 0 else (BESIDE, ALONE):
            rates[baseline].append(measure(seed, baseline))
    rows, headline = table(rates)
    harness.report("background", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
