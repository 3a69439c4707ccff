"""Compares PPO on Atari's games with Stable-Baselines3: env steps per second of whole training, and returns.

    python -m bench.atari_training --env-steps 24576 --runs 3 --plain --json bench/results/atari_training.json
    python -m bench.atari_training --games Pong --env-steps 300000 --runs 3 --runs-file bench/runs/atari.jsonl

Both sides have 8 copies with DeepMind's preprocessing, rounds of 128 steps, 4 epochs in minibatches of 256 and one
Nature net for policy and critic: `examples/pong.yaml` in one process, with two workers, and the settings of
rl-baselines3-zoo, with torch's operations on as many threads as there are cores; with `--plain` also a script of 150
lines on our environment (`bench.plain_atari`). They train in turns, and a ratio is of neighbours. Evaluations and the
start of processes do not count; our first round, in which workers load what they act with, does.

Returns are points of whole games, while exploring, that ended in the last tenth of the env steps. `--runs-file` keeps
each finished run, with its curve, in a line of a file, so that a comparison of many hours goes on where it was stopped.
Returns do not depend on the load of the machine. Rates do: for these, leave the file out. `--plot` draws the curves.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench import harness, systems
from bench.harness import ROOT, Row, spread
from bench.kept_rows import KeptRows
from bench.peers import install
from marless.app.cli import picture
from marless.app.cli.picture import COLOURS
from marless.core.errors import SpecError, UnavailableError, unknown_name
from marless_atari.games import names

JOB = ROOT / "examples" / "pong.yaml"
PEER, PLAIN = "Stable-Baselines3", "plain script"
LAST = 0.1
"""The part of the env steps at the end from which returns are taken."""


@dataclass(frozen=True)
class Trained:
    """One training run."""

    env_steps: int
    wall_s: float
    """Seconds of training, without the start of the process."""
    games: tuple[tuple[int, int, float], ...]
    """Of each round in which games ended: env steps so far, how many ended, and their mean return."""

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.env_steps / self.wall_s

    def curve(self, windows: int) -> list[tuple[float, float]]:
        """The mean return of the games that ended in each window of the env steps in which any did."""
        each, found = self.env_steps / windows, []
        for window in range(windows):
            ended = [(n, mean) for at, n, mean in self.games if window * each < at <= (window + 1) * each]
            if ended:
                found.append(((window + 0.5) * each, sum(n * mean for n, mean in ended) / sum(n for n, _ in ended)))
        return found

    @property
    def final(self) -> float | None:
        """The mean return of the games that ended last; None if none did."""
        late = [(count, mean) for at, count, mean in self.games if at > (1 - LAST) * self.env_steps]
        return sum(count * mean for count, mean in late) / sum(count for count, _ in late) if late else None


def ours(game: str, env_steps: int, seed: int) -> Trained:
    """Train with `examples/pong.yaml`."""
    wanted = {"env.name": f"atari/{game}", "seed": seed, "stop.env_steps": env_steps}
    wanted |= {"algorithm.entropy": 0.01, "algorithm.lr": 2.5e-4}
    wanted["env.options"] = {"episodic_life": True, "fire_reset": True}  # as Stable-Baselines3
    wanted["evaluation"] = {"every": 0, "episodes": 1, "random_episodes": 1, "limit_s": 1}
    sets = [part for name, value in wanted.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command: list[str | Path] = [systems.MARLESS, "train", JOB, "--in-process"]
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
        output = harness.run([*command, "-o", "json", "--workers", "2", *sets], timeout_s=24 * 3600, cwd=Path(folder))
        run = Path(folder, output.lines[-1]["run_dir"])
        records = harness.json_lines((run / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    updated_s = max(each["end_s"] for each in records[-1]["invocations"] if each["function"] == "learner")
    played = [(each["env_steps"], each["returns"]) for each in records if each["returns"]]
    games = tuple((at, returns["episodes"], returns["mean"]) for at, returns in played)
    return Trained(records[-1]["env_steps"], updated_s - records[0]["started_s"], games)


def program(python: Path, module: str, game: str, env_steps: int, seed: int) -> Trained:
    """Train with a program that prints one line, on all cores."""
    given = {"--game": game, "--env-steps": env_steps, "--seed": seed, "--threads": os.cpu_count() or 1}
    flags = [str(part) for option in given.items() for part in option]
    (line,) = harness.run([python, "-m", module, *flags], timeout_s=24 * 3600).lines
    return Trained(line["env_steps"], line["wall_s"], tuple((at, count, mean) for at, count, mean in line["games"]))


SYSTEMS: Mapping[str, Callable[[str, int, int], Trained]] = {
    "marless": ours,
    PEER: partial(program, install.interpreter("sb3"), "bench.peers.run_sb3_atari"),
    PLAIN: partial(program, Path(sys.executable), "bench.plain_atari"),
}


def kept(rows: KeptRows, system: str, game: str, env_steps: int, seed: int) -> Trained:
    """The run of this system; one that is not known is made and kept."""
    key: Row = {"system": system, "game": game, "env_steps": env_steps, "seed": seed}
    if system == "marless":
        key["job"] = hashlib.sha256(JOB.read_bytes()).hexdigest()[:12]
    known = rows.get(key)
    if known is None:
        rows.put(key, known := asdict(SYSTEMS[system](game, env_steps, seed)))
    found = Trained(known["env_steps"], known["wall_s"], tuple((at, count, mean) for at, count, mean in known["games"]))
    harness.say(f"{game}, {system}, seed {seed}: {found.final} at {found.rate:,.0f}/s")
    return found


def row(game: str, runs: Mapping[str, list[Trained]]) -> Row:
    """A line of the table, given each system's runs in the order of their seeds."""
    found: Row = {"game": game, "seeds": len(runs["marless"])}
    for system, each in runs.items():
        found[f"{system}, env steps/s"] = spread([run.rate for run in each]).cell(0)
    for system in (each for each in runs if each != "marless"):
        ratios = [a.rate / b.rate for a, b in zip(runs["marless"], runs[system], strict=True)]
        found[f"marless / {system}"] = spread(ratios).cell(2)
    for system, each in runs.items():
        finals = [run.final for run in each if run.final is not None]
        found[f"{system}, return"] = spread(finals).cell(1) if finals else "no game ended"
    return found


