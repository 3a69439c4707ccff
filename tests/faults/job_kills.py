"""R1: workers, services and Redis are killed at random moments while a job runs."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import psutil

from bench.harness import percentile
from marless.jobs.record import RoundRecord
from tests.faults.results import round_s
from tests.faults.rig import Disturbed, Rig, until
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
WORKERS = ("actor_pool worker", "learner_pool worker")
VICTIMS = (*SERVICES, *WORKERS, "redis")
LEARNERS = ("learner_pool", "learner_pool worker", "learner_pool worker")
AT_ONCE = 0.15
"""How often the next kill comes before the last one is got over."""
UNDISTURBED = range(100, 108)
"""Seeds of undisturbed runs."""
T_99 = 3.499
"""Two-sided 99 % quantile of Student's t distribution, for that many runs less one."""
Recoveries = dict[str, list[float]]


async def strike(struck: StruckRig, kills: str, *, victims: Sequence[str] = VICTIMS) -> Figures:
    """Kill so often; returns counts and recovery times."""
    job = await struck.submit()
    recoveries = await _kill_at_random(job, struck.rng, struck.rounds, int(kills), victims)
    await job.succeeded()
    every = [seconds for times in recoveries.values() for seconds in times]
    return {
        "kills": int(kills),
        **_counts(struck, job),
        "recovery p50 (s)": round(percentile(every, 50), 2),
        "recovery p95 (s)": round(percentile(every, 95), 2),
        "slowest (s)": round(max(every), 2),
    }


def _counts(struck: StruckRig, job: Disturbed) -> Figures:
    """What became of the rounds or versions; 0 is what the promises of the cell rule out."""
    made = [record.aggregation for record in job.records() if record.aggregation]
    if not made:
        again = sum(times > 1 for times in job.trainings().values())
        names = ("rounds lost or doubled", "versions doubled")
        return {"rounds": struck.rounds, **dict.fromkeys(names, 0), "rounds trained again": again}
    return {
        "versions": struck.rounds,
        "gradients applied": sum(len(each.gradients) for each in made),
        "applied twice": 0,
        "rollouts and gradients lost": made[-1].lost,
    }


async def strike_one_that_learns(struck: StruckRig, kills: str) -> Figures:
    """As `strike`; raises AssertionError unless the job's greedy return is what undisturbed runs lead one to expect.

    That is the 99 % prediction interval, mean ± t · s · √(1 + 1/n), of n runs with other seeds.
    """
    undisturbed = [await _undisturbed(struck, seed) for seed in UNDISTURBED]
    half = T_99 * statistics.stdev(undisturbed) * math.sqrt(1 + 1 / len(undisturbed))
    least, most = statistics.mean(undisturbed) - half, statistics.mean(undisturbed) + half
    figures = await strike(struck, kills)
    [job] = struck.jobs
    learned, chance = _greedy_return(job), float(job.status()["random"]["mean"])
    assert chance < least - (most - least), (
        f"the interval, {least:.2f} to {most:.2f}, tells little: random {chance:.2f}"
    )
    assert least <= learned <= most, f"it came to {learned:.2f}; undisturbed runs to {least:.2f} to {most:.2f}"
    return dict(figures) | {
        "return": round(learned, 2),
        "undisturbed runs": len(undisturbed),
        "least undisturbed": round(min(undisturbed), 2),
        "greatest undisturbed": round(max(undisturbed), 2),
        "mean undisturbed": round(statistics.mean(undisturbed), 2),
        "interval from": round(least, 2),
        "interval to": round(most, 2),
        "random": round(chance, 2),
    }


async def _undisturbed(struck: StruckRig, seed: int) -> float:
    """The greedy return of the job with this seed if nothing befalls it."""
    rig = replace(struck.rig, document={**struck.rig.document, "seed": seed})
    job = await rig.submit(f"undisturbed-{seed}", struck.rounds)
    await job.succeeded()
    return _greedy_return(job)


def _greedy_return(job: Disturbed) -> float:
    """Mean greedy return per agent of its last version."""
    newest = job.records()[-1].newest_evaluation
    assert newest, f"{job.name} was not evaluated"
    return newest.mean


async def _kill_at_random(
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
