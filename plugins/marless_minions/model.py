"""A model of training runs, fitted to recorded ones; schedulers are trained on it, because real runs take hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.jobs.record import RoundRecord
from marless_minions import features
from marless_minions.cost import learner_gb_s
from marless_minions.scheduler import SchedulerTask

if TYPE_CHECKING:  # a job's settings name a scaling policy, so they are above this package
    from marless.jobs.spec import JobSpec

Floats = NDArray[np.float64]

GRID = 256
"""Number of points of a curve, G."""
FEWEST_ROUNDS = 5
_MB_PER_GB = 1024
_ENOUGH = 0.95
_SYNTHETIC_RETURNS = (-100.0, 0.0)
_SYNTHETIC_SPEEDS = (0.7, 1.0, 1.4)


@dataclass(frozen=True, kw_only=True)
class QuantityCurves:
    """One quantity as a function of the env steps sampled before a round, for each of R runs."""

    end: float
    """Env steps at the last point; points are evenly spaced from 0, and a curve is constant beyond the last one."""
    values: Floats
    """[R, G], values at the points."""
    residuals: Floats
    """[M], differences of single rounds from the curves, of all runs; simulated rounds draw from them."""

    def at(self, run_E: NDArray[np.intp], steps_E: Floats) -> Floats:
        """[E], values of the curves of runs `run_E` after `steps_E` env steps, without residuals."""
        place_E = np.clip(steps_E / self.end, 0.0, 1.0) * (self.values.shape[1] - 1)
        # The last point belongs to the last interval, as there is none to its right.
        left_E = np.minimum(place_E.astype(np.intp), self.values.shape[1] - 2)
        low_E, high_E = self.values[run_E, left_E], self.values[run_E, left_E + 1]
        result: Floats = low_E + (high_E - low_E) * (place_E - left_E)
        return result

    def drawn(self, run_E: NDArray[np.intp], steps_E: Floats, rng: np.random.Generator) -> Floats:
        """[E], as `at`, each with a random residual."""
        result: Floats = self.at(run_E, steps_E) + rng.choice(self.residuals, steps_E.shape)
        return result


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """A quantity that grows with a round's env steps: (fixed + per_step · steps) · a ratio drawn from recorded ones."""

    fixed: float
    per_step: float
    ratios: Floats

    def drawn(self, steps_E: Floats, rng: np.random.Generator) -> Floats:
        """[E], values for rounds of `steps_E` env steps."""
        result: Floats = (self.fixed + self.per_step * steps_E) * rng.choice(self.ratios, steps_E.shape)
        return result


@dataclass(frozen=True, kw_only=True)
class RunModel:
    """A model of training runs: returns, losses, durations and costs as functions of env steps."""

    source: str
    """A description of the data it was fitted to."""
    steps_per_actor: int
    """Env steps that one actor samples in a round."""
    returns: QuantityCurves
    """Mean return per agent; never falls."""
    loss: QuantityCurves
    kl: QuantityCurves
    actor_s: Floats
    """[D], seconds of single actors, ascending."""
    actor_gb: float
    learner_s: StepCost
    learner_gb_s: StepCost
    """GB-seconds of all functions inside the learners of a round."""

    @property
    def runs(self) -> int:
        """R, the number of runs, each with a curve."""
        return len(self.returns.values)


def fit(runs: Sequence[Sequence[RoundRecord]], spec: JobSpec) -> RunModel:
    """Fit a model to recorded runs of the same job; raises SpecError if they hold too little data.

    Returns are fitted per run by isotonic regression over env steps. This assumes that training never makes policies
    worse, and depends on the number of samples only, not on their distribution over rounds.
    """
    usable = [run for run in runs if sum(record.returns is not None for record in run) >= FEWEST_ROUNDS]
    if not usable:
        raise SpecError(
            f"the recorded runs have no {FEWEST_ROUNDS} rounds in which episodes ended: give longer runs, or none at "
            "all to train on a synthetic model"
        )
    records = [record for run in usable for record in run]
    steps = np.array([_sampled(run, index) for run in usable for index in range(len(run))])
    actors_s = [seconds for record in records for seconds in features.actors_s(record)]
    if not actors_s:
        raise SpecError("the recorded runs name no actor invocations: give runs that this version of marless recorded")
    end = max(run[-1].env_steps for run in usable)
    return RunModel(
        source=f"{len(usable)} recorded runs, {len(records)} rounds",
        steps_per_actor=spec.actors.envs * spec.actors.steps,
        returns=_curves(usable, end, lambda record: record.returns.mean if record.returns else None, rising=True),
        loss=_curves(usable, end, features.loss),
        kl=_curves(usable, end, features.kl),
        actor_s=np.sort(actors_s),
        actor_gb=spec.functions.actor.memory_mb / _MB_PER_GB,
        learner_s=_line(steps, np.array([features.learner_s(record) for record in records])),
        learner_gb_s=_line(steps, np.array([learner_gb_s(record, spec.functions) for record in records])),
    )


