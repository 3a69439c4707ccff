"""Schedulers and models of runs whose every number is known."""

import numpy as np

from marless.jobs.spec import parse
from marless_minions.features import FEATURES
from marless_minions.model import QuantityCurves, RunModel, StepCost
from marless_minions.scheduler import Saving, Scheduler, SchedulerTask, save

NONE = np.zeros(1)
ONE = np.ones(1)


def task(**changes) -> SchedulerTask:
    fields = {"rounds": 10, "max_actors": 4, "target": 0.0, "budget_usd": None, "usd_per_gb_s": 0.5, "beta": 0.1}
    return SchedulerTask(**fields | changes)


def scheduler(*, of: SchedulerTask | None = None, **biases: float) -> Scheduler:
    """Prefers 1 actor, and with `return_=x` 4 actors where the last return is below x; center 0, scale 1."""
    of = of or task()
    sizes = (len(FEATURES), 64, 64, of.max_actors)
    weights = {f"policy.{n}.weight": np.zeros(sizes[n : n + 2]) for n in range(3)}
    weights |= {f"policy.{n}.bias": np.zeros(sizes[n + 1]) for n in range(3)}
    weights["policy.2.bias"][0] = 1.0
    if "return_" in biases:
        weights["policy.0.weight"][FEATURES.index("return"), 0] = -100.0
        weights["policy.0.bias"][0] = 100.0 * biases["return_"]
        weights["policy.1.weight"][0, 0] = 100.0
        weights["policy.2.weight"][0, -1] = 3.0
    return Scheduler(task=of, center=np.zeros(8), scale=np.ones(8), weights=weights)


def saved(directory, given: Scheduler | None = None, cheapest: Scheduler | None = None):
    given = given or scheduler()
    save(directory, Saving(checkpoints={"best": given, "cheapest": cheapest or given}, report={"why": "a test"}))
    return directory


def straight(*finals: float, end: float = 400.0) -> QuantityCurves:
    """Runs that rise evenly from 0."""
    return QuantityCurves(end=end, values=np.array([np.linspace(0.0, final, 5) for final in finals]), residuals=NONE)


def model(**changes) -> RunModel:
    """An actor samples 10 env steps in 2 s with 1 GB; the learner takes 1 s and 0.1 s an env step, with 2 GB."""
    fields = {
        "source": "a test",
        "steps_per_actor": 10,
        "returns": straight(40.0),
        "actor_s": np.array([2.0]),
        "actor_gb": 1.0,
        "learner_s": StepCost(fixed=1.0, per_step=0.1, ratios=ONE),
        "learner_gb_s": StepCost(fixed=2.0, per_step=0.2, ratios=ONE),
    }
    fields |= changes
    runs = len(fields["returns"].values)
    return RunModel(**fields | {"loss": straight(*[4.0] * runs), "kl": straight(*[0.4] * runs)})


def job(**sections):
    document = {
        "env": {"name": "mpe/simple_spread"},
        "algorithm": "ippo",
        "actors": {"count": 4, "envs": 5, "steps": 2},
        "stop": {"rounds": 10},
    }
    return parse(document | sections, "job")