def draw(games: Mapping[str, Mapping[str, list[Trained]]], target: Path) -> None:
    """Draw the returns of each game against env steps: a line for each run, as means of every 50th of it."""
    from matplotlib.figure import Figure  # not in every installation

    figure = Figure(figsize=(5 * len(games), 4), layout="constrained")
    for panel, (game, runs) in zip(figure.subplots(1, len(games), squeeze=False)[0], games.items(), strict=True):
        for colour, (system, each) in zip(COLOURS, runs.items(), strict=False):
            for number, run in enumerate(each):
                x, y = ([point[axis] for point in run.curve(50)] for axis in range(2))
                panel.plot(x, y, color=colour, alpha=0.8, label=None if number else system)
        panel.set(title=f"{game}, seeds: {len(runs['marless'])}", xlabel="env steps", ylabel="points of a game")
        panel.grid(alpha=0.3)
        panel.legend()
    picture.write(figure, target)


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--games", default="Pong,SpaceInvaders", help="comma-separated, by Gymnasium's names")
    parser.add_argument("--env-steps", type=harness.positive, default=24_576)
    parser.add_argument("--plain", action="store_true", help="train with the plain script, too")
    parser.add_argument("--runs-file", type=Path, help="keep finished runs here, and do not repeat those that it has")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    args = parser.parse_args()
    games = args.games.split(",")
    if unknown := set(games) - set(names()):
        parser.error(unknown_name("game", min(unknown), names()))
    if args.plot:  # now, not after hours
        try:
            picture.check(args.plot)
        except (SpecError, UnavailableError) as error:
            parser.error(str(error))
    if not install.installed("sb3"):
        parser.error("sb3 is not installed: python -m bench.peers.install sb3")
    compared = [system for system in SYSTEMS if args.plain or system != PLAIN]
    about, rows = harness.machine(), []
    finished, every = KeptRows(args.runs_file, about), {}
    for game in games:
        runs: dict[str, list[Trained]] = {system: [] for system in compared}
        for seed in range(args.runs):
            for system in compared:
                runs[system].append(kept(finished, system, game, args.env_steps, seed))
        rows.append(row(game, runs))
        every[game] = runs
    if args.plot:
        draw(every, args.plot)
    harness.report("atari_training", about, rows, {"env_steps": args.env_steps}, args.json)


if __name__ == "__main__":
    main()
