"""Trains a scheduler on simulated runs with PPO. The only module of this package that needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.learning.algos.ppo import losses
from marless_minions.features import FEATURES
from marless_minions.model import Floats, RunModel
from marless_minions.scheduler import LAYERS, Scheduler, SchedulerTask, forward
from marless_minions.simulation import Choose, Episodes, fixed, greedy, play, uniform

_UNITS = 64
_HEAD_SCALE = {"policy": 0.01, "critic": 1.0}
"""Scale of the initial weights of the last layer; small for the policy, so that its bias decides at first."""
_WIDTH = 0.2
"""Standard deviation of the initial distribution over numbers of actors, as a fraction of the maximum."""
_LOOKS = 32
"""Simulated runs that determine the scale of features and returns."""
_TRIALS = 30
"""Simulated runs on which each candidate checkpoint is evaluated, the same for all."""
_COMPARED = 120
"""Simulated runs of the final comparison."""
_INITIAL, _LOOK, _SAMPLE, _ACT, _TRIAL, _COMPARE = range(6)
"""Streams of random numbers."""


@dataclass(frozen=True, kw_only=True)
class PPOSettings:
    """Hyper-parameters: Adam at 0.005 and γ = 0.99 as in MinionsRL; the others from its search ranges, or ours."""

    batch: int = 5
    """Simulated runs per update; 1 in MinionsRL's code."""
    epochs: int = 8
    minibatches: int = 1
    learning_rate: float = 0.005
    gamma: float = 0.99
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5


@dataclass(frozen=True, kw_only=True)
class SimulatedScore:
    """Means over simulated runs."""

    objective: float
    """Undiscounted sum of rewards."""
    final_return: float
    cost_usd: float
    wall_s: float
    """Σ P_k, simulated seconds of a run."""
    actors: float
    reached: float
    """Fraction of runs whose last return reached the target, within the budget if there is one."""


@dataclass(frozen=True, kw_only=True)
class TrainedScheduler:
    """The result of training."""

    best: Scheduler
    cheapest: Scheduler
    episodes: int
    """Number of simulated runs of the training."""
    wall_s: float
    cpu_s: float
    curve: tuple[float, ...] = field(repr=False)
    """The scheduler's objective after each update, acting greedily as in a job."""


def train(
    model: RunModel,
    task: SchedulerTask,
    *,
    episodes: int,
    seed: int,
    settings: PPOSettings = PPOSettings(),
    told: Callable[[int, int], None] | None = None,
) -> TrainedScheduler:
    """Train for `episodes` simulated runs; deterministic. `told` is called with the number of runs done, and of all.

    Starts near the best fixed number of actors (ours; MinionsRL starts from a random net): in runs of a hundred rounds,
    one choice has so little effect on the last return that a hundred episodes from a random start would not suffice.
    """
    started_s, started_cpu_s = time.perf_counter(), time.process_time()

    def tried(scheduler: Scheduler) -> SimulatedScore:
        return score(play(model, task, greedy(scheduler), _TRIALS, [seed, _TRIAL]), task)

    with _one_thread():
        start = _best_fixed(_fixed_scores(model, task, _TRIALS, [seed, _TRIAL]))
        learning = _Learning(task, _look(model, task, seed), start, settings, seed)
        best = cheapest = (tried(learning.scheduler()), learning.scheduler())
        curve = []
        for update, first in enumerate(range(0, episodes, settings.batch)):
            count = min(settings.batch, episodes - first)
            learning.update(play(model, task, learning.sampled, count, [seed, _SAMPLE, update]))
            candidate = (tried(learning.scheduler()), learning.scheduler())
            curve.append(candidate[0].objective)
            if told:
                told(first + count, episodes)
            if candidate[0].objective > best[0].objective:
                best = candidate
            if _cheapness(candidate[0]) > _cheapness(cheapest[0]):
                cheapest = candidate
    return TrainedScheduler(
        best=best[1],
        cheapest=cheapest[1],
        episodes=episodes,
        wall_s=time.perf_counter() - started_s,
        cpu_s=time.process_time() - started_cpu_s,
        curve=tuple(curve),
    )


