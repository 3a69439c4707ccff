"""Services that run and do not answer are told from those that are slow, starved, or refuse an answer."""

import asyncio
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from marless.app.cli import supervision
from marless.app.cli.supervision import Endpoint, Patience, no_answer, starved_s
from marless.rpc.security import Security

IMPATIENT = Patience(question_s=0.2, silent_s=1.2)
LATE_S = 30.0


@pytest.fixture(params=["sleeps", "holds"])
def service(request, tmp_path):
    address = f"unix:{tmp_path / 's.sock'}"
    program = Path(__file__).with_name("silent_service.py")
    process = subprocess.Popen([sys.executable, str(program), address, request.param], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"serving\n"
    yield process, Endpoint(address, address, Security())
    process.kill()
    process.wait()
    process.stdout.close()


async def test_a_blocked_loop_and_a_held_lock_are_noticed(service):
    process, endpoint = service
    waiting = asyncio.create_task(no_answer(endpoint, process.pid, IMPATIENT))
    await asyncio.sleep(2 * IMPATIENT.silent_s)
    assert not waiting.done()
    process.send_signal(signal.SIGUSR2)
    async with asyncio.timeout(LATE_S):
        assert (await waiting).startswith("did not answer for ")


async def test_a_lost_socket_is_noticed_at_once(tmp_path):
    address = f"unix:{tmp_path / 'gone.sock'}"
    async with asyncio.timeout(LATE_S):
        said = await no_answer(Endpoint(address, address, Security()), os.getpid(), Patience(question_s=0.01))
    assert said == f"had lost its socket, {tmp_path / 'gone.sock'}, which something removed"


async def test_a_service_that_waits_for_a_cpu_is_not_silent(tmp_path, monkeypatch):
    """All the time of each question, one of its threads waited for a CPU; then it had one, and still did not answer."""
    (tmp_path / "s.sock").touch()  # nobody answers there
    address, seconds = f"unix:{tmp_path / 's.sock'}", count(step=IMPATIENT.question_s)
    monkeypatch.setattr(supervision, "starved_s", lambda _pid: {"1": 0.0, "2": next(seconds)})
    waiting = asyncio.create_task(no_answer(Endpoint(address, address, Security()), os.getpid(), IMPATIENT))
    await asyncio.sleep(4 * IMPATIENT.silent_s)
    assert not waiting.done()
    monkeypatch.setattr(supervision, "starved_s", lambda _pid: {})
    async with asyncio.timeout(LATE_S):
        assert await waiting


def test_how_long_threads_have_waited_for_a_cpu():
    waited = starved_s(os.getpid())
    assert str(os.getpid()) in waited
    assert all(seconds >= 0 for seconds in waited.values())
    assert starved_s(2**22 + 1) == {}
