"""Learning curves on StarCraft's embedded engine: how many battles greedy policies win, by map, algorithm and seed.

    python -m bench.smac_learning --run-file bench/runs/smac.jsonl
    python -m bench.smac_learning --maps 3s5z --algorithms vdn,mappo --run-file bench/runs/smac.jsonl

Each run is `marless train examples/smac_<map>.yaml` with another seed. An algorithm other than the example's has the
sections of `TUNED` or `ALGORITHMS`. With `--run-file`, finished runs are kept, one a line, and those of the same job
are not repeated.
How many battles are won after so many env steps does not depend on the machine; times do.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import harness
from bench.algorithms import names
from bench.harness import ROOT, Row, spread
from bench.kept_rows import KeptRows
from bench.systems import Job, marless_job
from marless.core.documents import from_yaml

EXAMPLES = ROOT / "examples"
TARGETS: Mapping[str, float | None] = {"8m": 0.9, "3s5z": 0.6, "2s3z": None, "5m_vs_6m": None}
"""The maps that have an example; the fraction of battles that is to be won, if one is set."""
OFF_POLICY: Row = {
    "algorithm": {"lr": 1e-3, "updates": 128, "epsilon": {"start": 1.0, "end": 0.05, "env_steps": 100_000}},
    "actors": {"count": 2, "envs": 64, "steps": 60},
    "evaluation": {"every": 5},
    "stop": {"env_steps": 600_000},
}
ON_POLICY: Row = {
    "algorithm": {"lr": 2e-3},
    "actors": {"count": 2, "envs": 64, "steps": 30},
    "evaluation": {"every": 10},
    "stop": {"env_steps": 600_000},
}
ALGORITHMS: Mapping[str, Row] = {"vdn": OFF_POLICY, "qmix": OFF_POLICY, "ippo": ON_POLICY, "mappo": ON_POLICY}
"""By algorithm: sections of its jobs, where the example has another algorithm."""
TUNED: Mapping[tuple[str, str], Row] = {
    ("3s5z", "qmix"): {
        "algorithm": {"updates": 96, "n_step": 5, "epsilon": {"start": 1.0, "end": 0.05, "env_steps": 200_000}},
        "actors": {"count": 2, "envs": 64, "steps": 75},
        "evaluation": {"every": 5},
        "stop": {"env_steps": 1_200_000},
        "model": {"hidden": [128, 128], "activation": "relu"},
    }
}
"""By map and algorithm: sections in the place of those of `ALGORITHMS`."""
EPISODES = 128
"""Greedy battles of each evaluation."""


@dataclass(frozen=True)
class Point:
    """A greedy evaluation."""

    env_steps: int
    """Env steps sampled before."""
    cpu_s: float
    """CPU seconds of the functions before: actors, evaluations and learners."""
    won: float
    """Fraction of battles."""
    greedy_return: float


@dataclass(frozen=True)
class Course:
    """A run."""

    points: tuple[Point, ...]
    cpu_s: float
    """Of all processes, services included."""
    wall_s: float

    def reached(self, target: float) -> Point | None:
        """The first evaluation with this fraction of battles won."""
        return next((point for point in self.points if point.won >= target), None)


def document(smac_map: str, algorithm: str, seed: int) -> Row:
    """The sections that define a run; those of the example that are not here stay as they are."""
    example = from_yaml(EXAMPLES / f"smac_{smac_map}.yaml")
    assert isinstance(example, dict)
    own = example["algorithm"]["name"] == algorithm
    chosen = example if own else TUNED.get((smac_map, algorithm), ALGORITHMS[algorithm])
    return {
        "seed": seed,
        "env": example["env"],
        "algorithm": {"name": algorithm, **chosen["algorithm"]},
        "actors": chosen["actors"],
        "sharing": example["sharing"],
        "evaluation": {
            "every": chosen["evaluation"]["every"],
            "episodes": EPISODES,
            "random_episodes": EPISODES,
            "relative_error": 0,
        },
        "stop": chosen["stop"],
        **({"model": chosen["model"]} if "model" in chosen else {}),
    }


def trained(job: Row, timeout_s: float) -> Course:
    """Train, and measure; raises BenchError if it fails."""
    before, begun_s = _children_s(), time.monotonic()
    found = marless_job(job, timeout_s)
    return Course(course(found), _children_s() - before, time.monotonic() - begun_s)


def course(job: Job) -> tuple[Point, ...]:
    """The greedy evaluations of a job, in order."""
    points, cpu_s = [], 0.0
    for record in job.records:
        cpu_s += sum(each["vcpu_s"] for each in record["invocations"] if each["attempt"] > 0)
        earlier = record["earlier_evaluation"]
        measured = [(earlier["env_steps"], earlier["returns"])] if earlier else []
        measured += [(record["env_steps"], record["evaluation"])] if record["evaluation"] else []
        for env_steps, each in measured:
            points.append(Point(env_steps, round(cpu_s, 1), each["wins"] / each["episodes"], each["return"]))
    return tuple(points)


def _children_s() -> float:
    """CPU seconds of all processes that have ended and were started from here, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Runs:
    """Finished runs by job."""

    def __init__(self, path: Path | None, about: Row) -> None:
        """See `KeptRows`."""
        self._rows = KeptRows(path, about, name="job")

    def has(self, job: Row) -> bool:
        """This job's run is finished."""
        return self._rows.get(job) is not None

    def course(self, job: Row, timeout_s: float) -> Course:
        """The run of this job, which is made if it is not known."""
        row = self._rows.get(job)
        if row is None:
            self._rows.put(job, row := asdict(trained(job, timeout_s)))
        return Course(tuple(Point(**point) for point in row["points"]), row["cpu_s"], row["wall_s"])


