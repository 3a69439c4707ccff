"""Compares algorithms in a game, over seeds: return after equally many env steps, and time to a target.

Games: spread, adversary, and cartpoles (three carts whose episode ends when one pole falls;
`marless.learning.envs.games`).

`python -m bench.algorithms --game adversary --peers benchmarl --json algorithms_adversary.json`; `--algorithms iql,vdn`
selects some of them. `--settings` says with which settings, one after another:

- own: marless with `bench.task.OWN`, peers with the settings of their runner and `bench.task.EQUAL`;
- equal: all systems with the rate, clip and τ of `bench.task.EQUAL`, and equal batches, updates, γ, ε and nets;
- alike: as equal, and marless without what only it has (`bench.task.ALIKE`), such as normalised rewards;
- best: each system with those of `bench.task.GRID` that have the best return after `CHOOSING_ENV_STEPS` at a seed of
  their own, which is not one of the seeds of the table; all else as in equal.

A round of marless has 4,000 env steps. MADDPG and IDDPG get continuous actions, the others discrete ones. Algorithms
that add up all agents' rewards are left out if rewards compete.

In competitive games the mean return over all agents is meaningless. The result is each side's greedy return against
random opponents, minus that of a random policy in its place. Evaluation time counts for marless, but not for BenchMARL.
Runs are made one at a time; BenchMARL's use one thread. With own settings it steps copies of mpe2, as its users do; in
the comparisons of returns, marless's batched copies of the same games, which takes less time.
With `--run-file`, an interrupted comparison goes on, and so does one that ended because of `--stop-after-s`.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from bench import harness
from bench.harness import Row, spread
from bench.peers import install
from bench.run_file import Outcome, Request, RunFile
from bench.systems import crossing, marless_job, points, rounds
from bench.task import (
    ALGORITHMS,
    ALIKE,
    CONTINUOUS,
    EQUAL,
    EXPLORED_ENV_STEPS,
    GAMES,
    GRID,
    OFF_POLICY_BATCH,
    ON_POLICY,
    OWN,
    PEER_COPIES,
    TASK,
    Rates,
    peer_env_steps,
)
from marless.cost.comparison.statistics import MeanInterval, interquartile_mean

TEAM_ONLY = ("vdn", "qmix")
"""Algorithms that maximise the sum of all rewards, which is meaningless if sides compete."""
EVALUATION_ENV_STEPS = 8_000
"""Env steps between greedy evaluations with own settings, for every algorithm and system."""
PEERS = ("benchmarl",)
SETTINGS: Mapping[str, tuple[Rates | None, ...]] = {"own": (None,), "equal": (EQUAL,), "alike": (EQUAL,), "best": GRID}
CHOOSING_SEED = 1000
"""At which the best settings are found: a maximum over the table's own runs would flatter whoever varies most."""
CHOOSING_ENV_STEPS = 56_000
"""Env steps of a run that chooses settings."""


def target(algorithm: str) -> float:
    """Target greedy return per agent in spread, until which runs are timed."""
    return -20.5 if algorithm in ON_POLICY else TASK.target_return


Run = Callable[[Request], Outcome]


def evaluation_env_steps(request: Request) -> int:
    """Env steps between greedy evaluations; where only returns are compared, there are two, half-way and at the end."""
    return request.env_steps // 2 if request.rates else EVALUATION_ENV_STEPS