def synthetic(spec: JobSpec) -> RunModel:
    """A synthetic model, for training a scheduler before there are recorded runs.

    Returns rise from −100 to 0, and come within 5 % of 0 after half of the job's largest possible number of samples;
    one run of three is 0.7 times as fast, and one 1.4 times. An actor takes 1 s ± 10 %, the learner 0.2 s plus up to
    1 s in proportion to the samples.
    """
    count, per_actor = spec.actors.count, spec.actors.envs * spec.actors.steps
    end = float(rounds_of(spec) * count * per_actor)
    rising_RG = 1 - np.exp(-6 * np.array(_SYNTHETIC_SPEEDS)[:, None] * np.linspace(0, 1, GRID))
    low, high = _SYNTHETIC_RETURNS
    noise = np.linspace(-1, 1, 21)
    second = StepCost(fixed=0.2, per_step=1 / (count * per_actor), ratios=1 + 0.1 * noise)
    size = spec.functions.learner.memory_mb / _MB_PER_GB
    return RunModel(
        source="a synthetic model",
        steps_per_actor=per_actor,
        returns=QuantityCurves(end=end, values=low + (high - low) * rising_RG, residuals=2 * noise),
        loss=QuantityCurves(end=end, values=1 - rising_RG, residuals=0.05 * noise),
        kl=QuantityCurves(end=end, values=0.01 * (1 - rising_RG), residuals=0.001 * noise),
        actor_s=1 + 0.1 * noise,
        actor_gb=spec.functions.actor.memory_mb / _MB_PER_GB,
        learner_s=second,
        learner_gb_s=StepCost(fixed=second.fixed * size, per_step=second.per_step * size, ratios=second.ratios),
    )


def task_of(spec: JobSpec, model: RunModel, usd_per_gb_s: float, *, target: float | None, beta: float) -> SchedulerTask:
    """The task of a scheduler for this job; raises SpecError without a fixed number of rounds.

    The papers do not give J. Without a `target`, it is `stop.return` or, if that is not set, the mean first return of
    the model's runs plus 95 % of their mean rise.
    """
    if target is None and (target := spec.stop.greedy_return) is None:
        lowest, highest = model.returns.values[:, 0].mean(), model.returns.values[:, -1].mean()
        target = float(lowest + _ENOUGH * (highest - lowest))
    return SchedulerTask(
        rounds=rounds_of(spec),
        max_actors=spec.actors.count,
        target=target,
        budget_usd=spec.stop.cost_usd,
        usd_per_gb_s=usd_per_gb_s,
        beta=beta,
    )


def rounds_of(spec: JobSpec) -> int:
    """K, the job's number of rounds; raises SpecError if `stop.rounds` is not set or below 2."""
    if spec.stop.rounds is None or spec.stop.rounds < 2:
        raise SpecError(
            f"stop.rounds is {spec.stop.rounds or 'not set'}: a scheduler learns runs of a fixed number of rounds, at "
            "least 2; set it in the job, or with --set stop.rounds=100"
        )
    return spec.stop.rounds


def _sampled(run: Sequence[RoundRecord], index: int) -> float:
    """Env steps of one round; for a first record that is not of round 0, the mean over the rounds so far."""
    record = run[index]
    before = run[index - 1].env_steps if index else record.env_steps * record.round // (record.round + 1)
    return float(record.env_steps - before)


def _curves(
    runs: Sequence[Sequence[RoundRecord]],
    end: float,
    value: Callable[[RoundRecord], float | None],
    *,
    rising: bool = False,
) -> QuantityCurves:
    """One curve per run: isotonic if it is `rising`, else a moving average over a tenth of the run."""
    fitted, residuals = [], []
    grid = np.linspace(0.0, end, GRID)
    for run in runs:
        found = [
            (record.env_steps - _sampled(run, index), measured)
            for index, record in enumerate(run)
            if (measured := value(record)) is not None
        ]
        if not found:
            fitted.append(np.zeros(GRID))
            continue
        steps, values = np.array(found, np.float64).T
        smooth = _isotonic(values) if rising else _moving_average(values)
        fitted.append(np.interp(grid, steps, smooth))
        residuals.append(values - smooth)
    return QuantityCurves(
        end=float(end),
        values=np.array(fitted),
        # Simulated rounds draw from them, and from an empty array nothing can be drawn.
        residuals=np.concatenate(residuals) if residuals else np.zeros(1),
    )


def _isotonic(values: Floats) -> Floats:
    from scipy.optimize import isotonic_regression

    fitted: Floats = isotonic_regression(values).x
    return fitted


def _moving_average(values: Floats) -> Floats:
    """Centred, over a tenth of the values; shorter towards the ends."""
    half = len(values) // 20
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    average: Floats = (sums[last] - sums[first]) / (last - first)
    return average


def _line(steps: Floats, values: Floats) -> StepCost:
    """A least-squares line with non-negative coefficients; through the origin if all rounds had equal env steps."""
    through_origin = (0.0, float(values @ steps / (steps @ steps)))
    if np.ptp(steps) == 0:
        fixed, per_step = through_origin
    else:
        per_step, fixed = (float(each) for each in np.polyfit(steps, values, 1))
        if per_step < 0:
            fixed, per_step = float(values.mean()), 0.0
        elif fixed < 0:
            fixed, per_step = through_origin
    fitted = fixed + per_step * steps
    return StepCost(fixed=fixed, per_step=per_step, ratios=values / fitted if (fitted > 0).all() else np.ones(1))
