"""The output of measured programs: one JSON object per training iteration on stdout.

`{"event": "iteration", "env_steps": 4000, "wall_s": 3.1, "return": null}`: env steps sampled so far, seconds since
the process was started (without evaluations), and the greedy return per agent if this iteration was evaluated. In
competitive games, `{"event": "sides", "above_chance": {"agent": 3.1}}` follows at the end.
Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.task import ALGORITHMS, EQUAL, GAMES, SIMULATORS, TASK, Rates

Evaluate = Callable[[int], float]
"""Seed of the episodes → undiscounted greedy return per agent."""


@dataclass(frozen=True)
class Options:
    """Options of every measured program."""

    env_steps: int
    """Stop once this many env steps were sampled."""
    seed: int
    eval_every: int
    """Iterations between greedy evaluations; 0: never."""
    stop_return: float | None
    """Stop once a greedy evaluation reaches this return per agent."""
    started_s: float
    """Unix time at which the process was started."""
    threads: int
    """Threads of the numerical library, per process."""
    algorithm: str = "ippo"
    game: str = "spread"
    """One of `bench.task.GAMES`."""
    rates: Rates = EQUAL
    """For programs that offer several algorithms."""
    simulator: str = SIMULATORS[0]
    """One of `SIMULATORS`, for programs that offer several."""


def options(description: str) -> Options:
    """Parse the command line of a measured program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--env-steps", type=int, default=200_000, help="stop after this many env steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eval", type=int, default=0, metavar="K", help="evaluate every K iterations; 0: never")
    parser.add_argument("--stop-return", type=float, default=None, help="stop at this greedy return per agent")
    parser.add_argument("--started", type=float, default=time.time(), help="Unix time of the process's start")
    parser.add_argument("--threads", type=int, default=1, help="threads of the numerical library, per process")
    parser.add_argument("--algorithm", default="ippo", choices=ALGORITHMS, help="where the program offers several")
    parser.add_argument("--game", default="spread", choices=sorted(GAMES), help="likewise")
    parser.add_argument("--simulator", default=SIMULATORS[0], choices=SIMULATORS, help="likewise")
    for name, value in vars(EQUAL).items():
        parser.add_argument(f"--{name}", type=float, default=value, help="likewise; see bench.task.Rates")
    given = parser.parse_args()
    return Options(
        env_steps=given.env_steps,
        seed=given.seed,
        eval_every=given.eval,
        stop_return=given.stop_return,
        started_s=given.started,
        threads=given.threads,
        algorithm=given.algorithm,
        game=given.game,
        rates=Rates(lr=given.lr, clip=given.clip, tau=given.tau),
        simulator=given.simulator,
    )


class Events:
    """Counts iterations, evaluates them when due, and reports each.

    The clock is stopped during evaluations, which are part of the benchmark, not of training.
    """

    def __init__(self, run: Options) -> None:
        self._run = run
        self._env_steps = 0
        self._iterations = 0
        self._evaluating_s = 0.0
        self._reached = False
        # Libraries print to stdout: from here on, redirect that to stderr.
        self._out = os.dup(1)
        os.dup2(2, 1)

    @property
    def finished(self) -> bool:
        """True once the run has reached its env steps, or its target return."""
        return self._reached or self._env_steps >= self._run.env_steps

    def iteration(self, evaluate: Evaluate, env_steps: int = TASK.iteration_env_steps) -> None:
        """Report an iteration that sampled `env_steps` env steps; `evaluate` is called if it is to be evaluated."""
        ended_s = time.time()
        self._iterations += 1
        self._env_steps += env_steps
        wall_s = ended_s - self._run.started_s - self._evaluating_s
        reached = self._evaluate(evaluate) if self._is_evaluated else None
        self._evaluating_s += time.time() - ended_s
        event = {"event": "iteration", "env_steps": self._env_steps, "wall_s": round(wall_s, 4), "return": reached}
        os.write(self._out, f"{json.dumps(event)}\n".encode())

    def sides(self, above_chance: Mapping[str, float]) -> None:
        """Report each agent class's greedy return against random opponents, minus that of a random policy."""
        os.write(self._out, f"{json.dumps({'event': 'sides', 'above_chance': dict(above_chance)})}\n".encode())

    @property
    def _is_evaluated(self) -> bool:
        return self._run.eval_every > 0 and self._iterations % self._run.eval_every == 0

    def _evaluate(self, evaluate: Evaluate) -> float:
        greedy_return = evaluate(self._iterations)
        self._reached = self._run.stop_return is not None and greedy_return >= self._run.stop_return
        return greedy_return
