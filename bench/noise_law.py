"""Checks what the policy `auto` builds on, in the runs of `python -m bench.frontiers`: the law of noise, and its price.

    python -m bench.noise_law --runs-folder runs --json noise_law.json

For each task and groups, the rounds to the goal of static settings with n actors are fitted by S_min · (1 + K/n), least
squares of relative errors. K as `auto` measured it is the median over its rounds before the goal. Its measurements are
paid in the CPU of policies' functions: what they take longer per sample in rounds that measure. Deciding is timed by
deciding again over the recorded rounds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench import harness
from bench.frontiers import finished, folder_of
from bench.harness import OWN_ENVIRONMENTS, Row
from marless.app.cli.recorded import from_folder
from marless.jobs.job import prepare
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec


def fitted(rounds: Mapping[int, float]) -> tuple[float, float, float]:
    """S_min, K, and the largest relative error of S_min · (1 + K/n), for the rounds by number of actors n."""
    n, y = np.array(list(rounds), float), np.array(list(rounds.values()), float)
    design = np.stack([1 / y, 1 / (n * y)], axis=1)
    least, slope = np.linalg.lstsq(design, np.ones_like(y), rcond=None)[0]
    error = np.abs((least + slope / n) / y - 1).max()
    return float(least), float(slope / least), float(error)


def arrivals(settings: Mapping[str, Any], groups: str, samples: int) -> dict[int, float]:  # Any: JSON
    """Mean rounds to the goal by number of actors, of the settings whose seeds all reach it."""
    found = {}
    for each in settings.values():
        if each["groups"] != groups or each["schedule"] != "synchronous":
            continue
        reached = [run["to_the_goal"] for run in each["runs"]]
        if all(isinstance(arrival, dict) for arrival in reached):
            found[each["actors"]] = fmean(arrival["env_steps"] for arrival in reached) / (each["actors"] * samples)
    return found


def measured(records: Sequence[RoundRecord], until: float) -> float:
    """The median of K, in actors, over `auto`'s rounds before so many env steps."""
    inputs = [record.decisions[0].inputs for record in records if record.env_steps <= until]
    return float(median(each["noise_actors"] for each in inputs if "noise_actors" in each))


def share_of_measuring(records: Sequence[RoundRecord]) -> float:
    """The part of all CPU seconds that measuring took."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    counts = {True: 0, False: 0}
    total = 0.0
    before = 0
    for record in records:
        steps, before = record.env_steps - before, record.env_steps
        total += sum(each.cpu_s for each in record.invocations if each.function in ("actor", "learner"))
        measuring = any("gradient_trace" in each for each in record.metrics.values())
        policies_s = sum(each.pass_cpu_s for each in record.invocations if each.function == "policy")
        if record.round:  # the first one loads libraries
            seconds[measuring].append(policies_s / steps)
            counts[measuring] += steps
    return (median(seconds[True]) - median(seconds[False])) * counts[True] / total


def share_of_deciding(records: Sequence[RoundRecord], spec: JobSpec) -> float:
    """The time of deciding once more for every tenth round, over the CPU seconds of these rounds."""
    job = prepare(spec)
    decided_s = worked_s = 0.0
    for number in range(1, len(records), 10):
        history = records[max(0, number - 512) : number]
        started_s = time.perf_counter()
        sharing = job.sharing.decide(history)
        job.scaling.decide(history, sharing.groups)
        decided_s += time.perf_counter() - started_s
        work = records[number].invocations
        worked_s += sum(each.cpu_s for each in work if each.function in ("actor", "learner"))
    return decided_s / worked_s


def rows(runs: Path) -> list[Row]:
    """A row for each task and groups that the runs have."""
    found: list[Row] = []
    for task, frontier in finished(runs).items():
        folder = folder_of(runs, task.name)
        if "auto" not in frontier["presets"]:
            continue
        autos = [
            from_folder(folder / "runs" / each["run"], records=True) for each in frontier["presets"]["auto"]["runs"]
        ]
        spec = autos[0].spec
        arrived = [
            each["to_the_goal"]["env_steps"]
            for each in frontier["presets"]["auto"]["runs"]
            if isinstance(each["to_the_goal"], dict)
        ]
        until = fmean(arrived) if arrived else math.inf  # K is that of the whole run where none came to the goal
        for groups in task.groups.split(","):
            rounds = arrivals(frontier["settings"], groups, spec.actors.envs * spec.actors.steps)
            law = fitted(rounds) if len(rounds) > 2 else None
            own = groups == task.groups.rpartition(",")[2]  # the groups that auto begins with
            found.append(
                {
                    "task": task.name,
                    "groups": groups,
                    "rounds to the goal": ", ".join(f"{n}: {y:.0f}" for n, y in sorted(rounds.items())),
                    "K, fitted": f"{law[1]:.3g}" if law else "",
                    "largest error": f"{law[2]:.0%}" if law else "",
                    "K, measured": f"{median(measured(each.records, until) for each in autos):.3g}" if own else "",
                    "measuring": f"{median(share_of_measuring(each.records) for each in autos):.2%}" if own else "",
                    "deciding": f"{median(share_of_deciding(each.records, each.spec) for each in autos):.2%}"
                    if own
                    else "",
                }
            )
    return found


def main() -> None:
    """Print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("--runs-folder", type=Path, default=Path("runs"), help="directory of the frontiers' folders")
    args = parser.parse_args()
    sys.path.insert(0, str(OWN_ENVIRONMENTS))  # decisions are made again, by jobs in these environments, too
    found = rows(args.runs_folder)
    harness.report("noise_law", harness.machine(), found, {}, args.json)


if __name__ == "__main__":
    main()
