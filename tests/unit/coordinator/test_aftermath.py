"""Machines of a job: what is recorded of them round by round, at its end, and after it."""

import asyncio
from dataclasses import replace

import pytest

from marless.core.errors import UnavailableError
from marless.core.machine import FACTS, Kept, MachineRecord
from marless.services.coordinator.execution import recording as execution_machines
from marless.services.coordinator.execution.recording import PoolMachines
from marless.services.coordinator.jobs import failover
from marless.services.coordinator.jobs.failover import Aftermath

ROW = MachineRecord(
    id="m",
    began_s=1e9,
    pool="actor",
    launcher="ec2",
    type="c6a.large",
    present_s=5.0,
    work_s=4.0,
    waiting_s=1.0,
    held=True,
)


class Pools:
    """Answers with what it is told to."""

    def __init__(self, *answers: tuple[MachineRecord, ...]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def machines(self, job: str) -> tuple[MachineRecord, ...]:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Folder:
    def __init__(self, error: Exception | None = None) -> None:
        self.kept: Kept | None = None
        self.error = error

    def write_kept(self, kept: Kept) -> None:
        if self.error:
            raise self.error
        self.kept = kept


@pytest.fixture
def at_every_round(monkeypatch):
    monkeypatch.setattr(execution_machines, "LOOK_S", 0.0)


async def test_pools_are_asked_once_a_second_however_short_rounds_are():
    pools = Pools((ROW,))
    machines = PoolMachines("j", pools)
    assert await machines.look() == (ROW,)
    assert await machines.look() == ()
    assert pools.asked == 1


@pytest.mark.usefixtures("at_every_round")
async def test_only_machines_that_did_something_are_recorded_and_their_facts_once():
    later = replace(ROW, present_s=9.0, work_s=8.0)
    machines = PoolMachines("j", Pools((ROW,), (replace(ROW, present_s=6.0),), (later,)))
    assert machines.changes(await machines.look()) == (ROW,)
    assert machines.changes(await machines.look()) == ()  # it was only there
    [short] = machines.changes(await machines.look())
    assert short.after(ROW) == later
    assert {getattr(short, name) for name in FACTS} == {"", 0.0, None}


@pytest.mark.usefixtures("at_every_round")
async def test_both_pools_of_a_machine_are_recorded_if_one_has_changed():
    """Or its time would be counted twice: the bill compares what each pool saw of it."""
    learner = replace(ROW, pool="learner")
    machines = PoolMachines("j", Pools((ROW, learner), (replace(ROW, work_s=5.0), replace(learner, present_s=6.0))))
    machines.changes(await machines.look())
    assert [each.pool for each in machines.changes(await machines.look())] == ["actor", "learner"]


async def test_the_end_is_written_and_a_full_disk_does_not_fail_the_job():
    machines, folder = PoolMachines("j", Pools((ROW,))), Folder()
    await machines.at_the_end(folder)
    assert folder.kept is not None
    assert folder.kept.end == folder.kept.now == (ROW,)
    assert folder.kept.held == 1
    await machines.at_the_end(Folder(UnavailableError("no room")))


@pytest.fixture
def kept() -> list[tuple[MachineRecord, ...]]:
    return []


def followed(pools: Pools, kept: list[tuple[MachineRecord, ...]], *, wanted: bool = True) -> Aftermath:
    async def keep(job: str, machines: tuple[MachineRecord, ...]) -> bool:
        kept.append(machines)
        return wanted

    return Aftermath(pools, keep, soonest_s=0.001)


async def finished(following: Aftermath) -> None:
    async with asyncio.timeout(5.0):
        await asyncio.gather(*following._followed.values())


async def test_machines_are_followed_until_none_waits_for_the_job(kept):
    gone = replace(ROW, waiting_s=9.0, held=False, released=True)
    pools = Pools((ROW,), (replace(ROW, waiting_s=3.0),), (gone,))
    following = followed(pools, kept)
    following.follow("j")
    await finished(following)
    assert [rows[0].waiting_s for rows in kept] == [1.0, 3.0, 9.0]
    assert following._followed == {}


async def test_a_job_that_goes_on_is_not_followed(kept):
    following = followed(Pools((ROW,)), kept, wanted=False)
    following.follow("j")
    await finished(following)
    assert len(kept) == 1


async def test_pools_that_never_answer_are_given_up(kept, monkeypatch):
    monkeypatch.setattr(failover, "_LATEST_S", 0.001)
    pools = Pools(())
    following = followed(pools, kept)
    following.follow("j")
    await finished(following)
    assert (kept, pools.asked) == ([], failover.SILENT)


async def test_a_coordinator_that_stops_follows_none(kept):
    following = followed(Pools((ROW,)), kept)
    following.follow("j")
    await following.stop()
    await following.stop()
    assert following._followed == {}
