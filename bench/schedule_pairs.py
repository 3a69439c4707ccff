"""Pipelined rounds beside synchronous ones: the static settings of a frontier that differ in nothing but the schedule.

    python -m bench.frontiers --tasks schedules,hopper --runs runs --seeds 5
    python -m bench.schedule_pairs --runs-folder runs --json schedule_pairs.json

Ratios are geometric means over seeds, paired, with 95 % t intervals. Those to the goal are left out where a seed does
not come to it. The time of the whole run, with equally many env steps, shows what overlapping saves; the return at its
end is pipelined − synchronous.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from bench import harness
from bench.frontiers import finished
from bench.harness import Row
from marless.cost.comparison.statistics import MeanInterval, difference, ratio

Setting = Mapping[str, Any]  # Any: JSON
_SYNCHRONOUS, _PIPELINED = "synchronous", "pipelined"


def rows(task: str, settings: Mapping[str, Setting]) -> Iterator[Row]:
    """A line for each setting that is there with both schedules."""
    alike = {(each["actors"], each["groups"], each["schedule"]): each for each in settings.values()}
    for (actors, groups, schedule), pipelined in alike.items():
        synchronous = alike.get((actors, groups, _SYNCHRONOUS))
        if schedule == _PIPELINED and synchronous:
            yield {
                "task": task,
                "actors": actors,
                "synchronous there": there(synchronous),
                "pipelined there": there(pipelined),
                "time of the whole run": compared(pipelined, synchronous, "to_the_end", ("seconds",)),
                "time to the goal": compared(pipelined, synchronous, "to_the_goal", ("seconds",)),
                "billed cost to the goal": compared(pipelined, synchronous, "to_the_goal", ("usd", "billed")),
                "return at the end": spanned(difference(final_returns(pipelined), final_returns(synchronous)), ".4g"),
            }


def there(setting: Setting) -> str:
    """How many seeds come to the goal."""
    return f"{setting['seeds_reached']} of {len(setting['runs'])}"


def compared(pipelined: Setting, synchronous: Setting, until: str, path: Sequence[str]) -> str:
    """Pipelined over synchronous: a ratio with its interval; "" if a run of either does not come so far."""
    found: list[list[float]] = []
    for setting in (pipelined, synchronous):
        runs = sorted(setting["runs"], key=lambda run: run["seed"])
        if any(isinstance(run[until], str) for run in runs):
            return ""
        found.append([reduce(operator.getitem, path, run[until]) for run in runs])
    return spanned(ratio(*found), ".2f")


def final_returns(setting: Setting) -> list[float]:
    """Returns at the end, by seed."""
    return [run["final_return"] for run in sorted(setting["runs"], key=lambda run: run["seed"])]


def spanned(known: MeanInterval, form: str) -> str:
    """A mean and its interval, in this format."""
    found = [f"{each:{form}}" for each in (known.mean, known.low, known.high) if each is not None]
    return found[0] + (f" ({found[1]} to {found[2]})" if found[1:] else "")


def main() -> None:
    """Print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=1)
    parser.add_argument("--runs-folder", type=Path, default=Path("runs"), help="directory of the frontiers' folders")
    args = parser.parse_args()
    frontiers = finished(args.runs_folder)
    found = [row for task, known in frontiers.items() for row in rows(task.name, known["settings"])]
    harness.report("schedule_pairs", harness.machine(), found, {}, args.json)


if __name__ == "__main__":
    main()
