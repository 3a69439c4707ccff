"""What befalls the jobs of the table of faults. Each fault ends with jobs that have succeeded all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import psutil

from marless.core.errors import UnreachableError
from marless.jobs.sections import StopSpec
from marless.rpc.param_store import PolicyWrite
from marless.storage.checkpoint import PARTS
from tests.faults import clocks, failpoints, job_kills, mid_update, partitions, paused_processes
from tests.faults.struck import Struck, StruckRig
from tests.faults.totals import Figures
from tests.integration.running import dying, restarted

LOST_IN = 3
"""The round in which a store loses half of what it has."""
POOL_TOO_IN = 4
"""The round in which a learner pool is restarted, where it is so once."""

Fault = Callable[[Struck, str], Awaitable[None]]
"""What befalls a job on services in this process; the table says at which moment."""
ProcessFault = Callable[[StruckRig, str], Awaitable[Figures]]
"""What befalls jobs on services that are processes; the table says how often, or at which moments."""


async def _killed(struck: Struck, when: str) -> None:
    place, _, passes = when.partition(":")
    await struck.killed(place, int(passes or 1))
    await struck.succeeded()


async def _killed_each_round(struck: Struck, when: str, *, pool_too: bool = False) -> None:
    """No coordinator lives long enough to have in memory what the next round needs."""
    kills, places = 0, when.split("+")
    for round_ in range(struck.rounds):
        if pool_too and round_ == POOL_TOO_IN:
            await restarted(struck.cluster, "learner_pool")()
        for place in places:
            if len(list(struck.folder.records())) > round_:
                break
            await struck.killed(place)
            kills += 1
    struck.interruptions.kill_at("nowhere")
    await struck.succeeded()
    assert struck.folder.read_status().resumes == kills >= struck.rounds * max(1, len(places) - 2)


async def _killed_in_restore(struck: Struck, when: str) -> None:
    """The store has lost one of two policies; the coordinator is killed while it puts both back."""

    async def lose_half() -> None:
        job, store = struck.folder.path.name, struck.cluster.store
        [half] = (await store.get(job, {"agent_0": 0}, PARTS)).values()
        await store.delete_job(job)
        await store.publish(job, 99, 0, [PolicyWrite("agent_0", 0, "half", half.blobs, half.version)])

    struck.interruptions.after("train", LOST_IN, lose_half, before=True)
    await _killed(struck, when)


async def _killed_and_lost(struck: Struck, when: str) -> None:
    place, _, passes = when.partition(":")
    await struck.killed(place, int(passes or 1))
    await struck.cluster.store.delete_job(struck.folder.path.name)
    await struck.succeeded()


async def _interrupted(struck: Struck, when: str, interrupt: Callable[[Struck], Awaitable[None]]) -> None:
    """`when` is "before-train:3", of the fourth call of `ServicePools.train`; or several of these, joined by "+"."""
    for each in when.split("+"):
        moment, call, number = each.replace(":", "-").split("-")
        struck.interruptions.after(call, int(number), partial(interrupt, struck), before=moment == "before")
    await struck.succeeded()


async def _restart(struck: Struck, service: str) -> None:
    await restarted(struck.cluster, service)()


async def _restart_and_lose(struck: Struck, service: str) -> None:
    await restarted(struck.cluster, service)()
    raise UnreachableError(f"{service}: the answer was lost")


async def _lose_the_job(struck: Struck) -> None:
    await struck.cluster.store.delete_job(struck.folder.path.name)


async def _kill_learners(struck: Struck) -> None:
    for process in psutil.Process().children(recursive=True):
        line = " ".join(process.cmdline())
        if "marless.services.learner_pool.worker" in line and str(struck.cluster.folder) in line:
            os.kill(process.pid, signal.SIGKILL)


async def _dying(struck: Struck, when: str, pool: str) -> None:
    """Each worker of the pool dies at this failpoint."""
    async with dying(struck.cluster, pool, when):
        await struck.succeeded()


async def _resumed(struck: Struck, when: str) -> None:
    """The job ends after so many rounds, and goes on to as many as it would have had."""
    whole = struck.folder.load()[0]
    struck.folder.write_spec(whole.model_copy(update={"stop": StopSpec.model_validate({"rounds": int(when)})}))
    await struck.succeeded()
    assert struck.folder.own()
    struck.folder.write_spec(whole)
    await struck.succeeded()


def _by_service(name: str, interrupt: Callable[[Struck, str], Awaitable[None]]) -> dict[str, Fault]:
    return {
        f"{service} {name}": partial(_interrupted, interrupt=partial(interrupt, service=service))
        for service in ("actor_pool", "learner_pool", "param_store")
    }


OVER_AND_OVER = "coordinator killed over and over in each round"
FAULTS: Mapping[str, Fault] = {
    "coordinator killed": _killed,
    "coordinator killed, store loses the job": _killed_and_lost,
    "coordinator killed while half a checkpoint is restored": _killed_in_restore,
    OVER_AND_OVER: _killed_each_round,
    f"{OVER_AND_OVER}, learner_pool once": partial(_killed_each_round, pool_too=True),
    **_by_service("restarted", _restart),
    **_by_service("restarted, its answer lost", _restart_and_lose),
    "store loses the job": partial(_interrupted, interrupt=_lose_the_job),
    "learner_pool workers killed": partial(_interrupted, interrupt=_kill_learners),
    "learner_pool workers die": partial(_dying, pool="learner_pool"),
    "actor_pool workers die": partial(_dying, pool="actor_pool"),
    "ended and resumed": _resumed,
}
PROCESS_FAULTS: Mapping[str, ProcessFault] = {
    "kill -9 of anything": job_kills.strike,
    "kill -9 of anything, compared with other seeds": job_kills.strike_one_that_learns,
    "kill -9 of learners": partial(job_kills.strike, victims=job_kills.LEARNERS),
    "kill -9 of the coordinator around its writes": failpoints.around_writes,
    "kill -9 of the coordinator as it restores a checkpoint": failpoints.as_it_restores,
    "kill -9 of the coordinator as it accepts a job": failpoints.as_it_accepts,
    "kill -9 of the coordinator during updates": mid_update.strike,
    "kill -9 of the store around aggregations": failpoints.at_aggregations,
    **{f"kill -9 at {name}": partial(failpoints.elsewhere, name=name) for name in failpoints.of(failpoints.ELSEWHERE)},
    "SIGSTOP of coordinators and learners": paused_processes.strike,
    "connections cut": partitions.strike,
    "clocks jump": clocks.strike,
}
