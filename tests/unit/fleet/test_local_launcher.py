"""The local launcher: what a forked worker is given, how its end is told, and what becomes of it with its template."""

import asyncio
import errno
import json
import os
import socket
import threading
from pathlib import Path

import psutil
import pytest

from marless.core import orphans
from marless.fleet.launchers import forking, template
from marless.fleet.launchers.base import ACCEPTED, Launch, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.forking import TemplateProcess
from marless.fleet.launchers.local import LocalLauncher

MODULE = "tests.unit.fleet.scripted_worker"
PATIENCE_S = 30.0


ROOM, TASKS = (
    "cannot start worker {}: there is {} left; it is tried again",
    "no process or thread (`ulimit -u`, the limit of tasks of a container)",
)


def program(place: Path, module: str = MODULE) -> WorkerProgram:
    return WorkerProgram(module, ("--place", str(place)), os.environ, lambda: "token of the role")


@pytest.fixture
async def launcher(tmp_path):
    launcher = LocalLauncher(program(tmp_path))
    yield launcher
    await launcher.close()


async def facts(place: Path, worker: str):
    async with asyncio.timeout(PATIENCE_S):
        while not (place / worker).exists():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.01)
    return json.loads((place / worker).read_text())


async def launched(launcher: LocalLauncher, place: Path, worker: str):
    [launch] = await launcher.launch([LaunchOrder(worker, f"ticket of {worker}")])
    assert launch == ACCEPTED
    return await facts(place, worker)


def process_of(found) -> psutil.Process:
    return psutil.Process(found["session"])


async def test_a_worker_finds_what_is_its_own_and_nothing_of_others(launcher, tmp_path):
    assert (
        await launcher.launch([LaunchOrder("one", "ticket of one"), LaunchOrder("two", "ticket of two")])
        == [ACCEPTED] * 2
    )
    one, two = await facts(tmp_path, "one"), await facts(tmp_path, "two")
    for name, found in (("one", one), ("two", two)):
        process = process_of(found)
        assert found["arguments"] == ["--launched", "--place", str(tmp_path), "--worker", name]
        assert [word for word in process.cmdline() if word][2:] == ["-m", MODULE, *found["arguments"]]
        assert os.getsid(process.pid) == process.pid
        assert found["handover"] == {"ticket": f"ticket of {name}", "token": "token of the role"}
        assert process.environ()[orphans.MARK] == found["mark"]
        assert found["descriptors"][0].startswith("pipe:")
        assert len(found["descriptors"]) == 3
    assert one["mark"] != two["mark"]
    assert one["drawn"] != two["drawn"]
    assert process_of(one).parent() == process_of(two).parent()


@pytest.mark.parametrize(("worker", "how"), [("exits", "exit code 3"), ("dies", "killed by signal 15")])
async def test_how_a_worker_ended_is_told(launcher, tmp_path, worker, how):
    found = await launched(launcher, tmp_path, worker)
    assert await launcher.observe(worker) == await launcher.observe(worker) == how
    assert not psutil.pid_exists(found["session"])
    await launcher.drain(worker, 0.0)
    assert await launcher.observe(worker) == "not started"


async def test_workers_outlive_their_template_and_the_next_one_has_another(launcher, tmp_path):
    one = await launched(launcher, tmp_path, "before")
    forking = process_of(one).parent()
    forking.kill()
    two = await launched(launcher, tmp_path, "after")
    assert process_of(two).parent() != forking
    assert process_of(one).is_running()
    process_of(one).kill()
    assert await launcher.observe("before") == "ended after its template"
    process_of(two).kill()
    assert await launcher.observe("after") == "killed by signal 9"


async def test_workers_end_with_their_pool(launcher, tmp_path):
    """As in a pool that is killed, the pipe closes, and nobody kills."""
    await launched(launcher, tmp_path, "one")
    launcher._processes["one"]._lines.abort()
    assert await launcher.observe("one") == "exit code 0"