def row(smac_map: str, algorithm: str, courses: Sequence[Course]) -> Row:
    """One row of the table."""
    target = TARGETS[smac_map]
    ends = [each.points[-1] for each in courses]
    found: Row = {
        "map": smac_map,
        "algorithm": algorithm,
        "seeds": len(ends),
        "env steps": ends[0].env_steps,
        "won at the end, %": " / ".join(f"{100 * end.won:.0f}" for end in ends),
        "return": f"{spread([end.greedy_return for end in ends]).median:.1f}",
        "CPU s": f"{spread([each.cpu_s for each in courses]).median:.0f}",
    }
    if target is None:
        return found
    there = [point for each in courses if (point := each.reached(target))]
    return found | {
        "to be won, %": f"{100 * target:.0f}",
        "seeds there": f"{len(there)} of {len(courses)}",
        "after env steps": _range([point.env_steps for point in there]),
        "after CPU s": _range([round(point.cpu_s) for point in there]),
    }


def _range(values: Sequence[int]) -> object:
    """The median with its range, or nothing if there are no values."""
    return spread(values).cell(0) if values else ""


def draw(found: Mapping[str, Mapping[str, Sequence[Course]]], target: Path) -> None:
    """Draw the fraction of battles won over env steps: a panel a map, a line a seed, a colour an algorithm."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(found), 4.5), layout="constrained")
    for panel, (smac_map, courses) in enumerate(found.items()):
        axes = figure.add_subplot(1, len(found), panel + 1, xlabel="thousand env steps", title=smac_map)
        for algorithm, runs in courses.items():
            colour = f"C{list(ALGORITHMS).index(algorithm)}"
            for seed, each in enumerate(runs):
                x, y = [point.env_steps / 1000 for point in each.points], [100 * point.won for point in each.points]
                axes.plot(x, y, color=colour, linewidth=1.2, alpha=0.8, label=algorithm if seed == 0 else None)
        axes.set_ylim(0, 100)
        axes.set_ylabel("battles won, %")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--maps", type=names(tuple(TARGETS)), default=("8m",), help="comma-separated")
    parser.add_argument(
        "--algorithms", type=names(tuple(ALGORITHMS)), default=tuple(ALGORITHMS), help="comma-separated"
    )
    parser.add_argument("--run-file", type=Path, help="keep finished runs in this file, and do not repeat those in it")
    parser.add_argument("--finished", action="store_true", help="make no runs; show those of the run file")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="give up after a run that takes longer")
    parser.add_argument("--picture", type=Path, help="draw the curves; needs matplotlib")
    return parser.parse_args()


def main() -> None:
    """Make the runs, print the table, and write it to the file of --json if given."""
    args = arguments()
    about = harness.machine()
    runs = Runs(args.run_file, about)
    rows: list[Row] = []
    found: dict[str, dict[str, list[Course]]] = {}
    for smac_map in args.maps:
        for algorithm in args.algorithms:
            jobs = [document(smac_map, algorithm, seed) for seed in range(args.runs)]
            courses = [runs.course(job, args.limit_s) for job in jobs if runs.has(job) or not args.finished]
            if courses:
                found.setdefault(smac_map, {})[algorithm] = courses
                rows.append(row(smac_map, algorithm, courses))
                harness.say(json.dumps(rows[-1]))
    pictures = {}
    if args.picture:
        draw(found, args.picture)
        shows = "Battles won over env steps: a line a seed"
        pictures = {os.path.relpath(args.picture.resolve(), ROOT): shows}
    harness.report("smac_learning", about, rows, {"pictures": pictures}, args.json)


if __name__ == "__main__":
    main()
