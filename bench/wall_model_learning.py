"""Trains wall models and runs them for long: returns, and u_τ and correlations at Reynolds numbers never seen.

    python -m bench.wall_model_learning --run-file bench/runs/wall_model.jsonl --json wall_model_learning.json
    python -m bench.wall_model_learning --example wall_model_sac --run-file bench/runs/wall_model_sac.jsonl

Each run is `marless train examples/wall_model.yaml` with another seed, in one process. Of its checkpoints, the one with
the best evaluation counts, because returns may fall again. Baselines are the equilibrium model, no model, and
controllers that do nothing, act at random, or follow the logarithmic law. With `--run-file`, what is finished is kept,
one a line, and is not repeated; policies are kept in a folder of that name.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

import marless
from bench import harness
from bench.harness import ROOT, Row
from bench.kept_rows import KeptRows
from marless.app.cli.recorded import from_folder
from marless.jobs import spec as specs
from marless.learning.envs.base import FloatArray, Frame
from marless.learning.envs.registry import read_options
from marless.learning.nets.acting import ActingPolicies
from marless.storage.saved_policies import load_policy
from marless_wall_model.closed_loop import STRESS_LAWS, Loop, LoopResult
from marless_wall_model.controllers import CONTROLLERS, Controller, episode_returns
from marless_wall_model.env import WallModel
from marless_wall_model.options import WallModelOptions
from marless_wall_model.sensing import State

TESTED = (5186.0, 1e4, 2e4, 1e5)
"""Reynolds numbers of the paper's tests; none is among those of training."""
HELD_OUT = 999
"""Seed of the episodes whose returns are shown, which no job evaluates on, and of long runs."""
LEAST_SHARE = 0.9
"""Gate G3: a learned return by that of the log-law controller."""
MOST_ERROR: Mapping[float, float] = {5186.0: 0.03, 2e4: 0.03}
"""Gate G4: |u_τ model / true − 1| at a Reynolds number."""
MOST_CORRELATION, LEAST_OF_EQUILIBRIUM = 0.6, 0.9
"""Gate G5: of stress and velocity, learned; and with the equilibrium model."""


@dataclass(frozen=True)
class Training:
    """A trained policy."""

    policy: str
    """Path of its file."""
    best_round: int
    curve: tuple[tuple[int, float], ...]
    """Env steps and greedy return of each evaluation."""
    cpu_s: float
    """CPU seconds of actors and learners."""
    wall_s: float


class Kept:
    """Finished parts by what defines them."""

    def __init__(self, path: Path | None, about: Row) -> None:
        """See `KeptRows`."""
        self._rows = KeptRows(path, about, name="part")

    def get(self, part: Row, make: Callable[[], Row]) -> Row:
        """What is known of a part, which is made if nothing is."""
        found = self._rows.get(part)
        if found is None:
            self._rows.put(part, found := make())
            harness.say(f"{_brief(part)}: {_brief(found)}")
        return found


