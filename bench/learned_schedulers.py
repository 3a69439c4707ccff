"""MinionsRL and its baseline, Adapt, on the tasks of `bench.frontiers`: what they cost beside the best static settings.

    python -m bench.learned_schedulers --runs runs --seeds 5 --processes 2 --json learned_schedulers.json
    python -m bench.report learned_schedulers.json

Both need what a user does not have: Adapt a goal, and MinionsRL runs to learn from. For each task:

1. `marless frontier` with the task's better groups and 1 to 8 actors, which hold the best of the twelve static settings
   on every task. It says what the goal is.
2. Two runs of the best static setting, with seeds that nothing else has, are recorded; `marless scheduler train` learns
   from them. Records of all actors, as MinionsRL would take them, do not come to the goal on most tasks.
3. `marless frontier` again, with Adapt for that goal, and with the scheduler: on seeds that it has not seen.

Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import frontiers, harness
from bench.frontiers import TASKS, Task, folder_of
from bench.harness import Row
from marless.core.documents import to_yaml
from marless.jobs import spec as specs

GROUPS = {
    "spread6": "shared",
    "battle8m": "shared",
    "hopper": "independent",
    "mappo": "independent",
    "growing": "independent",
    "slow": "independent",
}
"""The tasks, and the groups of the best static setting of each."""
ACTORS = "1,2,4,8"
RECORDED = (100, 101)
"""Seeds of the runs that schedulers learn from."""


@dataclass(frozen=True)
class Learned:
    """The work on one task."""

    task: Task
    options: argparse.Namespace

    @property
    def name(self) -> str:
        """Unlike the task's, whose frontier has all twelve settings."""
        return f"{self.task.name}-learned"

    def frontier(self) -> Mapping[str, Any] | None:  # Any: JSON
        """What was found; None if nothing was made."""
        file = folder_of(self.options.runs, self.name) / "frontier.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def make(self, environment: Mapping[str, str]) -> int:
        """All three steps; returns the first exit code that is not 0."""
        if code := self._frontier("", environment):
            return code
        found = self.frontier()
        assert found is not None  # just made
        goal, scheduler = found["goal"]["value"], self.options.runs / f"{self.name}-scheduler"
        best = found["settings"][found["goal"]["best"]]["actors"]
        if not scheduler.exists() and (code := self._train(scheduler, goal, best, environment)):
            return code
        presets = self.options.runs / f"{self.name}.yaml"
        rules = {"adapt": {"goal": goal}, "minions": {"scheduler": str(scheduler)}}
        fixed = {"name": "fixed", "groups": GROUPS[self.task.name]}
        made = {
            rule: {"accounting": "billed", "scaling": {"name": rule, **settings}, "sharing": fixed}
            for rule, settings in rules.items()
        }
        presets.write_text(to_yaml(made), "utf-8")
        return self._frontier(",".join(f"{presets}:{rule}" for rule in rules), environment)

    def _frontier(self, presets: str, environment: Mapping[str, str]) -> int:
        task = replace(
            self.task,
            name=self.name,
            actors=ACTORS,
            groups=GROUPS[self.task.name],
            schedules="synchronous",
            presets=presets,
        )
        return subprocess.call(frontiers.command(task, self.options), env=environment)

    def _train(self, scheduler: Path, goal: float, best: int, environment: Mapping[str, str]) -> int:
        """Record runs with so many actors, and train a scheduler on them, for runs of as many rounds."""
        job = specs.load(Path(self.task.job), list(self.task.settings))
        rounds = f"stop.rounds={self.task.env_steps // (best * job.actors.envs * job.actors.steps)}"
        common = ["scaling=fixed", f"sharing.groups={GROUPS[self.task.name]}", *self.task.settings]
        marless, names = [sys.executable, "-m", "marless"], [f"{self.name}-recorded-{seed}" for seed in RECORDED]
        for name, seed in zip(names, RECORDED, strict=True):
            ends = (f"actors.count={best}", "stop.env_steps=null", rounds, "evaluation.every=0", f"seed={seed}")
            words = [*marless, "train", self.task.job, "--in-process", "--job", name, *_set(*common, *ends)]
            if not (self.options.runs / name).exists() and (
                code := subprocess.call([*words, "--runs", str(self.options.runs)], env=environment)
            ):
                return code
        words = [*marless, "scheduler", "train", *(str(self.options.runs / name) for name in names)]
        words += ["--spec", self.task.job, "--target", f"{goal}", "--out", str(scheduler)]
        return subprocess.call([*words, *_set(*common, "stop.env_steps=null", rounds)], env=environment)

    def rows(self) -> list[Row]:
        """A line for each preset, with the best static setting."""
        found = self.frontier()
        return [] if found is None else frontiers.summary(self.task.name, found)


def _set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def main() -> int:
    """Do the work of each chosen task; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(GROUPS), help="some of the tasks, by name")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="directory of the run folders")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()
    options.document = None
    chosen = options.tasks.split(",")
    if unknown := set(chosen) - set(GROUPS):
        parser.error(f"unknown task {min(unknown)!r}; known: {', '.join(GROUPS)}")
    about, environment = harness.machine(), harness.own_environments(os.environ)
    work = [Learned(task, options) for task in TASKS if task.name in GROUPS]
    codes = [each.make(environment) for each in work if each.task.name in chosen]
    harness.report("learned_schedulers", about, [row for each in work for row in each.rows()], {}, options.json)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
