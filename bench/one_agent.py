"""Compares marless with Stable-Baselines3 in MuJoCo's tasks: greedy returns at equal env steps, rates, CPU time.

`python -m bench.one_agent --env-steps 200000 --runs 5 --json bench/results/one_agent.json`. Systems train one after
another, in turns, one seed after the other; one program plays the episodes of both, in Gymnasium's own
environment. marless trains with the example of the algorithm (`examples/hopper.yaml`, `examples/hopper-sac.yaml`) and
the settings of `one_agent_task.TUNED` in one process; Stable-Baselines3 with the settings of its zoo and, for PPO, also
with those of marless. `--systems marless,rllib` compares the rate with RLlib's.

"No worse" means: a one-sided t test, paired by seed, shows that the difference of means is above −`MARGIN` of the
peer's mean; it does if the lower end of the 95 % interval is.
The margin was written down before the first run.

A million env steps take Stable-Baselines3 ten minutes and more, so `--runs-file` keeps each finished run in a line of a
file: whoever starts the comparison again, or another one for the same file beside it (`--systems`), trains what is
missing. Returns do not depend on the load of the machine. Rates do: for these, leave the file out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import marless
from bench import harness, systems
from bench.harness import ROOT, Row
from bench.kept_rows import KeptRows
from bench.one_agent_task import ALGORITHMS, COPIES, TASKS, TUNED, returns, warm_up
from bench.peers import install
from marless.cost.comparison.statistics import equivalence, interquartile_mean

NO_WORSE = 0.025
"""Level of the test: that of one end of a 95 % interval."""
MARGIN = 0.15
LEAST_SEEDS = 3
"""Of fewer pairs, an interval may be narrow by chance."""
EXAMPLES = {"ppo": "hopper.yaml", "sac": "hopper-sac.yaml", "td3": "hopper-sac.yaml"}
SYSTEMS = {
    "marless": "marless",
    "many": f"marless, {COPIES} copies",
    "zoo": "Stable-Baselines3, its zoo",
    "equal": "Stable-Baselines3, as marless",
    "rllib": "RLlib, as marless",
}
"""What each is called in tables."""
OURS = ("marless", "many")
DEFAULT = "marless,zoo,equal"
PPO_ONLY = ("many", "equal", "rllib")


@dataclass(frozen=True)
class Trained:
    """One training run."""

    returns: tuple[float, ...]
    """Of greedy episodes, played by `one_agent_task.returns`; none of systems that are compared by their rate only."""
    env_steps: int
    wall_s: float
    """Seconds of training, without evaluations and without the start of the process."""

    @property
    def mean(self) -> float:
        """The mean return."""
        return statistics.fmean(self.returns) if self.returns else math.nan

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.env_steps / self.wall_s


Train = Callable[[str, str, int, int], Trained]
"""Trains, given algorithm, task, env steps and seed."""


def ours(algorithm: str, task: str, env_steps: int, seed: int, copies: int | None = None) -> Trained:
    """Train with marless in one process, and play with what `marless.load_policy` loads.

    `copies` are of PPO, in place of the example's, with as many samples in a round.
    """
    wanted: dict[str, object] = {"seed": seed, "env.name": f"mujoco/{task}", "stop.env_steps": env_steps}
    wanted["evaluation"] = {"every": 0, "episodes": 1, "random_episodes": 1}
    if algorithm == "ppo":
        wanted |= {"algorithm.lr.env_steps": env_steps, **TUNED.get(task, {})}
        if copies:
            wanted["actors"] = {"count": 2, "envs": copies // 2, "steps": 2048 // copies}
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


def rllib(algorithm: str, task: str, env_steps: int, seed: int) -> Trained:
    """Train with RLlib's PPO."""
    flags = ["--task", task, "--env-steps", str(env_steps), "--seed", str(seed)]
    python = install.interpreter("rllib")
    (line,) = harness.run([python, "-m", "bench.peers.run_rllib_one_agent", *flags], timeout_s=24 * 3600).lines
    return Trained((), line["env_steps"], line["wall_s"])


TRAIN: Mapping[str, Train] = {
    "marless": ours,
    "many": partial(ours, copies=COPIES),
    "zoo": partial(theirs, "zoo"),
    "equal": partial(theirs, "equal"),
    "rllib": rllib,
}


