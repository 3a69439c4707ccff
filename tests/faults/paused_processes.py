"""R7, end to end: two coordinators look after one runs directory. The one that runs the job is paused for longer than
its lease and wakes up; so is a learner worker whose pool is killed meanwhile, and which the next pool ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psutil

from tests.faults.rig import LEASE_S, WITNESS, Disturbed, Rig
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

STOP_S = 30.0


async def strike(struck: StruckRig, times: str) -> Figures:
    """Pause coordinators and learners in turn, each so often; raises AssertionError if a coordinator that was replaced
    does not notice. Returns counts and seconds.
    """
    rig, rng, taken_over_s = struck.rig, struck.rng, []
    fenced = _fenced(rig)
    job = await struck.submit()
    await job.rounds(2)
    async with second_coordinator(rig) as second:
        owners = [*rig.processes("coordinator"), psutil.Process(second)]
        for _ in range(int(times)):
            await job.rounds(rng.randint(1, 3))
            taken_over_s.append(await _pause(job, owners[0]))
            owners.reverse()
            await job.rounds(rng.randint(1, 3))
            await _orphan_a_worker(job, rng)
        await job.succeeded()
        fenced = _fenced(rig) - fenced
    assert fenced == int(times), f"{fenced} of {times} noticed that they had lost the job"
    counts = {"pauses": 2 * int(times), "zombies refused": fenced}
    return counts | {"taken over after at most (s)": round(max(taken_over_s), 2)}


async def _pause(job: Disturbed, owner: psutil.Process) -> float:
    """Pause the owner until the other has recorded a round; returns the seconds that took."""
    owner.suspend()
    paused_s = time.time()
    try:
        return await job.recorded_after(paused_s) - paused_s
    finally:
        owner.resume()


async def _orphan_a_worker(job: Disturbed, rng: random.Random) -> None:
    """Pause a learner worker, take its pool away, and wake up what is left of it when the job goes on without it."""
    workers = job.rig.workers("learner_pool")
    if not workers:
        return
    worker = rng.choice(workers)
    with suppress(psutil.NoSuchProcess):
        worker.suspend()
        killed_s = time.time()
        await job.rig.restart("learner_pool")
        try:
            await job.recorded_after(killed_s)
        finally:
            worker.resume()


def _fenced(rig: Rig) -> int:
    """How often a coordinator has noticed that another has its job."""
    names = [path.stem for path in (rig.place / "logs").glob("*.log") if path.stem in ("coordinator", "second")]
    return sum(rig.log(name).count('"job.taken_over"') for name in names)


@asynccontextmanager
async def second_coordinator(rig: Rig, pythonpath: str = str(WITNESS)) -> AsyncIterator[int]:
    """Another coordinator of the same runs directory; yields its process id."""
    environment = {
        "PYTHONPATH": pythonpath,
        "MARLESS_LEASE_S": f"{LEASE_S}",
        "MARLESS_RUNS": str(rig.place / "runs"),
        **{
            f"MARLESS_{name.upper()}": rig.stack.address(name) for name in ("actor_pool", "learner_pool", "param_store")
        },
    }
    with (rig.place / "logs" / "second.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "marless.services.coordinator",
            "--listen",
            f"unix:{rig.place}/second.sock",
            "--exit-with-stdin",
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )
    try:
        yield process.pid
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), STOP_S)
