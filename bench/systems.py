"""The compared systems, all on one task: marless, the plain script, and installed peers."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import harness
from bench.harness import ROOT, Row, Watch
from bench.peers import install
from bench.task import SIMULATORS, TASK

MARLESS = Path(sys.executable).with_name("marless")
WARM_UP = 5
"""Number of first iterations that do not count for the steady rate."""
ACTORS = 2
"""Actors of the task, if nothing else is said."""


@dataclass(frozen=True)
class Request:
    """One training run to be measured."""

    seed: int
    env_steps: int
    eval_every: int = 0
    """Iterations between greedy evaluations; 0: none during training."""
    stop_return: float | None = None
    """Stop at this greedy return per agent."""
    timeout_s: float = 600.0
    lr: float = TASK.learning_rate


@dataclass(frozen=True)
class Point:
    """The state at the end of one iteration."""

    env_steps: int
    """Env steps sampled since the beginning."""
    wall_s: float
    """Seconds since the process was started."""
    greedy_return: float | None
    """Greedy return per agent, if evaluated."""


Curve = tuple[Point, ...]
Measure = Callable[[Request], Curve]


def steady_rate(curve: Curve, skip: int = WARM_UP) -> float:
    """Env steps per second between the end of iteration `skip` and the last but one; raises ValueError if too short.

    The last iteration is left out: it may hold a final evaluation or checkpoint.
    """
    if len(curve) < skip + 2:
        raise ValueError(f"a steady rate needs more than {skip + 1} iterations, got {len(curve)}")
    first, last = curve[skip - 1], curve[-2]
    return (last.env_steps - first.env_steps) / (last.wall_s - first.wall_s)


def crossing(curve: Curve, target: float) -> Point:
    """The first point whose greedy return reaches `target`; at infinity if there is none."""
    reached = (p for p in curve if p.greedy_return is not None and p.greedy_return >= target)
    return next(reached, Point(0, math.inf, None))


def points(lines: Iterable[Row]) -> Curve:
    """The iterations among the events of `bench.events`."""
    return tuple(
        Point(int(line["env_steps"]), float(line["wall_s"]), line["return"])
        for line in lines
        if line.get("event") == "iteration"
    )


def rounds(records: Iterable[Row], started_s: float) -> Curve:
    """The rounds of a `rounds.jsonl` of marless as a curve.

    The point of a round whose policies were evaluated has the time at which the evaluation was recorded.
    """
    curve: dict[int, Point] = {}
    for record in records:
        number, env_steps, wall_s = record["round"] + 1, int(record["env_steps"]), record["ended_s"] - started_s
        own, earlier = record["evaluation"], record["earlier_evaluation"]
        if earlier:
            curve[earlier["rounds"]] = Point(earlier["env_steps"], wall_s, earlier["returns"]["return"])
        curve[number] = Point(env_steps, wall_s, own["return"] if own else None)
    return tuple(curve.values())


@dataclass(frozen=True)
class Job:
    """The result of one `marless train`."""

    started_s: float
    """Unix time at which the command was started."""
    records: list[Row]
    """The lines of its `rounds.jsonl`."""
    summary: Row
    """The summary that it printed."""


def program_of(root: Path) -> Path:
    """The command `marless` of a checkout; another one than this has an environment of its own."""
    return MARLESS if root == ROOT else root / ".venv" / "bin" / "marless"


def checkout(parser: argparse.ArgumentParser, given: Path | None) -> Path | None:
    """The earlier checkout that `--before` names, if it is given; ends the program if that has no environment."""
    root = given and given.resolve()
    if root and not program_of(root).exists():
        parser.error(f"--before: there is no {program_of(root)}; run `make .venv/.dev` in that checkout")
    return root


def marless_job(
    settings: Mapping[str, object],
    timeout_s: float,
    watch: Watch = lambda _: None,
    look: Callable[[Path], None] = lambda _: None,
    root: Path = ROOT,
    flags: Sequence[str] = (),
) -> Job:
    """Run `marless train` on the spread example with whole sections replaced; raises BenchError if it fails.

    `look` is called with the run folder before it is removed. `root` is the checkout whose marless trains, `flags` are
    further options of the command.
    """
    command = [str(program_of(root)), "train", str(root / "examples" / "spread.yaml"), "-o", "json", *flags]
    sets = [part for section, value in settings.items() for part in ("--set", f"{section}={json.dumps(value)}")]
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
        output = harness.run([*command, *sets], timeout_s=timeout_s, cwd=Path(folder), watch=watch)
        if not output.lines:
            raise harness.BenchError(f"marless train did not end within {timeout_s} s")
        run_dir = Path(folder, output.lines[-1]["run_dir"])
        records = (run_dir / "rounds.jsonl").read_text(encoding="utf-8")
        look(run_dir)
    return Job(output.started_s, harness.json_lines(records.splitlines()), output.lines[-1])


def settings(request: Request) -> dict[str, object]:
    """The task as settings of a marless job."""
    stop = {"env_steps": request.env_steps}
    return {
        "seed": request.seed,
        "env": {"name": "mpe/simple_spread", "options": {"agents": TASK.agents, "local_ratio": TASK.local_ratio}},
        "algorithm": {
            "name": "ippo",
            "lr": request.lr,
            "gamma": TASK.gamma,
            "gae_lambda": TASK.gae_lambda,
            "clip": TASK.clip,
            "epochs": TASK.epochs,
            "minibatches": TASK.minibatches,
            "entropy": TASK.entropy_weight,
            "max_grad_norm": TASK.max_grad_norm,
        },
        "model": {"hidden": TASK.hidden, "activation": "tanh"},
        "actors": actors(ACTORS),
        "sharing": {"name": "fixed", "groups": "independent"},
        "evaluation": {"every": request.eval_every, "episodes": TASK.evaluation_episodes},
        "learner": {"device": "cpu"},
        "stop": stop if request.stop_return is None else stop | {"return": request.stop_return},
    }


def actors(count: int) -> dict[str, object]:
    """The actors of the task: as many env steps a round, whatever their number."""
    envs = TASK.iteration_env_steps // TASK.episode_steps // count
    return {"count": count, "envs": envs, "steps": TASK.episode_steps}


def marless(request: Request) -> Curve:
    """Measure marless; the start of services and workers is included in the command's time."""
    job = marless_job(settings(request), request.timeout_s)
    return rounds(job.records, job.started_s)


