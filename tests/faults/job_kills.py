"""R1: workers, services and Redis are killed while a job runs. No round is lost or done twice, and the weights are the
same to the last bit.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

import psutil

from bench.harness import percentile
from marless.jobs.record import RoundRecord
from tests.faults.results import Result, round_s, same
from tests.faults.rig import Disturbed, Rig, until

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
WORKERS = ("actor_pool worker", "learner_pool worker")
VICTIMS = (*SERVICES, *WORKERS, "redis")
AT_ONCE = 0.15
"""How often the next kill comes before the last one is got over."""
Recoveries = dict[str, list[float]]


async def run(
    rig: Rig, seed: int, *, kills: int, rounds: int, reference: Result, victims: Sequence[str] = VICTIMS
) -> dict[str, float]:
    """Raises AssertionError if the job does not come to what it would have; returns counts and recovery times."""
    job = await rig.submit(f"kills-{seed}", rounds)
    recoveries = await kill_at_random(job, random.Random(seed), rounds, kills, victims)
    await job.succeeded()
    same(job, reference)
    return {
        "kills": kills,
        "rounds": rounds,
        "rounds lost or doubled": 0,
        "versions doubled": 0,
        "rounds trained again": sum(times > 1 for times in job.trainings().values()),
        **times_of(recoveries),
    }


def times_of(recoveries: Recoveries) -> dict[str, float]:
    """How long recoveries took, as figures of a scenario."""
    every = [seconds for times in recoveries.values() for seconds in times]
    return {
        "recovery p50 (s)": round(percentile(every, 50), 2),
        "recovery p95 (s)": round(percentile(every, 95), 2),
        "slowest (s)": round(max(every), 2),
    }


async def kill_at_random(
    job: Disturbed, rng: random.Random, rounds: int, kills: int, victims: Sequence[str]
) -> Recoveries:
    """Kill at random moments; returns the seconds of each recovery by who was killed."""
    recoveries: Recoveries = defaultdict(list)
    order = [victims[number % len(victims)] for number in range(kills)]
    rng.shuffle(order)
    for victim, moment in zip(order, sorted(rng.sample(range(1, rounds - 2), kills)), strict=True):
        await job.until(lambda moment=moment: len(job.records()) >= moment)
        await asyncio.sleep(rng.uniform(0.0, 0.05))
        killed_s = await _kill(job.rig, rng, victim)
        if rng.random() >= AT_ONCE:
            await until(lambda since=killed_s: _recovered(job.records(), since) or job.over(), f"{victim} is missed")
            if recovered_s := _recovered(job.records(), killed_s):
                recoveries[victim].append(max(0.0, recovered_s - killed_s - round_s(job.records())))
    return recoveries


async def _kill(rig: Rig, rng: random.Random, victim: str) -> float:
    """Kill one process of this kind as soon as there is one; returns when, Unix time."""
    while True:
        if candidates := _candidates(rig, victim):
            with suppress(psutil.NoSuchProcess):
                rng.choice(candidates).kill()
                return time.time()
        await asyncio.sleep(0.01)  # it has just died, and is about to come back


def _candidates(rig: Rig, victim: str) -> Sequence[psutil.Process]:
    if victim == "redis":
        return rig.redis()
    service, _, worker = victim.partition(" ")
    return rig.workers(service) if worker else rig.processes(service)


def _recovered(records: Sequence[RoundRecord], since_s: float) -> float:
    """When the first round ended that had started after this moment, all of it after the kill; 0 if none has."""
    return next((record.ended_s for record in records if record.started_s > since_s), 0.0)
