"""Compares env steps per second of PPO's whole training on Atari's games with Stable-Baselines3.

`python -m bench.atari_training --env-steps 8192 --runs 3 --json bench/results/atari_training.json`. Both sides have 8
copies, rounds of 128 steps, 4 epochs in minibatches of 256 and one Nature net for policy and critic:
`examples/pong.yaml` in one process, with two workers, and the settings of rl-baselines3-zoo, with torch's operations on
as many threads as there are cores. They train in turns, and a ratio is of neighbours. Evaluations and the start of
processes do not count.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from bench import harness, systems
from bench.harness import ROOT, spread
from bench.peers import install

GAMES = ("Pong", "SpaceInvaders")


def ours(game: str, env_steps: int, seed: int) -> float:
    """Env steps per second of `examples/pong.yaml`."""
    wanted = {"env.name": f"atari/{game}", "seed": seed, "stop.env_steps": env_steps, "algorithm.entropy": 0.01}
    wanted["evaluation"] = {"every": 0, "episodes": 1, "random_episodes": 1, "limit_s": 1}
    sets = [part for name, value in wanted.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    command: list[str | Path] = [
        systems.MARLESS,
        "train",
        ROOT / "examples" / "pong.yaml",
        "--in-process",
        "-o",
        "json",
    ]
    with tempfile.TemporaryDirectory(prefix="marless-bench-") as folder:
        output = harness.run([*command, "--workers", "2", *sets], timeout_s=3600, cwd=Path(folder))
        run = Path(folder, output.lines[-1]["run_dir"])
        records = harness.json_lines((run / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    updated_s = max(each["end_s"] for each in records[-1]["invocations"] if each["function"] == "learner")
    return float(records[-1]["env_steps"] / (updated_s - records[0]["started_s"]))


def theirs(game: str, env_steps: int, seed: int) -> float:
    """Env steps per second of Stable-Baselines3."""
    given = {"--game": game, "--env-steps": env_steps, "--seed": seed, "--threads": os.cpu_count() or 1}
    flags = [str(part) for option in given.items() for part in option]
    (line,) = harness.run([install.interpreter("sb3"), "-m", "bench.peers.run_sb3_atari", *flags], timeout_s=3600).lines
    return float(line["env_steps"] / line["wall_s"])


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    parser = harness.parser(__doc__, runs=3)
    parser.add_argument("--env-steps", type=harness.positive, default=8192)
    args = parser.parse_args()
    if not install.installed("sb3"):
        parser.error("sb3 is not installed: python -m bench.peers.install sb3")
    about, rows = harness.machine(), []
    for game in GAMES:
        rates = [tuple(train(game, args.env_steps, seed) for train in (ours, theirs)) for seed in range(args.runs)]
        harness.say(f"{game}: {rates}")
        rows.append(
            {
                "game": game,
                "marless, env steps/s": spread([mine for mine, _ in rates]).cell(0),
                "Stable-Baselines3": spread([peer for _, peer in rates]).cell(0),
                "ratio": spread([mine / peer for mine, peer in rates]).cell(2),
            }
        )
    harness.report("atari_training", about, rows, {"env_steps": args.env_steps}, args.json)


if __name__ == "__main__":
    main()
