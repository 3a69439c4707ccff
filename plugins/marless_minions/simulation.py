"""Simulates batches of whole training runs as arrays: the episodes that a scheduler is trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless_minions.features import FEATURES
from marless_minions.model import Floats, RunModel
from marless_minions.scheduler import Scheduler, SchedulerTask

Choose = Callable[[Floats], NDArray[np.int64]]
"""Chooses numbers of actors, int64 [E], from raw features [E, 8] (nan: not measured)."""


@dataclass(frozen=True, kw_only=True)
class Episodes:
    """E simulated runs of K rounds; all arrays are [K, E]."""

    observations: Floats
    """[K, E, 8], raw features before each round."""
    actors: NDArray[np.int64]
    round_s: Floats
    returns: Floats
    """R̄_k, expected return in round k, of the policies before its update, without sampling noise.

    Observations contain the noise; rewards do not, because it does not depend on the scheduler and hides its effect.
    """
    cost_usd: Floats
    rewards: Floats

    @property
    def objectives(self) -> Floats:
        """[E], undiscounted sum of rewards, the objective of a scheduler."""
        total: Floats = self.rewards.sum(axis=0)
        return total


def play(model: RunModel, task: SchedulerTask, choose: Choose, episodes: int, seed: list[int]) -> Episodes:
    """Simulate `episodes` runs. The random numbers of a round do not depend on earlier choices, so that runs with the
    same seed are comparable round by round.
    """
    runs = _Runs(model, task, episodes, seed)
    seen, chosen, measured = [], [], []
    for _ in range(task.rounds):
        seen.append(runs.observation_E8.copy())
        chosen.append(choose(runs.observation_E8))
        measured.append(runs.step(chosen[-1]))
    round_s_KE, returns_KE, cost_usd_KE = (np.array(each) for each in zip(*measured, strict=True))
    return Episodes(
        observations=np.array(seen),
        actors=np.array(chosen),
        round_s=round_s_KE,
        returns=returns_KE,
        cost_usd=cost_usd_KE,
        rewards=rewards(round_s_KE, returns_KE, cost_usd_KE.sum(axis=0), task),
    )


class _Runs:
    """E simulated runs, which advance together, round by round."""

    def __init__(self, model: RunModel, task: SchedulerTask, episodes: int, seed: list[int]) -> None:
        self._model, self._task = model, task
        self._seed, self._round = seed, 0
        first = np.random.default_rng([*seed, task.rounds]).integers(model.runs)  # a stream that no round uses
        # Runs take turns, rather than being drawn, so that a batch meets each recorded curve about equally often.
        self._run_E = (first + np.arange(episodes)) % model.runs
        self._steps_E = np.zeros(episodes)
        self._spent_E = np.zeros(episodes)
        self.observation_E8 = np.full((episodes, len(FEATURES)), np.nan)
        self.observation_E8[:, [FEATURES.index("round"), FEATURES.index("budget_left")]] = 0.0, 1.0

    def step(self, actors_E: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Simulate one round; returns its seconds, returns and cost in USD, each [E]."""
        model, rng = self._model, np.random.default_rng([*self._seed, self._round])
        sampled_E: Floats = actors_E.astype(np.float64) * model.steps_per_actor
        actor_s_E, slowest_s_E = self._actors(actors_E, rng)
        learner_s_E = model.learner_s.drawn(sampled_E, rng)
        round_s_E = learner_s_E + slowest_s_E
        returns_E = model.returns.at(self._run_E, self._steps_E)
        measured_E = returns_E + rng.choice(model.returns.residuals, returns_E.shape)
        gb_s_E = actors_E * actor_s_E * model.actor_gb + model.learner_gb_s.drawn(sampled_E, rng)
        cost_usd_E = gb_s_E * self._task.usd_per_gb_s
        loss_E = model.loss.drawn(self._run_E, self._steps_E, rng)
        kl_E = model.kl.drawn(self._run_E, self._steps_E, rng)
        self._steps_E = self._steps_E + sampled_E
        self._spent_E = self._spent_E + cost_usd_E
        self._round += 1
        done_E = np.full(len(actors_E), min(self._round / self._task.rounds, 1.0))
        left_E = 1.0 - self._spent_E / self._task.budget_usd if self._task.budget_usd else np.ones(len(actors_E))
        columns = (done_E, loss_E, measured_E, kl_E, learner_s_E, actor_s_E, round_s_E, left_E)  # as FEATURES
        self.observation_E8 = np.stack(columns, axis=1)
        return round_s_E, returns_E, cost_usd_E

    def _actors(self, actors_E: NDArray[np.int64], rng: np.random.Generator) -> tuple[Floats, Floats]:
        """Mean and longest duration of the actors, each [E]; the longest of I is the quantile U^(1/I) of durations."""
        seen = self._model.actor_s
        quantile_E = rng.random(len(actors_E)) ** (1 / actors_E)
        longest_E = np.interp(quantile_E, np.linspace(0, 1, len(seen)), seen)
        # About normal by the central limit theorem: one draw, however many actors, so that equal seeds stay comparable.
        mean_E = seen.mean() + seen.std() / np.sqrt(actors_E) * rng.standard_normal(len(actors_E))
        # One actor is its own mean; the mean of several, which is drawn apart, must not exceed the longest.
        return np.where(actors_E == 1, longest_E, np.clip(mean_E, seen[0], longest_E)), longest_E


def rewards(round_s_KE: Floats, returns_KE: Floats, spent_usd_E: Floats, task: SchedulerTask) -> Floats:
    """[K, E]: −β·P_k in every round; the last one adds max_k R̄_k − J unless R̄_K ≥ J and b_K ≥ 0 (MinionsRL).

    As printed; its code requires R̄_K ≥ J alone. If the budget is exceeded and some round's return was above J, the
    printed term is a bonus instead of a penalty; to enforce a budget, set `within_budget`, too.
    """
    result = -task.beta * round_s_KE
    within_E = spent_usd_E <= task.budget_usd if task.budget_usd else np.ones(len(spent_usd_E), bool)
    reached_E = (returns_KE[-1] >= task.target) & within_E
    result[-1] += np.where(reached_E, 0.0, returns_KE.max(axis=0) - task.target)
    return result


def fixed(actors: int) -> Choose:
    """Always choose `actors` actors."""
    return lambda raw_E8: np.full(len(raw_E8), actors)


def uniform(max_actors: int, seed: list[int]) -> Choose:
    """Choose a number of actors uniformly at random."""
    rng = np.random.default_rng(seed)
    return lambda raw_E8: rng.integers(1, max_actors + 1, len(raw_E8))


def greedy(scheduler: Scheduler) -> Choose:
    """Choose the most probable number of actors, as a scheduler does in a job."""
    return lambda raw_E8: scheduler.probabilities(raw_E8).argmax(axis=1) + 1
