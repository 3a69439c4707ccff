"""Who owns a run folder: one at a time, the living before the hanging, and never one that woke up too late."""

import asyncio
import fcntl
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marless.services.coordinator.state import ownership
from marless.services.coordinator.state.ownership import LOCK, Ownership, beat_of, inherit
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from tests.unit.coordinator.test_run_folder import SPEC
from tests.unit.jobs.test_record import record

WRITER = """
import dataclasses, pathlib, sys
from marless.core.errors import FencedError
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import PendingRollout
from tests.unit.jobs.test_record import record
folder = RunFolder(pathlib.Path(sys.argv[1]))
assert folder.own()
folder.take_over()
_, status = folder.load()
print("owned", flush=True)
try:
    for number in range(10**9):
        folder.write_pending([PendingRollout(
            round=number, actors=1, rollout_s=0.0, env_steps=0, returns=None, invocations=())])
        folder.append(record(number, job="of the first"))
        folder.write_status(dataclasses.replace(status, reason=f"round {number} of the first"))
except FencedError:
    print("fenced", flush=True)
"""


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path / "j")
    folder.create(SPEC, JobStatus(job="j", state="RUNNING", reason="", accepted_s=1.0))
    folder.release()
    return folder


@pytest.fixture
def writer(folder):
    """Another process that owns the folder and writes into it as fast as it can."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, folder.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "owned\n"
    yield process
    process.kill()
    process.wait()


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != LOCK}


def test_one_at_a_time(folder):
    first = Ownership.acquire(folder.path)
    assert Ownership.acquire(folder.path) is None
    first.release()
    first.release()
    assert first.lost
    assert Ownership.acquire(folder.path)


def test_a_lock_leaves_no_trace(folder):
    Ownership.acquire(folder.path).release()
    assert LOCK not in contents(folder.path)


def test_the_lock_of_a_dead_process_is_free_at_once(folder, writer):
    assert not folder.own()
    writer.kill()
    writer.wait()
    assert folder.own()


async def test_a_living_owner_is_left_alone(folder):
    held = Ownership.acquire(folder.path)
    held.keep_beating()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.5 * ownership.BEAT_S):
            await inherit(folder.path, 1.2 * ownership.BEAT_S)
    assert not held.lost


async def test_an_owner_without_a_beat_loses_to_one_of_those_who_wait(folder):
    silent = Ownership.acquire(folder.path)
    waiting = [asyncio.create_task(inherit(folder.path, 0.1)) for _ in range(3)]
    done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert silent.lost
    winner = next(iter(done)).result()
    winner.beat()
    assert not winner.lost
    silent.release()  # too late: it is not its own
    assert not winner.lost
    for task in rest:
        task.cancel()


def test_a_beat_in_the_last_moment_counts(folder):
    held = Ownership.acquire(folder.path)
    seen = beat_of(folder.path)
    held.beat()
    assert Ownership.seize(folder.path, seen) is None
    assert not held.lost


def test_nobody_seizes_while_another_does(folder):
    held = Ownership.acquire(folder.path)
    directory = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    assert Ownership.seize(folder.path, beat_of(folder.path)) is None
    os.close(directory)
    assert not held.lost


def test_a_lock_that_is_replaced_while_it_is_taken_is_not_the_one(folder, monkeypatch):
    real, path = fcntl.flock, folder.path / LOCK

    def flock(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.with_suffix(".other").touch()
        path.with_suffix(".other").rename(path)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert not Ownership.acquire(folder.path).lost


def test_the_owner_of_a_deleted_folder_has_lost_it(folder):
    assert folder.own()
    held = folder.ownership
    folder.delete()
    assert held.lost
    held.release()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
async def test_a_process_that_wakes_up_after_its_lease_writes_nothing(folder, writer, seed):
    await asyncio.sleep(random.Random(seed).uniform(0.0, 0.05))  # wherever in its writing that is
    os.kill(writer.pid, signal.SIGSTOP)
    await folder.inherit(0.2)
    folder.take_over()
    _, status = folder.load()
    rounds = len(list(folder.records()))
    folder.append(record(rounds, job="of the second"))
    folder.write_status(JobStatus(job="j", state="SUCCEEDED", reason="by the second", accepted_s=status.accepted_s))
    before = contents(folder.path)
    os.kill(writer.pid, signal.SIGCONT)
    assert writer.stdout.readline() == "fenced\n"
    assert writer.wait() == 0
    assert contents(folder.path) == before
    assert [each.job for each in folder.records()] == ["of the first"] * rounds + ["of the second"]