def in_process(request: Request, schedule: str = "synchronous") -> Curve:
    """Measure marless in one process, with as many workers as there are cores."""
    cores = os.cpu_count() or 1
    wanted = {**settings(request), "actors": actors(cores), "schedule": {"name": schedule}}
    job = marless_job(wanted, request.timeout_s, flags=("--in-process", "--workers", str(cores)))
    return rounds(job.records, job.started_s)


def program(python: Path, module: str, threads: int = 1, simulator: str = SIMULATORS[0]) -> Measure:
    """A function that measures a program which reports with `bench.events`."""

    def measure(request: Request) -> Curve:
        options: dict[str, object] = {
            "--env-steps": request.env_steps,
            "--seed": request.seed,
            "--eval": request.eval_every,
            "--threads": threads,
            "--lr": request.lr,
            "--started": time.time(),
            "--simulator": simulator,
        }
        if request.stop_return is not None:
            options["--stop-return"] = request.stop_return
        flags = [str(part) for option in options.items() for part in option]
        output = harness.run([python, "-m", module, *flags], timeout_s=request.timeout_s)
        return points(output.lines)

    return measure


def named(text: str) -> tuple[str, ...]:
    """Parse the value of --peers; raises ArgumentTypeError for an unknown peer.

    A peer may be followed by one of `SIMULATORS`, as in "benchmarl/vmas".
    """
    peers = tuple(peer for peer in text.split(",") if peer)
    known = {*(install.REQUIREMENTS.keys() - install.ONE_AGENT), *(f"benchmarl/{each}" for each in SIMULATORS)}
    if unknown := [peer for peer in peers if peer not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    return peers


def systems(peers: Sequence[str], without_marless: bool = False, without_script: bool = False) -> dict[str, Measure]:
    """marless, the plain script on one thread and on all cores, and the named peers. Exits if one is not installed."""
    found: dict[str, Measure] = {}
    if not without_marless:
        found = {"marless": marless, "marless, in process": in_process}
        found["marless, in process, pipelined"] = partial(in_process, schedule="pipelined")
    for threads in () if without_script else dict.fromkeys((1, os.cpu_count() or 1)):
        name = f"plain script, {threads} thread{'s' * (threads > 1)}"
        found[name] = program(Path(sys.executable), "bench.plain_ppo", threads)
    for each in peers:
        peer, _, simulator = each.partition("/")
        if not install.installed(peer):
            sys.exit(f"{peer} is not installed: python -m bench.peers.install {peer}")
        module = f"bench.peers.run_{peer}"
        found[each] = program(install.interpreter(peer), module, simulator=simulator or SIMULATORS[0])
    return found