def settings(request: Request) -> dict[str, object]:
    """The job of a run; everything not set here has its default."""
    game = GAMES[request.game]
    round_env_steps = peer_env_steps(request.algorithm) if request.rates else TASK.iteration_env_steps
    copies = round_env_steps // TASK.episode_steps
    actors = 2 if request.algorithm in ON_POLICY else 1
    chosen = equal(request.algorithm, request.rates) if request.rates else OWN[request.algorithm]
    alike = ALIKE[request.algorithm] if request.alike else {}
    return {
        "seed": request.seed,
        "env": {"name": game.ours, "options": game.options(continuous=request.algorithm in CONTINUOUS)},
        "algorithm": {"name": request.algorithm, **chosen, **alike},
        "actors": {"count": actors, "envs": copies // actors, "steps": TASK.episode_steps},
        "sharing": {"name": "fixed", "groups": "independent"},
        "evaluation": {"every": evaluation_env_steps(request) // round_env_steps, "episodes": TASK.evaluation_episodes},
        "learner": {"device": "cpu"},
        "stop": {"env_steps": request.env_steps},
    }


def equal(algorithm: str, rates: Rates) -> dict[str, object]:
    """The settings that both systems have, as BenchMARL's runner sets them; what only marless has keeps its default."""
    common: dict[str, object] = {"lr": rates.lr, "max_grad_norm": rates.clip, "gamma": TASK.gamma}
    if algorithm in ON_POLICY:
        return common | {
            "gae_lambda": TASK.gae_lambda,
            "clip": TASK.clip,
            "epochs": TASK.epochs,
            "minibatches": TASK.minibatches,
            "entropy": TASK.entropy_weight,
        }
    explored = {"start": 1.0, "end": 0.05, "env_steps": EXPLORED_ENV_STEPS}
    off_policy = common | {
        "target_tau": rates.tau,
        "target_every": None,
        "batch": OFF_POLICY_BATCH,
        "updates": PEER_COPIES,
        "warmup": 0,
    }
    if algorithm in CONTINUOUS:
        return off_policy | {"critic_lr": rates.lr, "noise": explored}
    return off_policy | {"epsilon": explored}


def marless(request: Request) -> Outcome:
    """Train with the command `marless train`; the start of all services is included in its time."""
    sides: dict[str, float] = {}

    def look(run_dir: Path) -> None:
        if len(GAMES[request.game].groups) > 1:
            sides.update(above_chance(run_dir))

    job = marless_job(settings(request), request.timeout_s, look=look)
    return Outcome(rounds(job.records, job.started_s), job.summary["random_return"], request.rates, sides)


def above_chance(run_dir: Path) -> dict[str, float]:
    """The return of each side of a finished job against random opponents, minus that of a random policy."""
    from marless import load_policy
    from marless.learning.policies.evaluation import against_chance

    found = against_chance(load_policy(run_dir), episodes=TASK.evaluation_episodes, seed=0)
    return {name: side.greedy - side.chance for name, side in found.items()}


def peer(name: str) -> Run:
    """A function that trains with a peer's program."""

    def run(request: Request) -> Outcome:
        options: dict[str, object] = {
            "--env-steps": request.env_steps,
            "--seed": request.seed,
            "--eval": evaluation_env_steps(request) // peer_env_steps(request.algorithm),
            "--started": time.time(),
            "--algorithm": request.algorithm,
            "--game": request.game,
        }
        flags = [str(part) for option in options.items() for part in option]
        flags += [*(request.rates or EQUAL).flags, *(["--simulator", "marless"] if request.rates else [])]
        command: list[str | Path] = [install.interpreter(name), "-m", f"bench.peers.run_{name}", *flags]
        lines = harness.run(command, timeout_s=request.timeout_s).lines
        sides: Mapping[str, float] = next((line["above_chance"] for line in lines if line.get("event") == "sides"), {})
        return Outcome(points(lines), rates=request.rates, sides=sides)

    return run


class UnfinishedError(Exception):
    """No time is left for a run that is missing."""


class System:
    """A system with its finished runs; none is begun after `deadline_s` of the monotonic clock."""

    def __init__(self, name: str, run: Run, file: RunFile, deadline_s: float = math.inf) -> None:
        self.name, self._run, self._file, self._deadline_s = name, run, file, deadline_s

    def measured(self, request: Request, rates: Sequence[Rates | None], seeds: int) -> list[Outcome]:
        """The runs of an algorithm with these rates or, if there are several, with the best of them."""
        chosen = rates[0]
        if len(rates) > 1:
            tried = replace(request, seed=CHOOSING_SEED, env_steps=CHOOSING_ENV_STEPS)
            chosen = max(rates, key=lambda each: score([self._outcome(replace(tried, rates=each))]))
        return [self._outcome(replace(request, rates=chosen, seed=seed)) for seed in range(seeds)]

    def _outcome(self, request: Request) -> Outcome:
        outcome = self._file.get(self.name, request)
        if outcome is None:
            if time.monotonic() >= self._deadline_s:
                raise UnfinishedError
            outcome = self._run(request)
            self._file.put(self.name, request, outcome)
        told = f"with {request.rates}" if request.rates else crossing(outcome.curve, target(request.algorithm))
        harness.say(
            f"{request.algorithm} seed {request.seed}: {self.name}: {outcome.final:.2f} {outcome.sides or told}"
        )
        return outcome


def score(outcomes: Sequence[Outcome]) -> float:
    """What the best settings have most of: the return or, where sides compete, how far both are above chance."""
    return sum(sum(each.sides.values()) if each.sides else each.final for each in outcomes) / len(outcomes)


def _best(rates: Rates | None) -> str:
    """The settings that were chosen, with the edge of the grid where that was."""
    assert rates is not None  # as `SETTINGS` has it
    rate = harness.chosen(rates.lr, [each.lr for each in GRID])
    return f"best: {rates}".replace(f"lr {rates.lr:g}", f"lr {rate}")


def row(game: str, algorithm: str, system: str, which: str, outcomes: Sequence[Outcome]) -> Row:
    """One row of the table; `which` is one of `SETTINGS`."""
    ends = [outcome.curve[-1] for outcome in outcomes]
    random = [outcome.random for outcome in outcomes if outcome.random is not None]
    found: Row = {
        "algorithm": algorithm,
        "system": system,
        "settings": _best(outcomes[0].rates) if which == "best" else which,
        "env steps": round(spread([end.env_steps for end in ends]).median),
        "greedy return": shown(interquartile_mean([[outcome.final for outcome in outcomes]])),
        "random": round(spread(random).median, 1) if random else "",
    }
    if len(GAMES[game].groups) > 1:
        return found | _sides(outcomes)
    if which == "own":
        return found | _reached(outcomes, target(algorithm))
    return found | {"each seed": " / ".join(f"{outcome.final:.1f}" for outcome in outcomes)}


def _reached(outcomes: Sequence[Outcome], target: float) -> Row:
    points = [crossing(outcome.curve, target) for outcome in outcomes]
    there = [point.env_steps for point in points if point.env_steps]
    return {
        "wall-clock (s)": spread([outcome.curve[-1].wall_s for outcome in outcomes]).cell(1),
        "target": target,
        "env steps to it": round(spread(there).median) if there else None,
        "seconds to it": spread([point.wall_s for point in points]).cell(1),
        "seeds there": f"{len(there)} of {len(outcomes)}",
    }


def _sides(outcomes: Sequence[Outcome]) -> Row:
    names = outcomes[0].sides
    each = {name: interquartile_mean([[outcome.sides[name] for outcome in outcomes]]) for name in names}
    return {f"{name}, above chance": shown(estimate, signed=True) for name, estimate in each.items()}


def shown(estimate: MeanInterval, *, signed: bool = False) -> str:
    """An interquartile mean with its interval, as text."""
    mean = f"{estimate.mean:+.2f}" if signed else f"{estimate.mean:.2f}"
    return mean if estimate.low is None else f"{mean} [{estimate.low:.2f}, {estimate.high:.2f}]"


def headline(results: Mapping[tuple[str, str], Sequence[Outcome]]) -> Row:
    """By algorithm in spread with own settings: marless's mean, and its speed-up over each peer to the target."""
    found: Row = {}
    for algorithm in dict.fromkeys(algorithm for algorithm, _ in results):
        seconds = {s: _seconds(of, target(a)) for (a, s), of in results.items() if a == algorithm}
        mine = seconds.pop("marless")
        ours = results[algorithm, "marless"]
        found[algorithm] = {
            "greedy_return": round(interquartile_mean([[each.final for each in ours]]).mean, 2),
            "seconds": round(mine, 1) if math.isfinite(mine) else None,
            "times_sooner_than": {s: round(other / mine, 1) for s, other in seconds.items() if math.isfinite(other)},
        }
    return found


def _seconds(outcomes: Sequence[Outcome], target: float) -> float:
    return spread([crossing(outcome.curve, target).wall_s for outcome in outcomes]).median


def names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """An argparse type: comma-separated names; raises argparse.ArgumentTypeError for unknown ones."""

    def read(text: str) -> tuple[str, ...]:
        chosen = tuple(part for part in text.split(",") if part)
        if unknown := [part for part in chosen if part not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return chosen

    return read


def plays(game: str, algorithm: str) -> bool:
    """True if the algorithm is applicable to the game."""
    acts = bool(GAMES[game].peer) or algorithm not in CONTINUOUS
    return acts and (algorithm not in TEAM_ONLY or len(GAMES[game].groups) == 1)


def arguments() -> argparse.Namespace:
    """The command line; exits if it asks for what cannot be."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--peers", type=names(PEERS), default=(), help="comma-separated: benchmarl")
    parser.add_argument(
        "--algorithms", type=names(ALGORITHMS), default=ALGORITHMS, help="comma-separated; default: all"
    )
    parser.add_argument("--settings", type=names(tuple(SETTINGS)), default=("own",), help="own, equal, alike, best")
    parser.add_argument("--game", choices=GAMES, default="spread")
    parser.add_argument("--env-steps", type=int, help="of each run; default: by game")
    parser.add_argument(
        "--run-file", type=Path, help="keep each finished run in this file, and do not repeat those in it"
    )
    parser.add_argument(
        "--stop-after-s", type=float, default=math.inf, help="with --run-file: begin no further run after it"
    )
    parser.add_argument("--limit-s", type=float, default=1200.0, help="give up a run after this many seconds")
    args = parser.parse_args()
    if "own" in args.settings and not GAMES[args.game].peer:
        parser.error(f"marless has no settings of its own for {args.game}: --settings equal or best")
    return args


def compared(args: argparse.Namespace, systems: Sequence[System]) -> dict[tuple[str, str, str], list[Outcome]]:
    """By algorithm, system and settings, the runs that are asked for, if those of all systems are made."""
    chosen = [each for each in args.algorithms if plays(args.game, each)]
    env_steps = args.env_steps or GAMES[args.game].env_steps
    results: dict[tuple[str, str, str], list[Outcome]] = {}
    for which, algorithm in product(args.settings, chosen):
        request = Request(args.game, algorithm, 0, env_steps, args.limit_s, alike=which == "alike")
        try:
            found = {each.name: each.measured(request, SETTINGS[which], args.runs) for each in systems}
        except UnfinishedError:
            harness.say(f"{algorithm}: not all runs are made yet: the same command goes on with those that are missing")
        else:
            results |= {(algorithm, name, which): outcomes for name, outcomes in found.items()}
    return {key: results[key] for key in sorted(results, key=lambda key: chosen.index(key[0]))}


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args, begun_s = arguments(), time.monotonic()
    about = harness.machine()
    runs: dict[str, Run] = {"marless": marless}
    try:
        file = RunFile(args.run_file, about)
    except ValueError as error:
        sys.exit(str(error))
    for name in args.peers:
        if not install.installed(name):
            sys.exit(f"{name} is not installed: python -m bench.peers.install {name}")
        runs[name] = peer(name)
    systems = [System(name, run, file, begun_s + args.stop_after_s) for name, run in runs.items()]
    results = compared(args, systems)
    rows = [row(args.game, *key, outcomes) for key, outcomes in results.items()]
    own = {(algorithm, name): outcomes for (algorithm, name, which), outcomes in results.items() if which == "own"}
    competing = len(GAMES[args.game].groups) > 1
    harness.report(f"algorithms_{args.game}", about, rows, {} if competing else headline(own), args.json)


if __name__ == "__main__":
    main()
