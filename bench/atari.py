"""Measures env steps per second of CPU time in Atari's games, next to Gymnasium's and ale-py's own preprocessing.

`python -m bench.atari --json bench/results/atari.json`. Eight copies, random actions drawn beforehand, games with their
resets, frames as DeepMind's (four frames a step, 84 × 84, gray). Gymnasium's `AtariPreprocessing` around `AtariEnv` is
stepped copy by copy, as ours are; `AtariVectorEnv` steps them in two threads of C++, whose CPU time is added up. All
are measured in turns, and a ratio is of neighbouring measurements, so that other load on the machine affects all alike.
"""

from __future__ import annotations

import ale_py
import numpy as np
from ale_py.env import AtariEnv
from gymnasium.wrappers import AtariPreprocessing

from bench import harness
from bench.harness import Row, spread
from bench.mpe import DRAWN, Step, rate
from bench.mujoco import ratio, void
from bench.workers import on_one_thread
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions

COPIES = 8
GAMES = {"Pong": "pong", "SpaceInvaders": "space_invaders", "Qbert": "qbert", "Gravitar": "gravitar"}
"""The name of each game, and that of its ROM."""


def ours(game: str) -> Step:
    """Our batch, ready to step."""
    env = registry.make(f"atari/{game}", {}, COPIES)
    frame, rng = env.reset(0), np.random.default_rng(0)
    actions = [random_actions(env.spaces, frame, rng) for _ in range(DRAWN)]
    return lambda i: void(env.step(actions[i % DRAWN]))


def gymnasium_s(game: str) -> Step:
    """Gymnasium's preprocessing in a loop, ready to step."""
    envs = [
        AtariPreprocessing(AtariEnv(GAMES[game], obs_type="grayscale", frameskip=1, repeat_action_probability=0.0))
        for _ in range(COPIES)
    ]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = np.random.default_rng(0).integers(envs[0].action_space.n, size=(DRAWN, COPIES))  # type: ignore[attr-defined]  # Discrete

    def step(i: int) -> None:
        for env, action in zip(envs, actions[i % DRAWN].tolist(), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return step


def ale_s(game: str) -> Step:
    """ale-py's vector environment with two threads, ready to step."""
    env = ale_py.AtariVectorEnv(GAMES[game], num_envs=COPIES, num_threads=2, stack_num=1, use_fire_reset=False)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(len(env.ale.get_action_set()), size=(DRAWN, COPIES))
    return lambda i: void(env.step(actions[i % DRAWN]))


def compare(game: str, *, runs: int, cpu_s: float) -> Row:
    """The row of a game: rates of all three, and ours as a multiple of the others', over repetitions in turns."""
    steps = (ours(game), gymnasium_s(game), ale_s(game))
    for step in steps:
        rate(step, cpu_s / 5)
    measured = [tuple(COPIES * rate(step, cpu_s) for step in steps) for _ in range(runs)]
    return {
        "game": game,
        "marless, env steps/s": spread([each[0] for each in measured]).cell(0),
        "AtariPreprocessing": spread([each[1] for each in measured]).cell(0),
        "AtariVectorEnv": spread([each[2] for each in measured]).cell(0),
        "ratio to the first": ratio([(each[0], each[1]) for each in measured]).cell(2),
        "to the second": ratio([(each[0], each[2]) for each in measured]).cell(2),
    }


def main() -> None:
    """Run the benchmark, print the table, and write it to the file of --json if given."""
    args = harness.parser(__doc__, runs=3).parse_args()
    on_one_thread()
    about = harness.machine()
    rows = []
    for game in GAMES:
        harness.say(game)
        rows.append(compare(game, runs=args.runs, cpu_s=2.0))
    harness.report("atari", about, rows, {}, args.json)


if __name__ == "__main__":
    main()
