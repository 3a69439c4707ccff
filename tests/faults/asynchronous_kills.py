"""R1 of asynchronous jobs: workers, services and Redis are killed while a job of schedule `stellaris` runs.

The order of events differs from run to run. So the job is computed once more from its records, in one process, and must
have come to the same weights to the last bit. Each gradient is part of one version at most; what is lost is counted.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from marless.job import prepare
from marless.record import AggregationRecord, RoundRecord
from services.coordinator.state.run_folder import RunFolder
from tests.faults import job_kills
from tests.faults.pools import DOCUMENT
from tests.faults.rig import Disturbed, Rig
from tests.integration.one_process_asynchronous import check_counts, check_same_weights

ASYNCHRONOUS = DOCUMENT | {
    "name": "asynchronous",
    "algorithm": {"name": "mappo", "truncation": "least"},
    "actors": {"count": 3, "envs": 4, "steps": 5, "episodes": "fresh"},
    "schedule": {"name": "stellaris", "learners": 2},
}


async def run(
    rig: Rig, seed: int, *, kills: int, versions: int, victims: Sequence[str] = job_kills.VICTIMS
) -> dict[str, float]:
    """Raises AssertionError if the job does not come to what its records say; returns counts and recovery times."""
    job = await replace(rig, document=ASYNCHRONOUS).submit(f"kills-{seed}", versions)
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