def compare(model: RunModel, task: SchedulerTask, trained: TrainedScheduler, seed: int) -> dict[str, SimulatedScore]:
    """Scores of both checkpoints and of choices without a scheduler, on the same simulated runs, not used in training.

    "fixed N" is the best of some 16 fixed numbers on these runs, which could not be known in advance.
    """

    def tried(choose: Choose) -> SimulatedScore:
        return score(play(model, task, choose, _COMPARED, [seed, _COMPARE]), task)

    fixed_scores = _fixed_scores(model, task, _COMPARED, [seed, _COMPARE])
    best_fixed = _best_fixed(fixed_scores)
    return {
        "best": tried(greedy(trained.best)),
        "cheapest": tried(greedy(trained.cheapest)),
        f"fixed {best_fixed}": fixed_scores[best_fixed],
        f"fixed {task.max_actors}": fixed_scores[task.max_actors],
        "random": tried(uniform(task.max_actors, [seed, _COMPARE])),
    }


def _fixed_scores(model: RunModel, task: SchedulerTask, episodes: int, seed: list[int]) -> dict[int, SimulatedScore]:
    """Scores of some 16 fixed numbers of actors, from 1 to the maximum."""
    most = task.max_actors
    counts = sorted({1, most, *(round(most * part / 16) for part in range(1, 16))} - {0})
    return {count: score(play(model, task, fixed(count), episodes, seed), task) for count in counts}


def _best_fixed(scores: Mapping[int, SimulatedScore]) -> int:
    return max(scores, key=lambda count: scores[count].objective)


def _look(model: RunModel, task: SchedulerTask, seed: int) -> Episodes:
    return play(model, task, uniform(task.max_actors, [seed, _LOOK, 0]), _LOOKS, [seed, _LOOK, 1])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one torch thread: the nets are too small to gain from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def score(episodes: Episodes, task: SchedulerTask) -> SimulatedScore:
    """Means over episodes."""
    spent_E = episodes.cost_usd.sum(axis=0)
    reached_E = episodes.returns[-1] >= task.target
    if task.budget_usd is not None:
        reached_E &= spent_E <= task.budget_usd
    return SimulatedScore(
        objective=float(episodes.objectives.mean()),
        final_return=float(episodes.returns[-1].mean()),
        cost_usd=float(spent_E.mean()),
        wall_s=float(episodes.round_s.sum(axis=0).mean()),
        actors=float(episodes.actors.mean()),
        reached=float(reached_E.mean()),
    )


def _cheapness(of: SimulatedScore) -> tuple[bool, float]:
    """Sort key of the cheapest checkpoint: low cost if most runs reach the target, else the objective."""
    return (True, -of.cost_usd) if of.reached > 0.5 else (False, of.objective)


