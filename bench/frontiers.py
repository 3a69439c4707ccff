"""Runs `marless frontier` on the tasks of bench/plans/decisions.md, which say what a user pays who sets nothing.

    python -m bench.frontiers --runs runs --seeds 5 --processes 2 --json frontiers.json
    python -m bench.report frontiers.json

Finished runs are not repeated, so that it can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from bench import harness
from bench.harness import Row

_FILE = "examples/presets/auto.yaml"
PRESETS = ("auto", f"{_FILE}:auto-apart", f"{_FILE}:auto-shared", "marless", "marless-frugal")
RULES = ("nitro", "gns", "echo", "variance")
"""Scaling policies of other papers, for which a task's groups are chosen in hindsight."""


def rules(groups: str) -> tuple[str, ...]:
    """The rules of other papers in these groups: "apart" or "shared"."""
    return tuple(f"{_FILE}:{rule}-{groups}" for rule in RULES)


def presets(groups: str) -> str:
    """The presets of a task, with the rules of other papers in these groups."""
    return ",".join((*PRESETS, *rules(groups)))


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
    presets: str = presets("shared")
    time: Literal["cpu", "duration"] = "cpu"
    """What functions are billed by: durations where environments wait, which need no core for it."""


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
        presets=",".join(("auto", *rules("apart"))),  # those that also group are refused with one agent
    ),
    Task(
        name="mappo",
        job="examples/spread-mappo.yaml",
        env_steps=600_000,
        actors="1,2,4,8,16,32",
        settings=("actors.count=32", "actors.envs=20"),
        presets=presets("apart"),
    ),
    Task(
        name="slow",
        job="examples/spread.yaml",
        env_steps=150_000,
        actors="1,2,4,8,16,32",
        settings=("env.name=slow_spread", "actors.count=32", "actors.envs=20", "evaluation.episodes=20"),
        presets=presets("apart"),
        time="duration",
    ),
    Task(
        name="growing",
        job="examples/spread.yaml",
        env_steps=600_000,
        actors="1,2,4,8,16,32",
        settings=("env.name=growing_spread", "actors.count=32", "actors.envs=20", "evaluation.episodes=20"),
        presets=presets("apart"),
    ),
    Task(
        name="schedules",
        job="examples/spread6-long.yaml",
        env_steps=1_000_000,
        actors="4,8,16",
        settings=("actors.count=4", "sharing.groups=shared"),
        schedules="synchronous,pipelined",
        groups="shared",
        presets="examples/presets/schedules.yaml:without-correction",
    ),
)


def command(task: Task, options: argparse.Namespace) -> list[str]:
    """The command line of one task's frontier."""
    settings = (
        f"name={task.name}",
        f"bill.time={task.time}",
        "stop.rounds=null",
        f"stop.env_steps={task.env_steps}",
        *task.settings,
    )
    words = [sys.executable, "-m", "marless", "frontier", task.job, "--resume"]
    for setting in settings:
        words += ["--set", setting]
    words += [
        "--actors",
        task.actors,
        "--groups",
        task.groups,
        "--schedules",
        task.schedules,
        "--presets",
        task.presets,
    ]
    # Environments that wait leave the cores to other runs.
    processes = options.processes * (3 if task.time == "duration" else 1)
    words += ["--seeds", str(options.seeds), "--processes", str(processes), "--runs", str(options.runs)]
    return words + (["--document", str(options.document)] if options.document else [])


def summary(task: str, frontier: Mapping[str, Any]) -> list[Row]:  # Any: JSON
    """A row for each preset: actors, the return at the end, and regrets by both accountings."""
    found: list[Row] = []
    for preset, known in frontier["presets"].items():
        runs = known["runs"]
        row: Row = {
            "task": task,
            "preset": preset,
            "actors": f"{fmean(each['actors'] for each in runs):.3g}",
            "final return": f"{fmean(each['final_return'] for each in runs):.4g}",
            "goal": f"{frontier['goal']['value']:.4g}",
            "reached": f"{known['seeds_reached']} of {len(runs)}",
        }
        for each in frontier["regrets"]:
            if each["preset"] == preset:
                where = "with own machines" if each["own_machines"] else "functions"
                row[f"regret, {each['accounting']}, {where}"] = regret(each)
                row[f"best, {each['accounting']}, {where}"] = each["against"] or ""
        found.append(row)
    return found


def folder_of(runs: Path, task: str) -> Path:
    """Where the frontier of a task is."""
    return runs / f"frontier-{task}"


def made(runs: Path) -> dict[Task, Mapping[str, Any]]:  # Any: JSON
    """The frontiers that this directory has."""
    files = {task: folder_of(runs, task.name) / "frontier.json" for task in TASKS}
    return {task: json.loads(file.read_text("utf-8")) for task, file in files.items() if file.exists()}


def finished(runs: Path) -> dict[Task, Mapping[str, Any]]:  # Any: JSON
    """The frontiers that this directory has; ends the program with a sentence if there is none."""
    if not (found := made(runs)):
        raise SystemExit(f"{runs}: there is no frontier; make some by python -m bench.frontiers --runs {runs}")
    return found


def regret(known: Mapping[str, Any]) -> str:  # Any: JSON
    """A regret with its interval, in per cent, or why there is none."""
    if known["ratio"] is None:
        return "not reached" if not known["reached"] else "faster than all"
    ends = [100 * (known["ratio"][end] - 1) for end in ("low", "high") if known["ratio"][end] is not None]
    return f"{100 * known['regret']:.0f} %" + (f" ({ends[0]:.0f} to {ends[1]:.0f})" if ends else "")


def main() -> int:
    """Make the frontier of each chosen task; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(task.name for task in TASKS), help="some of the tasks, by name")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each setting")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="write the summary here too")
    parser.add_argument("--document", type=Path, help="page whose blocks get the tables")
    options = parser.parse_args()
    if unknown := set(options.tasks.split(",")) - {task.name for task in TASKS}:
        parser.error(f"unknown task {min(unknown)!r}; known: {', '.join(task.name for task in TASKS)}")
    tasks = [task for task in TASKS if task.name in options.tasks.split(",")]
    about = harness.machine()
    environment = harness.own_environments(os.environ)
    codes = [subprocess.call(command(task, options), env=environment) for task in tasks]
    known = made(options.runs)
    rows = [row for task in tasks if task in known for row in summary(task.name, known[task])]
    harness.report("frontiers", about, rows, {}, options.json)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
