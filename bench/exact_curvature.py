"""Whether MARLess's rule for actors pays where C is measured well: held against its own controls on six tasks.

    python -m bench.exact_curvature --runs runs --seeds 5 --json exact_curvature.json
    python -m bench.report exact_curvature.json

C is taken over all samples of a round, with 8 Lanczos steps (examples/presets/curvature.yaml): its noise is a fifth of
what it measures (`bench.curvature_noise`). `marless compare` holds the rule against its mean number of actors, its own
numbers shuffled, and random numbers in place of C, all with as many rounds. A rule that reads the curvature rightly has
to learn more than its shuffled numbers, for the same number of actors. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import harness
from bench.frontiers import TASKS, Task
from bench.harness import Row

_FILE = "examples/presets/curvature.yaml"
ACTORS = 16
"""I_max."""


@dataclass(frozen=True)
class Held:
    """A preset on a task, with a number of rounds."""

    task: str
    preset: str
    rounds: int

    @property
    def job(self) -> Task:
        """The task of `bench.frontiers`."""
        return next(each for each in TASKS if each.name == self.task)

    @property
    def name(self) -> str:
        """Name of its job, and so of its folder."""
        return f"{self.task}-{self.preset}"


HELD = (
    Held("spread6", "exact-shared", 60),
    Held("spread6", "exact-marless", 60),
    Held("mappo", "exact-apart", 60),
    Held("growing", "exact-apart", 60),
    Held("battle8m", "exact-shared", 30),
    Held("hopper", "exact-alone", 30),
    Held("slow", "exact-apart", 60),
)


def command(held: Held, options: argparse.Namespace) -> list[str]:
    """The command line of one comparison."""
    settings = (
        *held.job.settings,
        f"name={held.name}",
        f"actors.count={ACTORS}",
        f"bill.time={held.job.time}",
        "stop.env_steps=null",
        f"stop.rounds={held.rounds}",
        "evaluation.every=0",
        "evaluation.episodes=200",
    )
    words = [sys.executable, "-m", "marless", "compare", held.job.job, "--presets", f"{_FILE}:{held.preset}"]
    for setting in settings:
        words += ["--set", setting]
    words += ["--seeds", str(options.seeds), "--runs", str(options.runs), "--out", str(options.runs / held.name)]
    return words + (["--resume"] if (options.runs / held.name).exists() else [])


def rows(held: Held, comparison: Mapping[str, Any]) -> Iterator[Row]:  # Any: JSON
    """A line for each control."""
    for preset, verdict in comparison["verdicts"].items():
        for kind, control in verdict["controls"].items():
            yield {
                "task": held.task,
                "preset": preset,
                "control": kind,
                "actors": f"{fmean(run['actors'] for run in control['runs']):.3g}",
                **{f"{what}, preset − control": spanned(found) for what, found in control["returns"].items()},
                "cost, preset / control": spanned(control["cost_ratio"]),
                "outcome": control["outcome"],
            }


def spanned(known: Mapping[str, Any]) -> str:  # Any: JSON
    """A mean with its interval."""
    ends = "" if known["low"] is None else f" ({known['low']:.2f} to {known['high']:.2f})"
    return f"{known['mean']:.2f}{ends}"


def main() -> int:
    """Make the comparisons; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [held.name for held in HELD]
    parser.add_argument("--held", default=",".join(names), help="some of the comparisons, by name")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()
    chosen = options.held.split(",")
    if unknown := set(chosen) - set(names):
        parser.error(f"unknown comparison {min(unknown)!r}; known: {', '.join(names)}")
    about, environment = harness.machine(), harness.own_environments(os.environ)
    codes = [subprocess.call(command(held, options), env=environment) for held in HELD if held.name in chosen]
    found: list[Row] = []
    for held in HELD:
        file = options.runs / held.name / "comparison.json"
        if file.exists():
            found += rows(held, json.loads(file.read_text("utf-8")))
    harness.report("exact_curvature", about, found, {}, options.json)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