def _brief(row: Row) -> str:
    """The numbers and names of a row, without lists and texts of many lines."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if isinstance(value, int | float) or (isinstance(value, str) and "\n" not in value)
    )


def trained(job: Path, overrides: Sequence[str], seed: int, folder: Path, workers: int) -> Row:
    """Train a job, and describe it as a `Training`; the policy with the best evaluation is written to `folder`."""
    started_s = time.monotonic()
    every = specs.load(job, overrides).evaluation.every
    spec = specs.load(job, [*overrides, f"seed={seed}", f"checkpoint.every={every}", "checkpoint.keep=1000"])
    with tempfile.TemporaryDirectory(prefix="marless-") as place:
        result = marless.train(spec, runs=place, in_process=True, workers=workers, progress=False)
        records = from_folder(result.folder).records
        greedy = {each.rounds: (each.env_steps, each.returns.mean) for record in records for each in record.evaluations}
        best = max(greedy, key=lambda number: greedy[number][1])
        folder.mkdir(parents=True, exist_ok=True)
        policy = folder / f"{job.stem}-{seed}.safetensors"
        load_policy(result.folder, round=best).save(policy)
    cpu_s = sum(each.cpu_s or 0.0 for record in records for each in record.invocations)
    return asdict(Training(str(policy), best, tuple(greedy.values()), cpu_s, time.monotonic() - started_s))


def learned(policy: str) -> Controller:
    """The controller that is a trained policy, which all agents share, on whatever grid they stand."""
    (only,) = load_policy(policy).policies.values()
    acting: list[ActingPolicies] = []

    def choose(env: WallModel, frame: Frame, rng: np.random.Generator) -> FloatArray:
        if not acting:
            (agents,) = env.spaces.classes
            acting.append(ActingPolicies.from_states(agents, [only.state] * len(agents.agents)))
            acting[0].begin(env.batch)
        factors: FloatArray = acting[0].to_env(acting[0].greedy(frame.obs[0], None)).astype(np.float32)
        return factors

    return choose


@dataclass(frozen=True)
class Examined:
    """A wall model with what it did: in episodes as those of training, and in long runs."""

    name: str
    episode_return: float | None
    """Mean over agents and episodes; None for models that are no controllers."""
    loops: Mapping[float, LoopResult]
    """Long runs by Reynolds number."""

    def row(self) -> Row:
        """One row of the table."""
        ratios = {f"u_τ ratio, Re {re_tau:g}": f"{loop.friction_ratio:.3f}" for re_tau, loop in self.loops.items()}
        correlations = [loop.correlation for loop in self.loops.values()]
        return {
            "model": self.name,
            "return": "" if self.episode_return is None else f"{self.episode_return:.2f}",
            **ratios,
            "correlation": f"{min(correlations):.2f} – {max(correlations):.2f}",
        }


class Examination:
    """Examines wall models on one grid, and keeps what was found."""

    def __init__(self, kept: Kept, state: State, options: Row, loop: Row) -> None:
        """`options` are those of the job's environment; `loop` has duration, left_out, episodes and res."""
        self._kept, self._state, self._given, self._loop = kept, state, options, loop
        self._options = read_options(WallModelOptions, options)

    def controller(self, name: str, controller: Callable[[], Controller]) -> Examined:
        """Examine a controller."""
        episodes = self._loop["episodes"]

        def play() -> Row:
            env = WallModel(self._state, self._options, 4)
            return {"returns": episode_returns(env, controller(), episodes, HELD_OUT)}

        part = {"returns of": name, "state": self._state, "options": self._given, "episodes": episodes}
        returns = self._kept.get(part, play)["returns"]
        loops = self._loops(name, lambda loop: loop.controlled(self._state, controller()))
        return Examined(name, float(np.mean(returns)), loops)

    def law(self, name: str) -> Examined:
        """Examine a model that computes the stress from the flow."""
        return Examined(name, None, self._loops(name, lambda loop: loop.by_law(STRESS_LAWS[name])))

    def _loops(self, name: str, run: Callable[[Loop], LoopResult]) -> dict[float, LoopResult]:
        found = {}
        for re_tau in self._loop["res"]:
            loop = Loop(
                options=self._options,
                re_tau=re_tau,
                duration=self._loop["duration"],
                left_out=self._loop["left_out"],
                seed=HELD_OUT,
            )
            part = {"loop of": name, "state": self._state, "options": self._given, "re": re_tau}
            lengths = {"duration": loop.duration, "left_out": loop.left_out}
            found[re_tau] = LoopResult(**self._kept.get(part | lengths, partial(_described, run, loop)))
        return found


def _described(run: Callable[[Loop], LoopResult], loop: Loop) -> Row:
    return asdict(run(loop))


