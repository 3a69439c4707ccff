"""Runs `marless frontier` on the tasks of bench/plans/decisions.md, which say what a user pays who sets nothing.

    python -m bench.frontiers --runs runs --seeds 5 --processes 2 --document docs/results.md

Finished runs are not repeated, so that it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PRESETS = "auto,marless,marless-frugal"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of the plan."""

    name: str
    job: str
    env_steps: int
    actors: str
    settings: tuple[str, ...]
    schedules: str = "synchronous"
    groups: str = "independent,shared"


TASKS = (
    Task(
        name="spread6",
        job="examples/spread6-long.yaml",
        env_steps=1_000_000,
        actors="2,4,8,16,32,50",
        settings=(),
    ),
    Task(
        name="battle8m",
        job="examples/smac_8m_ippo.yaml",
        env_steps=150_000,
        actors="1,2,4,8,16,32",
        settings=("actors.count=32",),
    ),
    Task(
        name="hopper",
        job="examples/hopper.yaml",
        env_steps=400_000,
        actors="1,2,4,8,16,32",
        settings=("actors.count=32", "actors.envs=8", "actors.steps=64"),
        schedules="synchronous,pipelined",
        groups="independent",
    ),
    Task(
        name="mappo",
        job="examples/spread-mappo.yaml",
        env_steps=600_000,
        actors="1,2,4,8,16,32",
        settings=("actors.count=32", "actors.envs=20"),
    ),
)


def command(task: Task, options: argparse.Namespace) -> list[str]:
    """The command line of one task's frontier."""
    settings = (
        f"name={task.name}",
        "bill.time=cpu",
        "stop.rounds=null",
        f"stop.env_steps={task.env_steps}",
        *task.settings,
    )
    words = [sys.executable, "-m", "marless", "frontier", task.job, "--resume"]
    for setting in settings:
        words += ["--set", setting]
    words += ["--actors", task.actors, "--groups", task.groups, "--schedules", task.schedules, "--presets", PRESETS]
    words += ["--seeds", str(options.seeds), "--processes", str(options.processes), "--runs", str(options.runs)]
    return words + (["--document", str(options.document)] if options.document else [])


def main() -> int:
    """Make the frontier of each chosen task; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS), help="some of the tasks, by name")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each setting")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--document", type=Path, help="page whose blocks get the tables")
    options = parser.parse_args()
    chosen = options.tasks.split(",")
    codes = [subprocess.call(command(task, options)) for task in TASKS if task.name in chosen]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
