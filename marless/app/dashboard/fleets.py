"""The page of the fleet: services, and for both pools the workers by launcher and host, machines, memory and drains;
and the invocations of some rounds as a timeline: who ran what, when, and how long it waited or started.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marless.core.errors import MarlessError
from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.usage import HOST, WHOLE
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import common_pb2 as pb
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.learner_pool_pb2_grpc import LearnerPoolServiceStub

if TYPE_CHECKING:
    from marless.app.client import Job
    from marless.app.dashboard.hub import Hub
    from marless.app.dashboard.sources import JobSource

RECENT_ROUNDS = 20
"""Rounds of each running job in which its workers are looked for."""
MOST_JOBS = 16
ASK_S = 2.0
EVERY_S = 0.9
"""Seconds for which an answer serves all pages, which ask every second."""
RECORDS_S = 5.0
"""The same of what records show."""
Told = dict[str, Any]  # Any: JSON
Recorded = tuple[Mapping[str, Told], Mapping[tuple[str, str], Told], Sequence[str]]
"""Workers by name, machines by id and pool, and what cannot be read."""
_STUBS = {"actor_pool": ActorPoolServiceStub, "learner_pool": LearnerPoolServiceStub}


class FleetView:
    """The fleet as JSON: what the pools answer, and what the newest records of the newest jobs add.

    A pool that answers has the workers that it lists. Of one that does not, `problems` says why, and its workers are
    those of the records. On several hosts, pools answer an operator only. All pages together ask once a second.
    """

    def __init__(self, hub: Hub, security: Security) -> None:
        self._hub = hub
        self._security = security
        self._asking = asyncio.Lock()
        self._found: Told = {}
        self._found_s = self._recorded_s = -math.inf
        self._recorded: Recorded = {}, {}, ()

    async def json(self) -> Told:
        """The fleet now, or as it was less than `EVERY_S` ago."""
        async with self._asking:
            if time.monotonic() - self._found_s >= EVERY_S:
                self._found = await self._look()
                self._found_s = time.monotonic()
            return self._found

    async def _look(self) -> Told:
        source = self._hub.source
        if time.monotonic() - self._recorded_s >= RECORDS_S:
            self._recorded = await _recorded(source, (await self._hub.jobs()).jobs)
            self._recorded_s = time.monotonic()
        seen, of_records, told = self._recorded
        info, problems, machines = await source.info(), list(told), dict(of_records)
        # What each pool answers, by its name; without those that do not.
        addresses = {each.name: each.address for each in (info.services if info else ()) if each.name in _STUBS}
        found = await asyncio.gather(*(_ask(name, at, self._security) for name, at in addresses.items()))
        problems += [each for each in found if isinstance(each, str)]
        answers = {name: each for name, each in zip(addresses, found, strict=True) if not isinstance(each, str)}
        pools = {name.removesuffix("_pool"): answer for name, answer in answers.items()}
        for pool, answer in pools.items():
            for each in answer.machines:
                key = each.machine.id, pool
                machines[key] = machines.get(key, {}) | _machine(pool, answer, each)
        live = [each for pool, answer in pools.items() for each in _live(pool, answer, seen)]
        return {
            "services": [vars(each) for each in info.services] if info else [],
            "pools": [_pool(name, answer) for name, answer in answers.items()],
            "workers": live + [each for each in seen.values() if each["pool"] not in pools],
            "machines": list(machines.values()),
            "problems": problems,
        }


async def _recorded(source: JobSource, jobs: Sequence[Job]) -> Recorded:
    """What the newest rounds of running jobs, or of the newest job, show."""
    problems: list[str] = []
    workers: dict[str, Told] = {}
    machines: dict[tuple[str, str], Told] = {}
    running = [job for job in jobs if not job.state.ended] or list(jobs[:1])
    for job in running[:MOST_JOBS]:
        try:
            records = await source.records(job.job, max(job.rounds - RECENT_ROUNDS, 0), RECENT_ROUNDS)
        except MarlessError as error:
            problems.append(str(error))
            continue
        for worker in workers_of(records):
            workers.setdefault(worker["worker"], worker | {"jobs": []})["jobs"].append(job.job)
        for record in records:
            for each in record.machines:
                known = machines.setdefault((each.id, each.pool), {})
                known |= {name: value for name, value in vars(each).items() if value not in ("", None, 0.0)}
                known |= {"released": each.released, "held": each.held}
    return workers, machines, problems


async def _ask(name: str, address: str, security: Security) -> pb.ListWorkersResponse | str:
    """The answer of a pool, or why there is none."""
    peer = Peer(address, security.towards(address))
    try:
        async with asyncio.timeout(ASK_S):
            stub = _STUBS[name](peer.channel)
            return await peer.call(stub.ListWorkers, pb.ListWorkersRequest(), timeout_s=ASK_S)
    except (MarlessError, TimeoutError) as error:
        return f"the {name.replace('_', ' ')} does not list its workers: {error or 'no answer'}"
    finally:
        await peer.close()


def _live(pool: str, answer: pb.ListWorkersResponse, seen: Mapping[str, Told]) -> list[Told]:
    """The workers that are connected to a pool, with what records know of them."""
    listed = [*answer.workers, *([answer.background] if answer.HasField("background") else [])]
    found = []
    for each in listed:
        told = {
            "worker": each.worker,
            "pool": pool,
            "launcher": answer.launcher,
            "host": each.host,
            "machine": each.machine,
            "device": each.device,
            "busy": each.busy,
            "drain": each.drain,
            "served": each.invocations,
            "memory_bytes": each.memory_bytes or seen.get(each.worker, {}).get("memory_bytes", 0),
            "last_s": seen.get(each.worker, {}).get("last_s"),
            "jobs": [each.job] if each.job else [],
            "background": each.worker == answer.background.worker,
        }
        found.append(told)
    return found


def _pool(name: str, answer: pb.ListWorkersResponse) -> Told:
    return {
        "name": name,
        "launcher": answer.launcher,
        "workers": len(answer.workers),
        "busy": sum(each.busy for each in answer.workers),
        "draining": sum(bool(each.drain) for each in answer.workers),
        "starting": answer.starting,
        "limit": answer.limit,
        "room": answer.room if answer.HasField("room") else None,
        "queued": answer.queued,
        "refused": answer.refused,
    }


def _machine(pool: str, answer: pb.ListWorkersResponse, told: pb.MachineInfo) -> Told:
    machine = told.machine
    found: Told = {"id": machine.id, "pool": pool, "launcher": answer.launcher, "type": machine.type}
    if machine.vcpus:
        found["vcpus"] = machine.vcpus
    if machine.HasField("usd_h"):
        found["usd_h"] = machine.usd_h
    drained = sum(each.machine == machine.id and bool(each.drain) for each in answer.workers)
    return found | {
        "workers": told.workers,
        "tasks": told.tasks,
        "draining": bool(told.workers) and drained == told.workers,
        "released": False,
        "held": not told.workers,
    }


MOST_BARS = 1500
"""Invocations of one answer: more cannot be told apart on a screen."""
MOST_ROUNDS = 200


def timeline(records: Sequence[RoundRecord]) -> dict[str, Any]:  # Any: JSON
    """The whole invocations of these rounds, as many rounds as fit into MOST_BARS but at least one, as JSON.

    Functions inside a learner are left out: they have the times of the learner's passes. Seconds are from `origin_s`.
    """
    bars: list[dict[str, Any]] = []
    shown: list[RoundRecord] = []
    for record in records:
        found = [each for each in record.invocations if each.function in (HOST, *WHOLE)]
        if shown and len(bars) + len(found) > MOST_BARS:
            break
        shown.append(record)
        bars += [_bar(each, record.round) for each in found[:MOST_BARS]]
    origin_s = min([record.started_s for record in shown] + [bar["queued"] for bar in bars], default=0.0)
    for bar in bars:
        for name in ("queued", "start", "end"):
            bar[name] = round(bar[name] - origin_s, 6)
    return {
        "origin_s": origin_s,
        "bars": bars,
        "workers": workers_of(shown),
        "rounds": [
            {"round": each.round, "start": each.started_s - origin_s, "end": each.ended_s - origin_s} for each in shown
        ],
    }


def _bar(each: InvocationRecord, round_: int) -> dict[str, Any]:  # Any: JSON
    return {
        "round": round_,
        "worker": each.worker,
        "function": each.function,
        "name": each.name,
        "index": each.index,
        "attempt": each.attempt,
        "queued": each.queued_s,
        "start": each.start_s,
        "end": each.end_s,
        "cold": each.cold,
        "init": each.init_s,
        "vcpu_s": each.vcpu_s,
        "memory_bytes": each.memory_bytes,
    }


def workers_of(records: Iterable[RoundRecord]) -> list[dict[str, Any]]:  # Any: JSON
    """The workers of these rounds: pool, host and launcher, what they ran, and their memory at the last time."""
    launchers: dict[tuple[str, str], str] = {}
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        launchers |= {(each.id, each.pool): each.launcher for each in record.machines if each.launcher}
        for each in record.invocations:
            if each.function not in (HOST, *WHOLE):
                continue
            pool = "learner" if each.function == HOST else "actor"
            worker = found.setdefault(
                each.worker, {"worker": each.worker, "pool": pool, "invocations": 0, "cold": 0, "busy_s": 0.0}
            )
            worker["invocations"] += 1
            worker["cold"] += each.cold
            worker["busy_s"] += max(each.end_s - each.start_s, 0.0)
            worker |= {"machine": each.machine, "memory_bytes": each.memory_bytes, "last_s": each.end_s}
    for worker in found.values():
        worker["launcher"] = launchers.get((worker["machine"], worker["pool"]), "")
    return sorted(found.values(), key=lambda each: (each["pool"], each["machine"], _natural(each["worker"])))


def _natural(name: str) -> tuple[str, int, str]:
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :][:15] or 0), name
