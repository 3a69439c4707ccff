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

from marless.errors import UnavailableError
from marless.fleet import orphans
from marless.fleet.launchers import local, template
from marless.fleet.launchers.local import LocalLauncher, Template

MODULE = "tests.unit.fleet.scripted_worker"
PATIENCE_S = 30.0


def of_module(module: str, place: Path) -> LocalLauncher:
    return LocalLauncher(module, ("--place", str(place)), os.environ, lambda: "token of the role")


@pytest.fixture
async def launcher(tmp_path):
    async with of_module(MODULE, tmp_path) as launcher:
        yield launcher


async def facts(place: Path, worker: str):
    async with asyncio.timeout(PATIENCE_S):
        while not (place / worker).exists():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.01)
    return json.loads((place / worker).read_text())


async def launched(launcher: LocalLauncher, place: Path, worker: str):
    handle = await launcher.launch(worker, f"ticket of {worker}")
    return handle, await facts(place, worker)


def process_of(found) -> psutil.Process:
    return psutil.Process(found["session"])


async def test_a_worker_finds_what_is_its_own_and_nothing_of_others(launcher, tmp_path):
    first, one = await launched(launcher, tmp_path, "one")
    second, two = await launched(launcher, tmp_path, "two")
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
    for handle in (first, second):
        handle.kill()
        assert await handle.ended() == "killed by signal 9"


@pytest.mark.parametrize(("worker", "how"), [("exits", "exit code 3"), ("dies", "killed by signal 15")])
async def test_how_a_worker_ended_is_told(launcher, tmp_path, worker, how):
    handle, found = await launched(launcher, tmp_path, worker)
    assert await handle.ended() == await handle.ended() == how
    assert not psutil.pid_exists(found["session"])
    handle.kill()


async def test_workers_outlive_their_template_and_the_next_one_has_another(launcher, tmp_path):
    before, one = await launched(launcher, tmp_path, "before")
    forking = process_of(one).parent()
    forking.kill()
    after, two = await launched(launcher, tmp_path, "after")
    assert process_of(two).parent() != forking
    assert process_of(one).is_running()
    before.kill()
    assert await before.ended() == "ended after its template"
    after.kill()
    assert await after.ended() == "killed by signal 9"


async def test_workers_end_with_their_pool(launcher, tmp_path):
    """As in a pool that is killed, the pipe and the socket close, and nobody kills."""
    handle, _ = await launched(launcher, tmp_path, "one")
    handle._lines.abort()
    assert await handle.ended() == "exit code 0"


async def test_a_template_that_hangs_is_given_up(launcher, tmp_path, monkeypatch):
    handle, found = await launched(launcher, tmp_path, "one")
    process_of(found).parent().suspend()
    monkeypatch.setattr(local, "FORK_S", 0.05)
    with pytest.raises(UnavailableError, match=r"cannot start worker two: its template did not fork it within 0\.05 s"):
        await launcher.launch("two", "ticket")
    monkeypatch.undo()
    handle.kill()
    assert await handle.ended() == "ended after its template"
    third, _ = await launched(launcher, tmp_path, "three")
    third.kill()
    await third.ended()


async def test_a_module_that_cannot_be_imported_is_said(tmp_path, capfd):
    async with of_module("tests.unit.fleet.missing", tmp_path) as launcher:
        with pytest.raises(UnavailableError, match=r"worker one could not start \(its template: exit code 1\)"):
            await launcher.launch("one", "ticket")
    assert "No module named 'tests.unit.fleet.missing'" in capfd.readouterr().err


async def test_a_template_may_be_shared_and_is_not_ended_with_a_launcher(tmp_path):
    shared = Template(MODULE, ("--place", str(tmp_path)), os.environ)
    found = []
    for name in ("one", "two"):
        async with LocalLauncher(MODULE, ("--place", str(tmp_path)), {}, lambda: "", shared) as launcher:
            handle, facts_ = await launched(launcher, tmp_path, name)
            found.append(process_of(facts_).parent())
            handle.kill()
            await handle.ended()
    assert found[0] == found[1]
    assert shared.end() == "killed by signal 9"
    assert not found[0].is_running()


async def test_a_machine_that_has_no_room_for_a_process_is_said(tmp_path, monkeypatch):
    """The loop of a template, in a thread of this process whose `fork` fails."""

    def fork() -> int:
        raise BlockingIOError(errno.EAGAIN, "")

    class Full(Template):
        def _start(self) -> None:
            self._orders, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            monkeypatch.setattr(os, "fork", fork)
            self.loop = threading.Thread(target=template.Template(theirs).run)
            self.loop.start()

    full = Full(MODULE, (), {})
    async with LocalLauncher(MODULE, (), {}, lambda: "", full) as launcher:
        with pytest.raises(UnavailableError, match="cannot start worker one: Resource temporarily unavailable"):
            await launcher.launch("one", "ticket")
    full._orders.close()
    full.loop.join()
