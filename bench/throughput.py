"""Measures env steps per second of the whole training loop in its steady state: marless, the plain script and peers.

`python -m bench.throughput --peers rllib,benchmarl,benchmarl/vmas,jaxmarl --runs 3 --json throughput.json`. An env
step: all agents act once in one environment copy. Runs of the systems alternate, so that other load on the machine
affects all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench import harness
from bench.harness import Row, spread
from bench.systems import Curve, Measure, Request, named, steady_rate, systems
from bench.task import TASK

ENV_STEPS = {"rllib": 60_000, "benchmarl": 32_000, "benchmarl/vmas": 40_000, "benchmarl/marless": 100_000}
"""Env steps per run for systems that would take minutes for `FAST_ENV_STEPS`."""
FAST_ENV_STEPS = 240_000


def measure(found: Mapping[str, Measure], runs: int) -> dict[str, list[Curve]]:
    """Run every system `runs` times, alternating between systems."""
    curves: dict[str, list[Curve]] = {name: [] for name in found}
    for seed in range(runs):
        for name, run in found.items():
            curves[name].append(run(Request(seed, ENV_STEPS.get(name, FAST_ENV_STEPS))))
            harness.say(f"run {seed + 1} of {runs}: {name}: {steady_rate(curves[name][-1]):,.0f} env steps/s")
    return curves


def row(name: str, curves: Sequence[Curve]) -> Row:
    """One row of the table."""
    rates = spread([steady_rate(curve) for curve in curves])
    first = spread([curve[0].wall_s for curve in curves])
    return {
        "system": name,
        "env steps/s": rates.cell(0),
        "start → first iteration (s)": first.cell(1),
        "env steps a run": curves[0][-1].env_steps,
        "runs": rates.runs,
    }


def headline(curves: Mapping[str, Sequence[Curve]]) -> Row:
    """marless's median rate, and its ratio to that of each other system."""
    rates = {name: spread([steady_rate(curve) for curve in of]).median for name, of in curves.items()}
    ours = rates.pop("marless", None)
    if ours is None:
        return {"env_steps_per_s": None}
    return {
        "env_steps_per_s": round(ours),
        "ratio_to": {name: round(ours / rate, 2) for name, rate in rates.items()},
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument(
        "--peers", type=named, default=(), help="comma-separated: rllib,benchmarl,benchmarl/vmas,jaxmarl"
    )
    parser.add_argument("--without-marless", action="store_true", help="measure only the others")
    args = parser.parse_args()
    about = harness.machine()
    curves = measure(systems(args.peers, args.without_marless), args.runs)
    rows = [row(name, of) for name, of in curves.items()]
    harness.report("throughput", about, rows, headline(curves) | {"iteration": TASK.iteration_env_steps}, args.json)


if __name__ == "__main__":
    main()