def gates(examined: Mapping[str, Examined], names: Sequence[str]) -> Row:
    """What the gates G3 to G5 ask for, and whether it holds; `names` are the learned models."""
    by_hand = examined["log-law"].episode_return or 0.0
    idle, chance = examined["no-op"].episode_return or 0.0, examined["random"].episode_return or 0.0
    returns = [examined[name].episode_return or 0.0 for name in names]
    errors = {
        f"{re_tau:g}": max(abs(examined[name].loops[re_tau].friction_ratio - 1) for name in names)
        for re_tau in examined[names[0]].loops
    }
    most = max(loop.correlation for name in names for loop in examined[name].loops.values())
    least = min(loop.correlation for loop in examined["equilibrium"].loops.values())
    learns = chance < idle < min(returns) and min(returns) >= LEAST_SHARE * by_hand
    fluctuates = most < MOST_CORRELATION and least > LEAST_OF_EQUILIBRIUM
    asked = [error <= MOST_ERROR[float(re_tau)] for re_tau, error in errors.items() if float(re_tau) in MOST_ERROR]
    return {
        "G3": {"learned": returns, "by hand": by_hand, "holds": learns},
        "G4": {"largest error": errors, "holds": all(asked)},
        "G5": {"learned": most, "equilibrium": least, "holds": fluctuates},
    }


def draw(examined: Mapping[str, Examined], shown: float, target: Path) -> None:
    """Draw u_τ model / true over Re_τ, and the mean wall stress over time at the Reynolds number `shown`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    ratios = figure.add_subplot(1, 2, 1, xscale="log", xlabel="Re_τ", ylabel="u_τ model / true")
    over_time = figure.add_subplot(1, 2, 2, xlabel="time, δ / u_τ", ylabel=f"mean wall stress, Re_τ {shown:g}")
    for name, each in examined.items():
        if name == "random":
            continue
        ratios.plot(list(each.loops), [loop.friction_ratio for loop in each.loops.values()], marker="o", label=name)
        loop = each.loops[shown]
        over_time.plot(loop.times, loop.stresses, linewidth=1, label=name)
    for axes in (ratios, over_time):
        axes.axhline(1, color="black", linewidth=0.6)
        axes.set_ylim(0.6, 1.3)
        axes.grid(alpha=0.3)
    ratios.legend(fontsize="small")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--example", default="wall_model", help="name of the job file in examples/")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override a field of the job")
    parser.add_argument("--duration", type=float, default=20.0, help="length of a long run, in δ / u_τ")
    parser.add_argument("--left-out", type=float, default=5.0, help="length of its first part, which does not count")
    parser.add_argument("--episodes", type=int, default=32, help="held-out episodes of each controller")
    parser.add_argument("--workers", type=int, default=0, help="processes that play while training; 0: this one")
    parser.add_argument("--run-file", type=Path, help="keep finished parts in this file, and do not repeat those in it")
    parser.add_argument("--picture", type=Path, help="draw u_τ and the wall stress; needs matplotlib")
    return parser.parse_args()


def main() -> None:
    """Train, examine, print the table, and write it to the file of --json if given."""
    args = arguments()
    job = ROOT / "examples" / f"{args.example}.yaml"
    spec = specs.load(job, args.set)
    about = harness.machine()
    kept = Kept(args.run_file, about)
    folder = (args.run_file or Path("wall_model")).with_suffix(".policies")
    loop = {"res": TESTED, "duration": args.duration, "left_out": args.left_out, "episodes": args.episodes}
    state: State = "vwm" if spec.env.name.endswith("vwm") else "llwm"
    examination = Examination(kept, state, dict(spec.env.options), loop)
    found = {name: examination.law(name) for name in STRESS_LAWS}
    found |= {name: examination.controller(name, partial(CONTROLLERS.__getitem__, name)) for name in CONTROLLERS}
    names = []
    for seed in range(args.runs):
        part = {"trained": args.example, "seed": seed, "set": args.set, "job": job.read_text("utf-8")}
        training = kept.get(part, partial(trained, job, args.set, seed, folder, args.workers))
        names.append(f"{state.upper()}, seed {seed}")
        what = f"{training['policy']}, round {training['best_round']}"
        found[names[-1]] = examination.controller(what, partial(learned, training["policy"]))
    rows = [replace(each, name=name).row() for name, each in found.items()]
    more: Row = {"gates": gates(found, names)}
    harness.say(json.dumps(more["gates"], indent=2))
    if args.picture:
        draw(found, 2e4, args.picture)
        shows = "u_τ model / true over the Reynolds number, and the mean wall stress over time"
        more["pictures"] = {os.path.relpath(args.picture.resolve(), ROOT): shows}
    harness.report("wall_model_learning", about, rows, more, args.json)


if __name__ == "__main__":
    main()
