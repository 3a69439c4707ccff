"""Greedy evaluation on mpe2, the same for every peer: whole episodes, one batched forward pass per time step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from pettingzoo import ParallelEnv

from bench.task import GAMES, TASK, Game

Act = Callable[[NDArray[np.float32]], NDArray[np.integer]]
"""Observations float32 [N, B, O] → actions int [N, B], greedy."""
GroupsAct = Callable[[Mapping[str, NDArray[np.float32]]], Mapping[str, NDArray[np.generic]]]
"""The same for all agent classes, by name; continuous actions are float [N, B, A]."""


def make_env(game: Game = GAMES["spread"], *, continuous: bool = False) -> ParallelEnv:
    """Create one copy of a game."""
    module = import_module(f"mpe2.{game.peer}")
    return module.parallel_env(**game.peer_options, max_cycles=TASK.episode_steps, continuous_actions=continuous)


class Evaluation:
    """Plays whole episodes of a game; holds one environment copy per episode, made when first needed."""

    def __init__(self, game: Game, *, continuous: bool) -> None:
        self._game = game
        self._continuous = continuous

    @cached_property
    def _envs(self) -> list[ParallelEnv]:
        return [make_env(self._game, continuous=self._continuous) for _ in range(TASK.evaluation_episodes)]

    def __call__(self, act: GroupsAct, seed: int, chance: Sequence[str] = ()) -> dict[str, float]:
        """Undiscounted return per agent of each class, mean over episodes; classes in `chance` act at random.

        Equal seeds give the same initial states.
        """
        starts = [env.reset(seed=seed * len(self._envs) + i)[0] for i, env in enumerate(self._envs)]
        rng, seen = np.random.default_rng(seed), starts
        total = dict.fromkeys(self._game.groups, 0.0)
        for _ in range(TASK.episode_steps):
            obs = {group: self._stacked(seen, group) for group in self._game.groups}
            actions = {**act(obs), **{group: self._random(group, rng) for group in chance}}
            for i, env in enumerate(self._envs):
                seen[i], rewards, _, _, _ = env.step(self._of(actions, i))
                for group in total:
                    total[group] += sum(rewards[agent] for agent in self._game.agents(group))
        played = len(self._envs)
        return {group: float(total[group]) / (self._game.groups[group] * played) for group in total}

    def above_chance(self, act: GroupsAct, seed: int) -> dict[str, float]:
        """Each class's return against random opponents, minus that of a random policy in its place."""
        groups = tuple(self._game.groups)
        chance = self(act, seed, chance=groups)
        return {
            group: self(act, seed, chance=[each for each in groups if each != group])[group] - chance[group]
            for group in groups
        }

    def _stacked(self, seen: Sequence[Mapping[str, NDArray[np.float32]]], group: str) -> NDArray[np.float32]:
        return np.array([[obs[agent] for obs in seen] for agent in self._game.agents(group)], dtype=np.float32)

    def _random(self, group: str, rng: np.random.Generator) -> NDArray[np.generic]:
        shape = (self._game.groups[group], len(self._envs))
        return rng.random((*shape, 5), dtype=np.float32) if self._continuous else rng.integers(5, size=shape)

    def _of(self, actions: Mapping[str, NDArray[np.generic]], copy: int) -> dict[str, object]:
        found: dict[str, object] = {}
        for group, action in actions.items():
            for n, agent in enumerate(self._game.agents(group)):
                found[agent] = action[n, copy] if self._continuous else int(action[n, copy])
        return found


class GreedyEvaluation:
    """Greedy evaluation for the task on which systems are compared."""

    def __init__(self) -> None:
        self._evaluation = Evaluation(GAMES["spread"], continuous=False)

    def __call__(self, act: Act, seed: int) -> float:
        """Undiscounted return per agent, mean over agents and episodes."""
        return self._evaluation(lambda seen: {"agent": act(seen["agent"])}, seed)["agent"]
