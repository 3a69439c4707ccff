"""R1 of asynchronous jobs: workers, services and Redis are killed while a job of schedule `stellaris` runs.

The order of events differs from run to run. So the job is computed once more from its records, in one process, and must
have come to the same weights to the last bit. Each gradient is part of one version at most; what is lost is counted.
And a job that learns must learn as well as without kills: what it comes to lies in the interval of undisturbed runs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marless.jobs.job import prepare
from marless.jobs.record import AggregationRecord, RoundRecord
from services.coordinator.state.run_folder import RunFolder
from tests.faults import failpoints, job_kills
from tests.faults.pools import DOCUMENT
from tests.faults.rig import Disturbed, Rig
from tests.integration.one_process_asynchronous import check_counts, check_same_weights

ASYNCHRONOUS = DOCUMENT | {
    "name": "asynchronous",
    "algorithm": {"name": "mappo", "truncation": "least"},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "fresh"},
    "schedule": {"name": "stellaris", "learners": 2},
}

LEARNING = ASYNCHRONOUS | {
    "name": "learning",
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2}},
    "algorithm": {"name": "mappo", "lr": 4e-3, "gamma": 0.95},
    "model": {"hidden": [32, 32]},
    "actors": {"count": 3, "envs": 32, "steps": 25, "episodes": "fresh"},
    "evaluation": {"every": 100, "episodes": 200, "random_episodes": 200},
    "schedule": {
        "name": "stellaris",
        "learners": 3,
        "data_lag": 6,
        "aggregation": {"rule": "softsync", "gradients": 2},
    },
}
"""A job that learns within some hundred versions; each is made of two gradients or more."""
OFF_POLICY = ASYNCHRONOUS | {
    "name": "replayed",
    "algorithm": {"name": "qmix", "updates": 2, "batch": 8, "warmup": 20, "replay": {"capacity": 250}},
    "schedule": "stellaris",
}
"""A job whose learner makes each version by itself, from a replay that outlives it and holds some ten rollouts."""
UNDISTURBED = range(100, 108)
"""Seeds of undisturbed runs."""
T_99 = 3.499
"""Two-sided 99 % quantile of Student's t distribution, for that many runs less one."""


async def run(
    rig: Rig,
    seed: int,
    *,
    kills: int,
    versions: int,
    victims: Sequence[str] = job_kills.VICTIMS,
    document: Mapping[str, Any] = ASYNCHRONOUS,  # Any: YAML
) -> dict[str, float]:
    """Raises AssertionError if the job does not come to what its records say; returns counts and recovery times."""
    job = await replace(rig, document=document).submit(f"kills-{seed}", versions)
    recoveries = await job_kills.kill_at_random(job, random.Random(seed), versions, kills, victims)
    await job.succeeded()
    records = check(job, versions)
    return {
        "kills": kills,
        "versions": versions,
        "gradients applied": sum(len(each.gradients) for each in records),
        "applied twice": 0,
        "rollouts and gradients lost": records[-1].lost,
        **job_kills.times_of(recoveries),
    }


async def of_a_job_that_learns(rig: Rig, seed: int, *, kills: int, versions: int) -> dict[str, float]:
    """As `run`. Raises AssertionError, too, unless the greedy return is what undisturbed runs let expect of one more.

    That is the 99 % prediction interval, mean ± t · s · √(1 + 1/n), of n runs with other seeds.
    """
    undisturbed = [await _undisturbed(rig, own, versions) for own in UNDISTURBED]
    reach = T_99 * statistics.stdev(undisturbed) * math.sqrt(1 + 1 / len(undisturbed))
    least, most = statistics.mean(undisturbed) - reach, statistics.mean(undisturbed) + reach
    figures = await run(rig, seed, kills=kills, versions=versions, document=LEARNING)
    job = Disturbed(rig, f"{LEARNING['name']}-kills-{seed}")
    learned, chance = greedy_return(job), float(job.status()["random"]["mean"])
    assert chance < least - (most - least), (
        f"the interval, {least:.2f} to {most:.2f}, tells little: random {chance:.2f}"
    )
    assert least <= learned <= most, f"it came to {learned:.2f}; undisturbed runs to {least:.2f} to {most:.2f}"
    return figures | {
        "return": round(learned, 2),
        "undisturbed runs": len(undisturbed),
        "least undisturbed": round(min(undisturbed), 2),
        "greatest undisturbed": round(max(undisturbed), 2),
        "mean undisturbed": round(statistics.mean(undisturbed), 2),
        "interval from": round(least, 2),
        "interval to": round(most, 2),
        "random": round(chance, 2),
    }


async def _undisturbed(rig: Rig, seed: int, versions: int) -> float:
    """The greedy return of the job that learns, with this seed, if nothing befalls it."""
    job = await replace(rig, document=LEARNING | {"seed": seed}).submit(f"undisturbed-{seed}", versions)
    await job.succeeded()
    return greedy_return(job)


def greedy_return(job: Disturbed) -> float:
    """Mean greedy return per agent of its last version."""
    newest = job.records()[-1].newest_evaluation
    assert newest, f"{job.name} was not evaluated"
    return newest.mean


async def at_aggregations(rig: Rig, seed: int, *, kills: int, versions: int) -> dict[str, float]:
    """Kill the store around the transactions that make versions out of several gradients, so many times in all.

    Before the transaction the versions are computed, and are lost; after it they are published, and nobody was told.
    """
    rng, store = random.Random(seed), "param_store"
    job = await replace(rig, document=LEARNING).submit(f"aggregations-{seed}", versions)
    names = failpoints.of(failpoints.AGGREGATING)
    for number in range(kills):
        await job.rounds(1)
        await rig.restart(store, MARLESS_FAILPOINT=f"{names[number % len(names)]}:{rng.randint(1, 3)}")
        before = rig.stack.restarts[store]
        await job.until(lambda before=before: rig.stack.restarts[store] > before)
    await job.succeeded()
    made = check(job, versions)
    assert min(len(each.gradients) for each in made) > 1, "a version is made of one gradient"
    return {"kills": kills, "versions": versions, "applied twice": 0, "rollouts and gradients lost": made[-1].lost}


def check(job: Disturbed, versions: int) -> list[AggregationRecord]:
    """Raises AssertionError unless the job has these versions, and each follows from its records."""
    folder = RunFolder(job.folder)
    records: list[RoundRecord] = list(folder.records())
    assert [record.round for record in records] == list(range(versions)), "a version is lost or doubled"
    made = [record.aggregation for record in records if record.aggregation]
    assert_once("gradient of learner", (each.learner for one in made for each in one.gradients))
    assert_once("rollout", (number for one in made for each in one.gradients for number in each.rollouts))
    check_same_weights(folder)
    check_counts(prepare(folder.load()[0]), records)
    return made


def assert_once(what: str, numbers: Iterable[int]) -> None:
    """Raise AssertionError, naming it, if a number comes twice."""
    again = [number for number, times in Counter(numbers).items() if times > 1]
    assert not again, f"{what} {again} is part of more than one version"
