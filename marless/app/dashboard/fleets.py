"""The page of the fleet: services, workers by launcher and host, memory, and machines that are being drained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marless.app.dashboard.timeline import workers_of
from marless.core.errors import MarlessError
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import actor_pool_pb2 as pb
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub

if TYPE_CHECKING:
    from marless.app.client import Job
    from marless.app.dashboard.sources import JobSource

RECENT_ROUNDS = 20
"""Rounds of each running job in which its workers are looked for."""
MOST_JOBS = 16
ASK_S = 2.0
_ACTORS = "actor_pool"


async def fleet(source: JobSource, jobs: Sequence[Job], security: Security) -> dict[str, Any]:  # Any: JSON
    """The fleet as JSON: what services answer, and what the newest records of the newest jobs show.

    Only the actor pool lists its workers, and on several hosts only to an operator: `problems` says what is missing.
    """
    problems: list[str] = []
    services, live, queued = await _asked(source, security, problems)
    workers: dict[str, dict[str, Any]] = {}
    machines: dict[tuple[str, str], dict[str, Any]] = {}
    running = [job for job in jobs if not job.state.ended] or list(jobs[:1])
    for job in running[:MOST_JOBS]:
        try:
            records = await source.records(job.job, max(job.rounds - RECENT_ROUNDS, 0), RECENT_ROUNDS)
        except MarlessError as error:
            problems.append(str(error))
            continue
        for worker in workers_of(records):
            seen = workers.setdefault(worker["worker"], worker | {"jobs": []})
            seen["jobs"].append(job.job)
        for record in records:
            for each in record.machines:
                known = machines.setdefault((each.id, each.pool), {})
                known |= {name: value for name, value in vars(each).items() if value not in ("", None, 0.0)}
                known |= {"released": each.released, "held": each.held}
    for name, told in live.items():
        workers.setdefault(name, {"worker": name, "pool": "actor", "jobs": []}).update(told)
    return {
        "services": services,
        "workers": list(workers.values()),
        "machines": list(machines.values()),
        "queued": queued,
        "problems": problems,
    }


async def _asked(
    source: JobSource, security: Security, problems: list[str]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]], int | None]:  # Any: JSON
    """The services, the actor workers that are connected now, and how many actors wait for one."""
    info = await source.info()
    if info is None:
        return [], {}, None
    services = [vars(each) for each in info.services]
    pool = next((each for each in info.services if each.name == _ACTORS), None)
    if pool is None:
        return services, {}, None
    peer = Peer(pool.address, security.towards(pool.address))
    try:
        async with asyncio.timeout(ASK_S):
            stub = ActorPoolServiceStub(peer.channel)
            answer = await peer.call(stub.ListWorkers, pb.ListWorkersRequest(), timeout_s=ASK_S)
    except (MarlessError, TimeoutError) as error:
        problems.append(f"the actor pool does not list its workers: {error or 'no answer'}")
        return services, {}, None
    finally:
        await peer.close()
    live = {
        each.worker: {"host": each.host, "pid": each.pid, "busy": each.busy, "served": each.invocations}
        for each in answer.workers
    }
    return services, live, answer.queued