async def test_a_template_that_hangs_is_given_up(launcher, tmp_path, monkeypatch):
    found = await launched(launcher, tmp_path, "one")
    process_of(found).parent().suspend()
    monkeypatch.setattr(forking, "FORK_S", 0.05)
    [launch] = await launcher.launch([LaunchOrder("two", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    said = "its template did not fork it within 0.05 s; the machine is too busy, it is tried again"
    assert launch.reason == f"cannot start worker two: {said}"
    monkeypatch.undo()
    assert process_of(found).is_running()
    await launched(launcher, tmp_path, "three")


async def test_a_module_that_cannot_be_imported_is_said(tmp_path, capfd):
    launcher = LocalLauncher(program(tmp_path, "tests.unit.fleet.missing"))
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.FAILED
    assert launch.reason == "worker one could not start (its template: exit code 1); see the pool's log"
    assert "No module named 'tests.unit.fleet.missing'" in capfd.readouterr().err
    await launcher.close()


async def test_a_template_may_be_shared_and_is_not_ended_with_a_launcher(tmp_path):
    shared = TemplateProcess(MODULE, ("--place", str(tmp_path)), os.environ)
    found = []
    for name in ("one", "two"):
        launcher = LocalLauncher(program(tmp_path), shared=shared)
        found.append(process_of(await launched(launcher, tmp_path, name)))
        forking = found[-1].parent()
        await launcher.close()
        assert not found[-1].is_running()
        assert forking.is_running()
    assert shared.pid == forking.pid
    assert shared.end() == "killed by signal 9"
    assert not forking.is_running()


async def test_a_machine_that_has_no_room_for_a_process_refuses(tmp_path, monkeypatch):
    """The loop of a template, in a thread of this process whose `fork` fails."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "")

    class Full(TemplateProcess):
        def _start(self) -> None:
            self._orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            monkeypatch.setattr(os, "fork", fork)
            self.loop = threading.Thread(target=template.TemplateLoop(theirs).run)
            self.loop.start()

    full = Full(MODULE, (), {})
    launcher = LocalLauncher(program(tmp_path), shared=full)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch == Launch(LaunchOutcome.REFUSED, ROOM.format("one", TASKS))
    full._orders.close()
    full.loop.join()


async def test_a_pool_without_descriptors_refuses_and_leaves_no_process(launcher, tmp_path, monkeypatch):
    found = await launched(launcher, tmp_path, "one")
    real, forked, parents = socket.recv_fds, [], []

    def without_room(*arguments: object) -> object:
        said, received, *rest = real(*arguments)
        forked.append(psutil.Process(int(said)))
        parents.append(forked[0].ppid())  # now: the worker may end as soon as its descriptors are closed
        for descriptor in received:
            os.close(descriptor)
        return said, [], *rest

    monkeypatch.setattr(socket, "recv_fds", without_room)
    [launch] = await launcher.launch([LaunchOrder("two", "ticket")])
    assert launch == Launch(LaunchOutcome.REFUSED, ROOM.format("two", "no descriptor in its pool (`ulimit -n`)"))
    assert parents == [process_of(found).ppid()]
    forked[0].wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("ended", "outcome", "said"),
    [
        (
            "killed by signal 9",
            LaunchOutcome.REFUSED,
            "cannot start worker one: its template was killed by signal 9; it is",
        ),
        (
            "exit code 1",
            LaunchOutcome.FAILED,
            "worker one could not start (its template: exit code 1); see the pool's log",
        ),
    ],
)
async def test_a_template_that_is_killed_is_tried_again_and_one_that_is_broken_is_not(
    launcher, monkeypatch, ended, outcome, said
):
    async def fork(*_given):
        raise forking.TemplateEndedError(ended)

    monkeypatch.setattr(TemplateProcess, "fork", fork)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is outcome
    assert launch.reason.startswith(said)
