"""R2, in mid-update: the coordinator is killed while learners compute. Its successor takes over what they compute,
whenever the new epoch begins: before, between or after the publishes of the update's scopes.

Updates take as long as the scenario wants: the witness holds them.
"""

from __future__ import annotations

import asyncio
from itertools import cycle, islice

from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore
from marless.rpc.security import Security
from tests.faults.jobs import SCOPES
from tests.faults.rig import Disturbed, Rig
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

MOMENTS = ("fenced", "half", "published", "twice", "between")
"""What the update is held until: the successor's epoch has begun; so, after one of two scopes was published; the death
of the coordinator, so that it publishes all under the old epoch; the successor's successor's epoch has begun; and so,
where the first successor dies before it has opened the job."""
ADOPTED = ("fenced", "half", "twice", "between")
UPDATE_S = 6.0
"""How long updates take where every moment has its turn."""


async def strike(struck: StruckRig, what: str) -> Figures:
    """Kill the coordinator in updates, after a third of them. `what` says at which moments, "half+twice"; or how often,
    at every moment in turn, in updates of six seconds.

    Raises AssertionError if a successor does not take over what was computed; returns counts.
    """
    every = what.isdecimal()
    moments = list(islice(cycle(MOMENTS), int(what))) if every else what.split("+")
    update_s = UPDATE_S if every else 0.0
    rig, adopted = struck.rig, _adopted(struck.rig)
    job = await struck.submit()
    scopes = SCOPES.get(struck.cell.job, 1)
    peer = Peer(rig.stack.address("param_store"), Security())
    kills = expected = 0
    try:
        for moment in moments:
            await job.rounds(struck.rng.randint(1, 2))
            kills += await _kill(job, ParamStore(peer), moment, scopes, update_s)
            expected += moment in ADOPTED
        await job.succeeded()
    finally:
        rig.release()
        await peer.close()
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
    died = rig.stack.restarts["coordinator"] - deaths
    assert died == 1 + (moment in ("twice", "between")), f"{moment}: {died} coordinators have died"
    return died


async def _epoch_after(job: Disturbed, store: ParamStore, epoch: int) -> None:
    async with asyncio.timeout(60.0):
        while (await store.list(job.name)).epoch <= epoch:  # noqa: ASYNC110  # another process's doing
            await asyncio.sleep(0.01)


def _adopted(rig: Rig) -> int:
    return rig.log("learner_pool").count('"update.not_repeated"')
