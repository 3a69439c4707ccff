"""R15: the wall clock of every process jumps by an hour, forwards and back, while a job runs that two coordinators look
after. No lease is lost, no stop rule is met early, no function and no round is billed longer than it took, workers are
kept.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marless.cost.billing.billed import Clock
from marless.jobs.record import RoundRecord
from tests.faults.paused_processes import second_coordinator
from tests.faults.rig import WITNESS, Disturbed, Rig, running_rig
from tests.faults.struck import StruckRig
from tests.faults.totals import Figures

JUMP_S = 3600.0
KEEP_ALIVE_S = 600.0
STANDSTILL_S = 30.0
LIMIT_S = 1800.0
"""Of the job's `stop.wall_s`: more than it takes, less than a jump."""
SHIM = Path(__file__).parent / "clock" / "sitecustomize.py"
_PHASES = ("rollout", "update", "evaluation")
_ALL = ("param_store", "learner_pool", "actor_pool", "coordinator")


@dataclass(frozen=True)
class WallClock:
    """The clock that the processes of a rig read."""

    place: Path

    @classmethod
    def made(cls, place: Path) -> WallClock:
        """In a directory of its own."""
        place.mkdir(parents=True)
        shutil.copy(SHIM, place)
        clock = cls(place)
        clock.set(0.0)
        return clock

    @property
    def pythonpath(self) -> str:
        """What puts processes under this clock."""
        return f"{self.place}:{WITNESS}"

    def set(self, offset_s: float) -> None:
        """Have it so many seconds ahead."""
        partial = self.place / "offset.partial"
        partial.write_text(f"{offset_s}")
        partial.replace(self.place / "offset")


async def strike(struck: StruckRig, jumps: str) -> Figures:
    """Jump so often, on services under a clock of this cell's own; raises AssertionError if anything goes by the wall
    clock. Returns counts.
    """
    clock = WallClock.made(struck.place / "clock")
    environment = {name: {"PYTHONPATH": clock.pythonpath} for name in _ALL}
    async with running_rig(struck.place / "rig", environment) as plain:
        rig = replace(plain, document={**struck.rig.document, "stop": {"wall_s": LIMIT_S}})
        async with second_coordinator(rig, clock.pythonpath):
            began_s = time.monotonic()
            job = await struck.submit(rig)
            await job.rounds(2)
            workers = _pids(rig)
            await _jump(job, clock, struck.rng, int(jumps))
            clock.set(0.0)
            await job.succeeded()
            took_s = time.monotonic() - began_s
            assert _pids(rig) == workers, "workers were let go"
        assert not any('"job.taken_over"' in rig.log(name) for name in ("coordinator", "second")), "a lease was lost"
    _check(job, took_s)
    return {"jumps": int(jumps), "leases lost": 0, "rounds": struck.rounds}


async def _jump(job: Disturbed, clock: WallClock, rng: random.Random, jumps: int) -> None:
    for number in range(jumps):
        clock.set(JUMP_S * (1, -1, 0)[number % 3])
        before_s = time.monotonic()
        await job.rounds(rng.randint(1, 3))
        assert time.monotonic() - before_s < STANDSTILL_S, "the job stood still after a jump"
        await asyncio.sleep(rng.random() * 0.02)


def _pids(rig: Rig) -> set[int]:
    """Of the workers that train; the background worker is let go seconds after the random baseline."""
    workers = [worker for pool in ("actor_pool", "learner_pool") for worker in rig.workers(pool)]
    return {worker.pid for worker in workers if "--background" not in worker.cmdline()}


def _check(job: Disturbed, took_s: float) -> None:
    """No time in the records is negative or longer than the job ran, nor is all that its bill counts."""
    records, status = job.records(), job.status()
    for name, seconds in _times(records):
        assert 0.0 <= seconds <= took_s, f"{name}: {seconds:g} s of a job of {took_s:g} s"
    assert sum(record.took_s for record in records) <= took_s
    lengths = Clock(KEEP_ALIVE_S)
    billed_s = sum(lengths.span(record).length_ms for record in records) / 1000
    assert sum(record.took_s for record in records) - 1 <= billed_s <= took_s, f"{billed_s:g} s billed of {took_s:g} s"
    assert f"{len(records)} rounds done" == status["reason"]


def _times(records: Sequence[RoundRecord]) -> list[tuple[str, float]]:
    times = [(f"round {each.round}", each.ended_s - each.started_s) for each in records]
    times += [(f"{name} of {each.round}", getattr(each.phases, name)) for each in records for name in _PHASES]
    for each in (invocation for record in records for invocation in record.invocations):
        times.append((f"function {each.id}", each.end_s - each.start_s))
        if each.queued_s:
            times.append((f"queue of {each.id}", each.start_s - each.queued_s))
    return times
