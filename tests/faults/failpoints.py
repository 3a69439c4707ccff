"""R2: a process is killed right before and right after each durable write."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

from bench.harness import percentile
from marless.core import failpoint
from marless.core.errors import ConflictError, FencedError
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.security import Security
from tests.faults.rig import CHECKPOINT_EVERY, Disturbed, Rig
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

ONCE_A_LIFE = ("coordinator.take_over", "coordinator.epoch", "coordinator.status")
"""Places that a coordinator passes when it takes a job over, and not in every round."""
ON_LOSS = ("coordinator.drop", "coordinator.restore", "coordinator.cut")
"""Places that it passes when the store has lost the job."""
ON_SUBMIT = ("coordinator.spec", "coordinator.status")
AT_THE_END = ("coordinator.machines",)
IN_ROUNDS = ("coordinator.pending", "coordinator.carry", "coordinator.record", "coordinator.checkpoint")
AGGREGATING = ("param_store.aggregate",)
"""Places that stores pass for asynchronous jobs."""
ELSEWHERE = ("actor.carry", "learner.publish", "param_store.publish")


def of(places: Sequence[str]) -> list[str]:
    """The failpoints at these places."""
    return [name for name in failpoint.NAMES if name.rpartition(".")[0] in places]


def _plan(rng: random.Random, places: Sequence[str], kills: int) -> list[str]:
    """So many failpoints at these places, in random order, each about as often as the others."""
    plan: list[str] = []
    while len(plan) < kills:
        plan += rng.sample(of(places), len(of(places)))
    return plan[:kills]


async def around_writes(struck: StruckRig, kills: str) -> Figures:
    """Kill the coordinator at every failpoint that a round or a restart passes, "each" once or so many times in all."""
    rng, places = struck.rng, IN_ROUNDS + ONCE_A_LIFE
    names = _plan(rng, places, len(of(places)) if kills == "each" else int(kills))
    plan = [name if name.rpartition(".")[0] in ONCE_A_LIFE else f"{name}:{rng.randint(1, 3)}" for name in names]
    job = await struck.submit()
    await job.rounds(1)
    deaths = await _killed(job, plan)
    await job.succeeded()
    return {"kills": len(plan), "rounds lost or doubled": 0, "rounds trained twice": 0} | _seconds(job, deaths)


async def as_it_restores(struck: StruckRig, kills: str) -> Figures:
    """Have the store lose the job, and kill the coordinator at every failpoint of putting the checkpoint back."""
    deaths, job = [], await struck.submit()
    peer = Peer(struck.rig.stack.address("param_store"), Security())
    await job.rounds(CHECKPOINT_EVERY)
    for name in _plan(struck.rng, ON_LOSS, int(kills)):
        await job.rounds(2)
        deaths += await _killed(job, [name], lose=partial(_lose, ParamStore(peer), job, "drop" in name))
    await peer.close()
    await job.succeeded()
    return {"kills": int(kills), "rounds lost or doubled": 0} | _seconds(job, deaths)


async def as_it_accepts(struck: StruckRig, kills: str) -> Figures:
    """Kill the coordinator while it takes a job in, and while it ends one; the client repeats its request. The job runs
    once.
    """
    rig = struck.rig
    for name in _plan(struck.rng, ON_SUBMIT + AT_THE_END, int(kills)):
        await rig.restart("coordinator", MARLESS_FAILPOINT=name)
        before = rig.stack.restarts["coordinator"]
        await (await struck.submit()).succeeded()
        assert rig.stack.restarts["coordinator"] == before + 1, f"{name} was not reached"
    return {"kills": int(kills), "jobs lost or doubled": 0}


async def elsewhere(struck: StruckRig, kills: str, *, name: str) -> Figures:
    """Kill an actor or learner worker, or the store, at this failpoint in one of its first publishes; and again."""
    service = {"actor": "actor_pool", "learner": "learner_pool"}.get(name.partition(".")[0], "param_store")
    deaths = _store_deaths if service == "param_store" else partial(_worker_deaths, service)
    rig, job = struck.rig, await struck.submit()
    for _ in range(int(kills)):
        await job.rounds(1)
        # Not in its first publish: the worker that comes after it would die in its first one too, and so on.
        struck.excused |= await _restarted(job, service, MARLESS_FAILPOINT=f"{name}:{struck.rng.randint(2, 4)}")
        before = deaths(rig)
        await job.until(lambda before=before: deaths(rig) > before)
    await job.rounds(1)  # else the restart would excuse that the round of the last death is trained again
    struck.excused |= await _restarted(job, service)
    await job.succeeded()
    twice = [number for number, count in job.trainings().items() if count > 1]
    return {"kills": int(kills), "rounds trained again": len(twice)}


async def at_aggregations(struck: StruckRig, kills: str) -> Figures:
    """Kill the store around the transactions that make versions out of several gradients, so many times in all.

    Before the transaction the versions are computed, and are lost; after it they are published, and nobody was told.
    """
    rig, store, names = struck.rig, "param_store", of(AGGREGATING)
    job = await struck.submit()
    for number in range(int(kills)):
        await job.rounds(1)
        await rig.restart(store, MARLESS_FAILPOINT=f"{names[number % len(names)]}:{struck.rng.randint(1, 3)}")
        before = rig.stack.restarts[store]
        await job.until(lambda before=before: rig.stack.restarts[store] > before)
    await job.succeeded()
    made = [record.aggregation for record in job.records() if record.aggregation]
    assert min(len(each.gradients) for each in made) > 1, "a version is made of one gradient"
    counts = {"kills": int(kills), "versions": struck.rounds, "applied twice": 0}
    return counts | {"rollouts and gradients lost": made[-1].lost}


async def _restarted(job: Disturbed, service: str, **environment: str) -> set[int]:
    """Kill a service to start the next one; the round whose update that may have cut off, which is trained again if the
    learner pool was killed before it had published the update.
    """
    await job.rig.restart(service, **environment)
    return set(job.trainings()) - {each.round for each in job.records()} if service == "learner_pool" else set()


def _worker_deaths(service: str, rig: Rig) -> int:
    return rig.log(service).count('"worker.ended"')


def _store_deaths(rig: Rig) -> int:
    return rig.stack.restarts["param_store"]


async def _lose(store: ParamStore, job: Disturbed, leftover: bool) -> None:
    """Have the store forget the job, or all of it but some older version."""
    while True:
        await store.delete_job(job.name)
        if not leftover:
            return
        epoch = await store.acquire_epoch(job.name, f"leftover/{secrets.token_hex(4)}")
        write = PolicyWrite("agent_0", 0, "leftover", {"acting": b"old"})
        with suppress(ConflictError, FencedError):  # the coordinator was faster
            await store.publish(job.name, epoch, 0, [write])
            return


async def _killed(
    job: Disturbed, plan: Sequence[str], *, lose: Callable[[], Awaitable[None]] | None = None
) -> list[float]:
    """Start coordinators that each die at the next failpoint of the plan; returns when they did, Unix time.

    `lose` is called once such a coordinator runs.
    """
    deaths = []
    stack = job.rig.stack
    await job.rig.restart("coordinator", MARLESS_FAILPOINT=plan[0])
    first = stack.restarts["coordinator"]
    for number in range(1, len(plan) + 1):
        if number < len(plan):
            stack.prepare("coordinator", MARLESS_FAILPOINT=plan[number])
        if lose:
            await lose()
        await job.until(lambda number=number: stack.restarts["coordinator"] == first + number)
        deaths.append(time.time())
    return deaths


def _seconds(job: Disturbed, deaths: Sequence[float]) -> dict[str, float]:
    """From each death to the next record; those that the next coordinator died before are left out."""
    ends = [record.ended_s for record in job.records()]
    nexts = [next((end_s for end_s in ends if end_s > death_s), math.inf) for death_s in deaths]
    took = [
        end_s - death_s
        for death_s, end_s, again_s in zip(deaths, nexts, [*deaths[1:], math.inf], strict=True)
        if end_s < again_s
    ]
    return {"recovery p95 (s)": round(percentile(took, 95), 2), "slowest (s)": round(max(took), 2)}
