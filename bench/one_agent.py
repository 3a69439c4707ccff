"""Compares marless with Stable-Baselines3 in MuJoCo's tasks: greedy returns at equal env steps, rates, CPU time.

`python -m bench.one_agent --task hopper --env-steps 200000 --runs 5 --json bench/results/one_agent.json`. Systems train
one after another, in turns, one seed after the other; one program plays the episodes of both, in Gymnasium's own
environment. marless trains with the example of the algorithm (`examples/hopper.yaml`, `examples/hopper-sac.yaml`) in
one process; Stable-Baselines3 with the settings of its zoo and, for PPO, also with those of marless.

"No worse" means: the lower end of the 95 % interval of the difference of means is above −`MARGIN` of the peer's mean.
The margin was written down before the first run.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import marless
from bench import harness, systems
from bench.harness import ROOT, Row
from bench.one_agent_task import ALGORITHMS, TASKS, returns, warm_up
from bench.peers import install
from marless.cost.comparison.statistics import difference, interquartile_mean

MARGIN = 0.15
EXAMPLES = {"ppo": "hopper.yaml", "sac": "hopper-sac.yaml", "td3": "hopper-sac.yaml"}


@dataclass(frozen=True)
class Trained:
    """One training run."""

    returns: tuple[float, ...]
    """Of greedy episodes, played by `one_agent_task.returns`."""
    env_steps: int
    wall_s: float
    """Seconds of training, without evaluations and without the start of the process."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return statistics.fmean(self.returns)

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.env_steps / self.wall_s


def ours(algorithm: str, task: str, env_steps: int, seed: int) -> Trained:
    """Train with marless in one process, and play with what `marless.load_policy` loads."""
    wanted: dict[str, object] = {"seed": seed, "env.name": f"mujoco/{task}", "stop.env_steps": env_steps}
    wanted["evaluation"] = {"every": 0, "episodes": 1, "random_episodes": 1}
    if algorithm == "ppo":
        wanted["algorithm.lr.env_steps"] = env_steps
    else:
        wanted |= dict.fromkeys(("algorithm.warmup", "algorithm.random_steps"), warm_up(env_steps))
    if algorithm == "td3":
        wanted["algorithm.name"] = "td3"
    sets = [part for name, value in wanted.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    job = ROOT / "examples" / EXAMPLES[algorithm]
    command: list[str | Path] = [systems.MARLESS, "train", job, "--in-process", "-o", "json"]
    command += ["--workers", str(os.cpu_count() or 1)]
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
        output = harness.run([*command, *sets], timeout_s=24 * 3600, cwd=Path(folder))
        run = Path(folder, output.lines[-1]["run_dir"])
        records = harness.json_lines((run / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
        team = marless.load_policy(run)
        (agent,) = team.agents
        found = returns(task, lambda seen: np.asarray(team.act({agent: seen})[agent], np.float64), seed)
    first, last = records[0], records[-1]
    return Trained(tuple(found), last["env_steps"], last["ended_s"] - first["started_s"])


def theirs(settings: str, algorithm: str, task: str, env_steps: int, seed: int) -> Trained:
    """Train with Stable-Baselines3 in its own environment."""
    given = {"--settings": settings, "--algorithm": algorithm, "--task": task, "--env-steps": env_steps, "--seed": seed}
    flags = [str(part) for option in given.items() for part in option]
    python = install.interpreter("sb3")
    (line,) = harness.run([python, "-m", "bench.peers.run_sb3", *flags], timeout_s=24 * 3600).lines
    return Trained(tuple(line["returns"]), line["env_steps"], line["wall_s"])


def row(task: str, algorithm: str, system: str, found: Sequence[Trained], base: Sequence[Trained]) -> Row:
    """The row of a system; `base` are the runs of marless, seed by seed."""
    means = [each.mean for each in found]
    middle = interquartile_mean([means])
    ratios = [mine.rate / each.rate for mine, each in zip(base, found, strict=True)]
    return {
        "task": f"{task}, {algorithm}",
        "system": system,
        "greedy return": f"{middle.mean:,.0f}" + (f" ({middle.low:,.0f} – {middle.high:,.0f})" if middle.low else ""),
        "env steps/s": harness.spread([each.rate for each in found]).cell(0),
        "marless is faster": "" if found is base else harness.spread(ratios).cell(1),
        "marless is no worse": "" if found is base else verdict(base, found),
    }


def verdict(mine: Sequence[Trained], peer: Sequence[Trained]) -> str:
    """Whether the interval of the difference of means, by pairs of seeds, lies above the margin."""
    found = difference([each.mean for each in mine], [each.mean for each in peer])
    if found.low is None or found.high is None:
        return "one seed does not show it"
    least = -MARGIN * abs(statistics.fmean(each.mean for each in peer))
    said = "yes" if found.low > least else "not shown"
    return f"{said}: {found.mean:+,.0f} ({found.low:+,.0f} – {found.high:+,.0f})"


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--task", choices=sorted(TASKS), default="hopper")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ppo")
    parser.add_argument("--env-steps", type=harness.positive, default=200_000)
    parser.add_argument("--without-peers", action="store_true", help="train with marless alone")
    args = parser.parse_args()
    if not args.without_peers and not install.installed("sb3"):
        parser.error("sb3 is not installed: python -m bench.peers.install sb3")
    about, began = harness.machine(), time.time()
    chosen = {"marless": partial(ours, args.algorithm)}
    if not args.without_peers:
        chosen["Stable-Baselines3, its zoo"] = partial(theirs, "zoo", args.algorithm)
        if args.algorithm == "ppo":
            chosen["Stable-Baselines3, as marless"] = partial(theirs, "equal", args.algorithm)
    found: dict[str, list[Trained]] = {name: [] for name in chosen}
    for seed in range(args.runs):
        for name, train in chosen.items():
            found[name].append(train(args.task, args.env_steps, seed))
            harness.say(f"{name}, seed {seed}: {found[name][-1].mean:,.0f} at {found[name][-1].rate:,.0f}/s")
    rows = [row(args.task, args.algorithm, name, runs, found["marless"]) for name, runs in found.items()]
    headline = {"env_steps": args.env_steps, "seeds": args.runs, "minutes": round((time.time() - began) / 60)}
    harness.report("one_agent", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
