"""What `marless ps` says of processes: by their command lines, their parents and the locks that they hold."""

import json
import os
import subprocess
import sys

import pytest

from marless.app.cli.ps import of_marless, role_of
from marless.core.process_table import RunningProcess, own_processes, processes_of_ps, seconds_of_ps

PYTHON = "/opt/marless/bin/python3.12"


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ((PYTHON, "-P", "-m", "marless.app.cli.background", "{}"), "supervisor"),
        ((PYTHON, "-P", "-m", "marless.services.coordinator", "--listen", "unix:/c"), "coordinator"),
        ((PYTHON, "-P", "-m", "marless.services.actor_pool.worker", "--launched"), "actor worker"),
        ((PYTHON, "-m", "marless.fleet.launchers.template", "--module=marless.services"), "template of services"),
        (
            (PYTHON, "-m", "marless.fleet.launchers.template", "--module=marless.services.learner_pool.worker"),
            "template of learner workers",
        ),
        ((PYTHON, "-X", "dev", "-W", "error", "-m", "marless", "train", "spread"), "marless train"),
        ((PYTHON, "/opt/marless/bin/marless", "-h"), "marless"),
        ((PYTHON, "-Im", "marless.services.param_store"), "param_store"),
        ((PYTHON, "-mmarless", "train"), "marless train"),
        ((PYTHON, "-Xdev", "-BWignore", "-m", "marless", "train"), "marless train"),
        ((PYTHON, "-BW", "ignore", "/opt/marless/bin/marless", "up"), "marless up"),
        ((PYTHON, "-Pc", "print()", "marless"), ""),
        ((PYTHON, "-m", "marless_ray.host", "x"), "marless_ray.host"),
        ((PYTHON, "-m", "http.server", "-m", "marless"), ""),
        ((PYTHON, "-c", "print()", "-m", "marless"), ""),
        ((PYTHON, "-m"), ""),
        (("vim", "-m", "marless"), ""),
        ((PYTHON, "-m", "marlessness"), ""),
        ((), ""),
    ],
)
def test_a_command_line_tells_the_role(words, role):
    assert role_of(words) == role


def process(pid: int, parent: int, *words: str, up_s: float = 1.0) -> RunningProcess:
    return RunningProcess(pid=pid, parent=parent, words=words, up_s=up_s, cpu_s=0.5, memory_bytes=1000)


def test_all_below_a_process_of_marless_is_shown_below_it_and_nothing_else():
    huge = 2**22  # no process of Linux has such an id
    running = [
        process(huge + 4, huge + 3, "/usr/bin/game", "--map", "3m"),
        process(huge + 3, huge + 2, PYTHON, "-m", "marless.services.actor_pool.worker", "--pool", "unix:/p"),
        process(huge + 2, huge + 1, PYTHON, "-m", "marless.app.cli.background", json.dumps({"runs": "/a b/runs"})),
        process(huge + 1, 1, "bash"),
        process(huge + 5, huge + 1, "sleep", "9"),
        process(huge + 6, 1, PYTHON, "-m", "marless", "train", up_s=2.0),
    ]
    shown = [
        (each.pid - huge, each.role, each.parent, each.depth, each.place, each.address) for each in of_marless(running)
    ]
    assert shown == [
        (6, "marless train", None, 0, "", ""),
        (2, "supervisor", None, 0, "/a b/runs/.stack", ""),
        (3, "actor worker", huge + 2, 1, "/a b/runs/.stack", "unix:/p"),
        (4, "game", huge + 3, 2, "/a b/runs/.stack", ""),
    ]


def test_a_process_is_one_row_whatever_its_words_hold(marless, monkeypatch):
    odd = process(2**22, 1, PYTHON, "-m", "marless", "a\n\tb\x1b[31m\udcff")
    monkeypatch.setattr("marless.core.process_table.own_processes", lambda: [odd])
    monkeypatch.setenv("COLUMNS", "120")
    _, row = marless("ps")[1].splitlines()
    assert row.startswith(r"marless a\n\tb\x1b[31m\xff ")


HOLDS = """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
held = bytearray(50_000_000)
while time.process_time() < 0.5: pass
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of a run folder, has used a CPU for half a second, and 50 MB."""
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "marless").write_text(HOLDS)
    lock = tmp_path / "runs" / "mine" / "owner.lock"
    command = [sys.executable, str(tmp_path / "marless"), str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        yield running
        running.stdin.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells which files are open")
def test_the_lock_that_a_process_holds_tells_its_run(holder, tmp_path):
    [found] = [each for each in of_marless(own_processes()) if each.pid == holder.pid]
    run = str(tmp_path / "runs" / "mine")
    assert (found.place, found.jobs) == (run, (run,))


@pytest.mark.parametrize("read", [own_processes, processes_of_ps])
def test_what_a_process_takes_is_measured(holder, read):
    if read is own_processes and not sys.platform.startswith("linux"):
        pytest.skip("there it is `ps`")
    [found] = [each for each in read() if each.pid == holder.pid]
    assert (found.parent, list(found.words)) == (os.getpid(), holder.args)
    assert 50e6 < found.memory_bytes < 200e6
    assert 0.0 <= found.cpu_s < 3.0 and found.up_s < 60.0
    assert read is processes_of_ps or found.cpu_s > 0.4 < found.up_s
    assert os.getpid() not in [each.pid for each in read()]


def test_processes_that_have_ended_are_left_out():
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        ended.stdout.read()
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert not [each for each in (*own_processes(), *processes_of_ps()) if each.pid == ended.pid]


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:07", 7), ("12:03", 723), ("1:02:03", 3723), ("2-01:00:00", 176_400), ("0:01.25", 1.25)]
)
def test_times_of_ps(text, seconds):
    assert seconds_of_ps(text) == seconds


def test_without_any_process_it_is_said(marless, monkeypatch):
    monkeypatch.setattr("marless.core.process_table.own_processes", list)
    assert marless("ps") == (0, "", "marless: no process of marless is running here\n")
    assert marless("ps", "-o", "json") == (0, "[]\n", "")