class _Learning:
    """The nets during training. NumPy (for acting) and torch (for learning) share the same arrays."""

    def __init__(self, task: SchedulerTask, look: Episodes, start: int, settings: PPOSettings, seed: int) -> None:
        rng = np.random.default_rng([seed, _INITIAL])
        raw = look.observations.reshape(-1, len(FEATURES))
        # Before a run's first round most features are not measured, and so NaN.
        spread = np.nanstd(raw, axis=0)
        self._settings = settings
        self._weights = {**_fresh("policy", task.max_actors, rng), **_fresh("critic", 1, rng)}
        self._weights[f"policy.{LAYERS - 1}.bias"] = _bump(task.max_actors, start)
        self._tensors = {name: torch.from_numpy(array).requires_grad_() for name, array in self._weights.items()}
        self._adam = torch.optim.Adam(self._tensors.values(), lr=settings.learning_rate)
        self._acts = np.random.default_rng([seed, _ACT])
        gains_KE = _discounted(look.rewards, settings.gamma)
        self._gain_center, self._gain_scale = float(gains_KE.mean()), float(gains_KE.std()) or 1.0
        self._view = Scheduler(
            task=task,
            center=np.nanmean(raw, axis=0),
            scale=np.where(spread > 0, spread, 1.0),
            weights=self._weights,
        )

    def scheduler(self) -> Scheduler:
        """The present policy and critic, as a copy."""
        weights = {name: array.copy() for name, array in self._weights.items()}
        return Scheduler(task=self._view.task, center=self._view.center, scale=self._view.scale, weights=weights)

    def sampled(self, raw_E8: Floats) -> NDArray[np.int64]:
        """Numbers of actors [E] sampled from the policy."""
        chances_EA = self._view.probabilities(raw_E8).cumsum(axis=1)
        # Scaled to the last sum, which rounding may leave below 1: a larger draw would choose one actor too many.
        drawn_E1 = self._acts.random((len(raw_E8), 1)) * chances_EA[:, -1:]
        chosen: NDArray[np.int64] = (drawn_E1 >= chances_EA).sum(axis=1) + 1
        return chosen

    def update(self, episodes: Episodes) -> None:
        """A PPO update on whole runs; advantage = discounted return − value (as in the code), standardised (ours)."""
        inputs = self._view.normalised(episodes.observations.reshape(-1, len(FEATURES)))
        gains = _discounted(episodes.rewards, self._settings.gamma).ravel()
        gains = (gains - self._gain_center) / self._gain_scale
        advantages = gains - forward(self._weights, "critic", inputs)[:, 0]
        # Advantages that are all equal have a deviation of 0.
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        actions = torch.from_numpy(episodes.actors.ravel() - 1)
        x_M8, gain_M, advantage_M = (torch.from_numpy(array) for array in (inputs, gains, advantages))
        with torch.no_grad():
            old_M = self._log_probabilities(x_M8).gather(1, actions[:, None])[:, 0]
        for _ in range(self._settings.epochs):
            order = torch.from_numpy(self._acts.permutation(len(inputs)))
            for part in order.chunk(self._settings.minibatches):
                self._step(x_M8[part], actions[part], old_M[part], advantage_M[part], gain_M[part])

    def _step(self, x_M8: Tensor, action_M: Tensor, old_M: Tensor, advantage_M: Tensor, gain_M: Tensor) -> None:
        settings = self._settings
        log_MA = self._log_probabilities(x_M8)
        taken_M = log_MA.gather(1, action_M[:, None])[:, 0]
        # The losses of ppo are stacked over policies; here is one.
        weight_1M = torch.full_like(taken_M, 1 / len(taken_M))[None]
        surrogate = losses.surrogate(taken_M[None], old_M[None], advantage_M[None], weight_1M, settings.clip)[0]
        entropy = -(log_MA.exp() * log_MA).sum(dim=1).mean()
        error = torch.nn.functional.smooth_l1_loss(self._net("critic", x_M8)[:, 0], gain_M)
        self._adam.zero_grad()
        (surrogate - settings.entropy * entropy + settings.value * error).backward()  # type: ignore[no-untyped-call]  # torch's
        self._adam.step()

    def _log_probabilities(self, x_M8: Tensor) -> Tensor:
        return torch.log_softmax(self._net("policy", x_M8), dim=1)

    def _net(self, net: str, x_MI: Tensor) -> Tensor:
        """`scheduler.forward` in torch."""
        for layer in range(LAYERS):
            x_MI = x_MI @ self._tensors[f"{net}.{layer}.weight"] + self._tensors[f"{net}.{layer}.bias"]
            x_MI = x_MI if layer == LAYERS - 1 else x_MI.tanh()
        return x_MI


def _fresh(net: str, outputs: int, rng: np.random.Generator) -> dict[str, Floats]:
    sizes = (len(FEATURES), *[_UNITS] * (LAYERS - 1), outputs)
    weights: dict[str, Floats] = {}
    for layer in range(LAYERS):
        scale = _HEAD_SCALE[net] if layer == LAYERS - 1 else 1.0
        weights[f"{net}.{layer}.weight"] = rng.standard_normal(sizes[layer : layer + 2]) * scale / sizes[layer] ** 0.5
        weights[f"{net}.{layer}.bias"] = np.zeros(sizes[layer + 1])
    return weights


def _bump(actions: int, start: int) -> Floats:
    """Logits of a Gaussian-shaped distribution over the numbers of actors with its mode at `start`."""
    width = max(actions * _WIDTH, 1.0)
    logits: Floats = -(((np.arange(actions) + 1.0 - start) / width) ** 2) / 2
    return logits


def _discounted(rewards_KE: Floats, gamma: float) -> Floats:
    """[K, E], discounted returns Σ γ^n r_{k+n} to the end of the run."""
    gains_KE = rewards_KE.copy()
    for k in range(len(gains_KE) - 2, -1, -1):
        gains_KE[k] += gamma * gains_KE[k + 1]
    return gains_KE
