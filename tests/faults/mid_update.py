"""R2, in mid-update: the coordinator is killed while learners compute. Its successor takes over what they compute, and
nothing is trained twice, whenever the new epoch begins: before, between or after the publishes of the update's scopes.

Updates take as long as the scenario wants: the witness holds them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from tests.faults import remembering
from tests.faults.pools import DOCUMENT
from tests.faults.results import Result, result_of, same
from tests.faults.rig import Disturbed, Rig

MOMENTS = ("fenced", "half", "published", "twice", "between")
"""What the update is held until: the successor's epoch has begun; so, after one of two scopes was published; the death
of the coordinator, so that it publishes all under the old epoch; the successor's successor's epoch has begun; and so,
where the first successor dies before it has opened the job."""
ADOPTED = ("fenced", "half", "twice", "between")
TWO_SCOPES = DOCUMENT | {"name": "two-scopes", "env": {"name": "mpe/simple_adversary", "options": {"max_cycles": 5}}}
Figures = Mapping[str, float]


@dataclass(frozen=True)
class Subject:
    """A job to be disturbed, and what it comes to when it is not."""

    rig: Rig
    scopes: int
    reference: Result


async def of_two_scopes(rig: Rig, rounds: int) -> Subject:
    """A job whose agents are of two classes, each with a learner of its own."""
    rig = replace(rig, document=TWO_SCOPES)
    job = await rig.submit(f"whole-{rounds}", rounds)
    await job.succeeded()
    assert set(job.trainings().values()) == {2}
    return Subject(rig, 2, result_of(job))


async def that_remembers(rig: Rig, rounds: int) -> Subject:
    """A job that learns from a replay, whose groups change."""
    rig, reference = await remembering.prepared(rig, rounds)
    return Subject(rig, 1, reference)


async def run(
    subject: Subject, seed: int, moments: Sequence[str], *, times: int, rounds: int, update_s: float = 0.0
) -> Figures:
    """Kill the coordinator so many times in updates that take `update_s`, after a third of it, at each of these moments
    in turn. Raises AssertionError if an update is computed again, or anything differs; returns counts.
    """
    rig, rng = subject.rig, random.Random(seed)
    adopted = _adopted(rig)
    job = await rig.submit(f"mid-update-{seed}-{moments[0]}", rounds)
    peer = Peer(rig.stack.address("param_store"), Security())
    kills = expected = 0
    try:
        for moment in islice(cycle(moments), times):
            await job.rounds(rng.randint(1, 2))
            kills += await _kill(job, ParamStore(peer), moment, subject.scopes, update_s)
            expected += moment in ADOPTED
        await job.succeeded()
    finally:
        rig.release()
        await peer.close()
    same(job, subject.reference)
    assert set(job.trainings().values()) == {subject.scopes}, f"trained twice: {job.trainings()}"
    adopted = _adopted(rig) - adopted
    assert adopted == expected, f"{adopted} of {expected} updates were taken over"
    return {"kills": kills, "rounds lost or doubled": 0, "rounds trained twice": 0, "updates taken over": adopted}


async def _kill(job: Disturbed, store: ParamStore, moment: str, scopes: int, update_s: float) -> int:
    """Hold the next update, kill its coordinator, and let the update go on; returns how many coordinators died."""
    rig = job.rig
    noted = job.trainings().total()
    held = (noted // scopes + 2) * scopes if moment == "half" else noted + 2  # the next one may be under way
    rig.hold(held)
    await job.until(lambda: job.trainings().total() >= held)
    await asyncio.sleep(update_s / 3)
    epoch = (await store.list(job.name)).epoch
    doomed = {"MARLESS_FAILPOINT": "coordinator.epoch.after"} if moment == "between" else {}
    deaths = rig.stack.restarts["coordinator"]
    await rig.restart("coordinator", **doomed)
    if doomed:
        rig.stack.prepare("coordinator")
        await job.until(lambda: rig.stack.restarts["coordinator"] > deaths + 1)
    if moment == "twice":
        await _epoch_after(job, store, epoch)
        await rig.restart("coordinator")
    if moment != "published":
        await _epoch_after(job, store, epoch + (moment in ("twice", "between")))
        await asyncio.sleep(update_s * 2 / 3)
    rig.release()
    await job.rounds(1)
    return rig.stack.restarts["coordinator"] - deaths


async def _epoch_after(job: Disturbed, store: ParamStore, epoch: int) -> None:
    async with asyncio.timeout(60.0):
        while (await store.list(job.name)).epoch <= epoch:  # noqa: ASYNC110  # another process's doing
            await asyncio.sleep(0.01)


def _adopted(rig: Rig) -> int:
    return rig.log("learner_pool").count('"update.not_repeated"')
