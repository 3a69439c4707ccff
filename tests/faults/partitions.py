"""R8: the line between two services is cut for a while, one after another. Nobody decides anything twice, and soon
after the line is whole again the job goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from marless.app.cli.stack import socket_directory
from marless.services.param_store import redis_server
from marless.services.param_store.redis_server import RedisOptions
from tests.faults.proxy import BLACKHOLE, HEALTHY, Proxy
from tests.faults.rig import Disturbed, data_of, running_rig
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

LINKS = (
    ("coordinator", "actor_pool"),
    ("coordinator", "learner_pool"),  # and actors to the learner pool, whose address they have from the coordinator
    ("coordinator", "param_store"),
    ("actor_pool", "param_store"),  # of its workers
    ("learner_pool", "param_store"),  # of its workers too
    ("param_store", "redis"),
)
HEALED_S = 10.0
UNDER_WAY = 2
"""Rounds that may still be recorded once a line is cut: the present one, and one that needs nothing from it."""


async def strike(struck: StruckRig, lengths_s: str) -> Figures:
    """Cut each line for each of these lengths, "1+5+30", once holding what was sent and once losing it.

    Raises AssertionError if the job does not go on in time.
    """
    progress_s = []
    async with _lines(struck.place) as (lines, of_service), running_rig(struck.place, of_service) as rig:
        job = await struck.submit(replace(rig, document=struck.rig.document))
        for number, length_s in enumerate(map(float, lengths_s.split("+"))):
            for between, line in lines.items():
                lost = (number + len(progress_s)) % 2 == 0
                progress_s.append(await _partition(job, between, line, length_s, lost=lost))
                assert progress_s[-1] <= HEALED_S, f"{between}: {progress_s[-1]:.1f} s without progress"
        await job.succeeded()
    return {
        "partitions": len(progress_s),
        "rounds lost or doubled": 0,
        "progress after at most (s)": round(max(progress_s), 2),
    }


async def _partition(job: Disturbed, between: str, line: Proxy, length_s: float, *, lost: bool) -> float:
    """Cut a line, make it whole again; returns the seconds until the next record after that."""
    await job.rounds(2)
    await line.behave(BLACKHOLE)
    cut = len(job.records())
    await asyncio.sleep(length_s)
    assert len(job.records()) <= cut + UNDER_WAY, f"the job went on as if {between} was whole"
    assert not job.over(), "the job is too short"
    if lost:
        line.reset()
    await line.behave(HEALTHY)
    healed_s = time.time()
    return await job.recorded_after(healed_s) - healed_s


@asynccontextmanager
async def _lines(place: Path) -> AsyncIterator[tuple[Mapping[str, Proxy], Mapping[str, Mapping[str, str]]]]:
    """A proxy for each link, and the variables that lead each service to its own."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server.provided(RedisOptions(data_dir=str(place / "external"))))
        targets = {"redis": f"unix:{redis.url.removeprefix('unix://')}"}
        lines: dict[str, Proxy] = {}
        of_service: dict[str, dict[str, str]] = {}
        for caller, callee in LINKS:
            target = targets.get(callee) or f"unix:{socket_directory(data_of(place)) / callee}.sock"
            listen = place / f"{caller[:5]}-{callee[:5]}.sock"
            line = lines[f"{caller} → {callee}"] = await stack.enter_async_context(Proxy(target, f"unix:{listen}"))
            user = f"{redis.username}:{redis.password}"
            name, address = (
                ("REDIS_URL", f"unix://{user}@{listen}") if callee == "redis" else (callee.upper(), line.address)
            )
            of_service.setdefault(caller, {})[f"MARLESS_{name}"] = address
        yield lines, of_service