class RunsKept:
    """Finished runs, in memory and, if a path is given, in a file of JSON lines, which other processes may add to."""

    def __init__(self, path: Path | None, about: Row) -> None:
        """See `KeptRows`."""
        self._rows = KeptRows(path, about)

    def trained(
        self, system: str, algorithm: str, task: str, env_steps: int, seed: int, *, train: bool = True
    ) -> Trained | None:
        """The run of this system; one that is not known is trained and kept, or None without `train`."""
        key: Row = {"system": system, "algorithm": algorithm, "task": task, "env_steps": env_steps, "seed": seed}
        if system in OURS:
            job = (ROOT / "examples" / EXAMPLES[algorithm]).read_bytes()
            key |= {"tuned": dict(TUNED.get(task, {})), "job": hashlib.sha256(job).hexdigest()[:12]}
        known = self._rows.get(key)
        if known is None and train:
            found = TRAIN[system](algorithm, task, env_steps, seed)
            harness.say(f"{task}, {SYSTEMS[system]}, seed {seed}: {found.mean:,.0f} at {found.rate:,.0f}/s")
            self._rows.put(key, known := asdict(found))
        return None if known is None else Trained(tuple(known["returns"]), known["env_steps"], known["wall_s"])


def row(task: str, system: str, found: Mapping[int, Trained], base: Mapping[int, Trained]) -> Row:
    """The row of a system, given its runs by seed; `base` are those of marless."""
    runs, both = list(found.values()), sorted(found.keys() & base.keys())
    played = [each.mean for each in runs if each.returns]
    ratios = [base[seed].rate / found[seed].rate for seed in both]
    own = found is base or not both
    return {
        "task": task,
        "system": system,
        "seeds": len(runs),
        "greedy return": greedy(played),
        "env steps/s": harness.spread([each.rate for each in runs]).cell(0),
        "marless is faster": "" if own else harness.spread(ratios).cell(1),
        "marless is no worse": ""
        if own or not played
        else verdict([base[seed] for seed in both], [found[seed] for seed in both]),
    }


def greedy(means: Sequence[float]) -> str:
    """The interquartile mean of these mean returns, and its interval."""
    if not means:
        return ""
    middle = interquartile_mean([means])
    return f"{middle.mean:,.0f}" + (f" ({middle.low:,.0f} – {middle.high:,.0f})" if middle.low else "")


def verdict(mine: Sequence[Trained], peer: Sequence[Trained]) -> str:
    """Whether the interval of the difference of means, by pairs of seeds, lies above the margin."""
    margin = MARGIN * abs(statistics.fmean(each.mean for each in peer))
    found = equivalence([each.mean for each in mine], [each.mean for each in peer], margin)
    between = found.difference
    if found.p_worse is None or len(mine) < LEAST_SEEDS:
        return "too few seeds"
    said = "yes" if found.p_worse < NO_WORSE else "not shown"
    return f"{said}: {between.mean:+,.0f} ({between.low:+,.0f} – {between.high:+,.0f})"


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=5)
    parser.add_argument("--tasks", default="hopper", help=f"comma-separated, of {', '.join(sorted(TASKS))}")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ppo")
    parser.add_argument("--env-steps", type=harness.positive, default=200_000)
    parser.add_argument("--systems", default=DEFAULT, help=f"comma-separated, of {', '.join(SYSTEMS)}")
    parser.add_argument("--runs-file", type=Path, help="keep finished runs here, and do not repeat those that it has")
    parser.add_argument("--kept", action="store_true", help="train nothing: the table of what --runs-file has")
    args = parser.parse_args()
    tasks, chosen = args.tasks.split(","), args.systems.split(",")
    if unknown := [name for name in tasks if name not in TASKS] + [name for name in chosen if name not in SYSTEMS]:
        parser.error(f"{unknown[0]} is neither a task ({', '.join(sorted(TASKS))}) nor a system ({', '.join(SYSTEMS)})")
    if args.algorithm != "ppo":
        chosen = [name for name in chosen if name not in PPO_ONLY]
    peers = {"rllib" if name == "rllib" else "sb3" for name in chosen if name not in OURS and not args.kept}
    if missing := [peer for peer in sorted(peers) if not install.installed(peer)]:
        parser.error(f"{missing[0]} is not installed: python -m bench.peers.install {missing[0]}")
    about, began = harness.machine(), time.time()
    kept = RunsKept(args.runs_file, about)
    found: dict[str, dict[str, dict[int, Trained]]] = {task: {name: {} for name in chosen} for task in tasks}
    for seed in range(args.runs):
        for task in tasks:
            for name in chosen:
                run = kept.trained(name, args.algorithm, task, args.env_steps, seed, train=not args.kept)
                if run is not None:
                    found[task][name][seed] = run
    rows = [
        row(task, SYSTEMS[name], runs, runs if name in OURS else by_system.get("marless", runs))
        for task, by_system in found.items()
        for name, runs in by_system.items()
        if runs
    ]
    headline = {
        "algorithm": args.algorithm,
        "env_steps": args.env_steps,
        "seeds": args.runs,
        "minutes": round((time.time() - began) / 60),
    }
    harness.report("one_agent", about, rows, headline, args.json)


if __name__ == "__main__":
    main()
