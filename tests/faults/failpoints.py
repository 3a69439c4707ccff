"""R2: a process is killed right before and right after each durable write. The job goes on in the round that it was in,
and trains no round twice.
"""

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
from tests.faults.results import Result, same, undisturbed
from tests.faults.rig import CHECKPOINT_EVERY, Disturbed, Rig

ONCE_A_LIFE = ("coordinator.take_over", "coordinator.epoch", "coordinator.status")
"""Places that a coordinator passes when it takes a job over, and not in every round."""
ON_LOSS = ("coordinator.drop", "coordinator.restore", "coordinator.cut")
"""Places that it passes when the store has lost the job."""
ON_SUBMIT = ("coordinator.spec", "coordinator.status")
AT_THE_END = ("coordinator.machines",)
IN_ROUNDS = ("coordinator.pending", "coordinator.carry", "coordinator.record", "coordinator.checkpoint")
AGGREGATING = ("param_store.aggregate",)
"""Places that asynchronous jobs pass; `asynchronous_kills.at_aggregations` kills stores there."""
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


async def in_rounds(rig: Rig, seed: int, *, kills: int, rounds: int, reference: Result) -> dict[str, float]:
    """Kill the coordinator at every failpoint that a round or a restart passes, so many times in all.

    Raises AssertionError if a round is lost or trained twice, or the result differs; returns counts and seconds.
    """
    rng = random.Random(seed)
    names = _plan(rng, IN_ROUNDS + ONCE_A_LIFE, kills)
    plan = [name if name.rpartition(".")[0] in ONCE_A_LIFE else f"{name}:{rng.randint(1, 3)}" for name in names]
    job = await rig.submit(f"failpoints-{seed}", rounds)
    await job.rounds(1)
    deaths = await _killed(job, plan)
    await job.succeeded()
    same(job, reference)
    assert set(job.trainings().values()) == {1}, "a round was trained twice"
    return {"kills": kills, "rounds lost or doubled": 0, "rounds trained twice": 0} | _seconds(job, deaths)


async def on_loss(rig: Rig, seed: int, *, kills: int, rounds: int, reference: Result) -> dict[str, float]:
    """Have the store lose the job, and kill the coordinator at every failpoint of putting the checkpoint back."""
    plan = _plan(random.Random(seed), ON_LOSS, kills)
    deaths = []
    job = await rig.submit(f"loss-{seed}", rounds)
    peer = Peer(rig.stack.address("param_store"), Security())
    await job.rounds(CHECKPOINT_EVERY)
    for name in plan:
        await job.rounds(2)
        deaths += await _killed(job, [name], lose=partial(_lose, ParamStore(peer), job, "drop" in name))
    await peer.close()
    await job.succeeded()
    same(job, reference)
    return {"kills": kills, "rounds lost or doubled": 0} | _seconds(job, deaths)


async def on_submit(rig: Rig, seed: int, *, kills: int) -> dict[str, float]:
    """Kill the coordinator while it takes a job in, and while it ends one; the client repeats its request. The job runs
    once.
    """
    reference = await undisturbed(rig, CHECKPOINT_EVERY)
    for number, name in enumerate(_plan(random.Random(seed), ON_SUBMIT + AT_THE_END, kills)):
        await rig.restart("coordinator", MARLESS_FAILPOINT=name)
        before = rig.stack.restarts["coordinator"]
        job = await rig.submit(f"submitted-{seed}-{number}", CHECKPOINT_EVERY)
        await job.succeeded()
        assert rig.stack.restarts["coordinator"] == before + 1, f"{name} was not reached"
        same(job, reference)
    return {"kills": kills, "jobs lost or doubled": 0}


async def elsewhere(rig: Rig, seed: int, name: str, *, kills: int, rounds: int, reference: Result) -> dict[str, float]:
    """Kill an actor or learner worker, or the store, at this failpoint in one of its first publishes; and again."""
    rng = random.Random(seed)
    service = {"actor": "actor_pool", "learner": "learner_pool"}.get(name.partition(".")[0], "param_store")
    deaths = _store_deaths if service == "param_store" else partial(_worker_deaths, service)
    job = await rig.submit(f"{service.replace('_', '-')}-{name.rpartition('.')[2]}-{seed}", rounds)
    cut_off: set[int] = set()
    for _ in range(kills):
        await job.rounds(1)
        # Not in its first publish: the worker that comes after it would die in its first one too, and so on.
        cut_off |= await _restarted(job, service, MARLESS_FAILPOINT=f"{name}:{rng.randint(2, 4)}")
        before = deaths(rig)
        await job.until(lambda before=before: deaths(rig) > before)
    await job.rounds(1)  # else the restart would excuse that the round of the last death is trained again
    cut_off |= await _restarted(job, service)
    await job.succeeded()
    same(job, reference)
    twice = {number for number, count in job.trainings().items() if count > 1}
    assert name == "learner.publish.before" or twice <= cut_off, f"rounds {twice - cut_off} were trained twice"
    return {"kills": kills, "rounds trained again": len(twice)}


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
