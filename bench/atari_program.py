"""The command line, and the line of output, of programs that `bench.atari_training` measures. Standard library only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence


def options(description: str | None) -> argparse.Namespace:
    """The game, env steps, seed and threads that a program was told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--env-steps", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def report(wall_s: float, env_steps: int, games: Sequence[tuple[int, int, float]]) -> None:
    """Print what became of it; `games` as in `bench.atari_training.Trained`."""
    print(json.dumps({"wall_s": wall_s, "env_steps": env_steps, "games": games}))
