"""Environments that misbehave in every way of `tests.misbehaving_env`, beside a job of another user that must go on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from marless.core.errors import SpecError
from marless.jobs import spec as specs
from marless.rpc.client import Peer
from marless.rpc.security import Security
from marless.rpc.v1 import coordinator_pb2
from marless.rpc.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from tests.faults.pools import DOCUMENT
from tests.faults.rig import WITNESS, Disturbed, Rig, running_rig, until
from tests.faults.totals import Figures
from tests.misbehaving_env import CALLS, HANGING, LONG_S, NAME, WAYS

ROOT = Path(__file__).parents[2]
AT_ONCE = 3
"""Jobs that misbehave at the same time; the coordinator runs four."""
SUBMIT_S, END_S = 150.0, 180.0
ENDLESS = 10**6
OPEN = {"PYTHONPATH": f"{ROOT}:{WITNESS}", "MARLESS_ENV_MODULES": NAME.removeprefix("pettingzoo/").partition(":")[0]}
Case = tuple[str, str, bool]
"""Way, call, and whether it behaves while it is examined."""


def cases() -> list[Case]:
    """All ways in all calls: in workers, and (but for those that only a limit of a minute ends) when submitted."""
    at_once = [(way, call, False) for way in WAYS if way not in HANGING for call in CALLS if call != "step"]
    return [*((way, call, True) for way in WAYS for call in CALLS), *at_once, ("hold_the_lock", "make", False)]


async def run(seed: int, place: Path, chosen: Sequence[Case] | None = None) -> Figures:
    """Submit a job for each case; returns how they ended. Raises AssertionError if anything else was harmed."""
    every, before = list(chosen or cases()), _sleeping()
    random.Random(seed).shuffle(every)
    async with running_rig(place / "rig", {"coordinator": OPEN, "actor_pool": OPEN}) as rig:
        canary = await rig.submit("canary", ENDLESS)
        await canary.rounds(1)
        ended: Counter[str] = Counter()
        left = iter(enumerate(every))

        async def misbehave() -> None:
            for number, case in left:
                ended[await _end_of(rig, f"bad-{number}", case)] += 1

        await asyncio.gather(*(misbehave() for _ in range(AT_ONCE)))
        await canary.rounds(3)
        assert not sum(rig.stack.restarts.values()), f"services ended: {rig.stack.restarts}"
    await until(lambda: _sleeping() <= before, "processes of an environment are left")
    return {
        "ways": len(every),
        "services ended": 0,
        "processes left": 0,
        **{f"jobs {how}": n for how, n in ended.items()},
    }


async def _end_of(rig: Rig, name: str, case: Case) -> str:
    """Submit one job, and wait for its end; how it ended: "refused", or its state in lower case."""
    way, call, later = case
    document = {
        **DOCUMENT,
        "name": name,
        "env": {"name": NAME, "options": {"way": way, "call": call, "later": later}},
        "algorithm": "ippo",
        "actors": {"count": 1, "envs": 2, "steps": 5, "timeout_s": 5.0, "episodes": "fresh"},
        "evaluation": {"episodes": 2, "random_episodes": 2, "limit_s": 2.0},
        "stop": {"rounds": 2},
    }
    peer = Peer(rig.stack.coordinator, Security())
    request = coordinator_pb2.SubmitJobRequest(
        job=name, spec_json=specs.parse(document, name).to_json(), request_id=name
    )
    try:
        await peer.call(CoordinatorServiceStub(peer.channel).SubmitJob, request, timeout_s=SUBMIT_S)
    except SpecError as error:
        assert "\n" not in str(error), f"{case}: {error}"
        return "refused"
    finally:
        await peer.close()
    job = Disturbed(rig, name)
    await until(job.over, f"{case} does not end", within_s=END_S)
    assert job.status()["reason"], case
    return str(job.status()["state"]).lower()


def _sleeping() -> set[int]:
    """Processes that environments have started and left."""
    found = set()
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        if process.info["cmdline"] == ["sleep", f"{LONG_S}"] and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.add(process.info["pid"])
    return found
