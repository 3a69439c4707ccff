"""Environments are examined apart: whatever they do, the answer is a sentence, in time, and nothing is left."""

import os
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.jobs.examining import examine, glanced
from marless.learning.data.trial import SECONDS
from tests.misbehaving_env import NAME

LIMIT_S = 8.0


@pytest.fixture(autouse=True)
def _allowed(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "tests.misbehaving_env")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def test_what_is_seen_equals_what_is_seen_here():
    options = {"way": "exit_7", "call": "step"}  # it is not stepped, so it behaves
    found = examine(NAME, options)
    assert [each.agents for each in found.spaces.classes] == [("a", "b")]
    assert (found.spaces.deaths, found.can_be_saved, found.trial) == (True, True, None)


def test_with_play_a_moment_of_it_is_seen():
    seen = examine(NAME, {"call": ""}, play_s=SECONDS).trial
    assert seen.longest == 5
    assert seen.agents[0].reward_high == 1.0


def test_a_glance_shows_how_it_plays():
    assert glanced(NAME, {"call": ""}).trial.longest == 5
    assert glanced("game/matrix", {}).trial is None


@pytest.mark.parametrize("way", ["exit_7", "memory_error", "hold_the_lock", "sigkill"])
def test_what_goes_wrong_at_a_glance_is_left_to_the_job(way):
    started_s = time.monotonic()
    found = glanced(NAME, {"way": way, "call": "step"})
    assert found.trial is None and len(found.spaces.agents) == 2
    assert time.monotonic() - started_s < LIMIT_S


@pytest.mark.parametrize(("slow", "times"), [("make", 1), ("step", 2)])
def test_what_a_glance_makes_is_closed(tmp_path, monkeypatch, slow, times):
    """Ended in between, it would leave its lock to the actors, or a container."""
    (tmp_path / "locking.py").write_text(f"""
import time
from pathlib import Path
from tests.misbehaving_env import Misbehaving

NOTES = Path({str(tmp_path / "notes")!r})

class Locking(Misbehaving):
    def __init__(self):
        super().__init__(call="")
        time.sleep({0.7 if slow == "make" else 0})
        NOTES.open("a").write("made ")

    def step(self, actions):
        time.sleep({0.3 if slow == "step" else 0})
        return super().step(actions)

    def close(self):
        NOTES.open("a").write("closed ")
""")
    monkeypatch.setenv(ENV_MODULES, "locking")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    found = glanced("pettingzoo/locking:Locking", {})
    assert (found.trial is None) == (slow == "make")
    assert (tmp_path / "notes").read_text() == "made closed " * times


def test_our_own_are_examined_here(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    found = examine("game/matrix", {}, play_s=SECONDS)
    assert found.trial.longest == 1


@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("segmentation_fault", "its process was ended by SIGSEGV"),
        ("exit_0", "its process ended itself with exit code 0"),
        ("exit_7", "its process ended itself with exit code 7"),
        ("abort", "its process was ended by SIGABRT"),
        ("sigkill", "its process was ended by SIGKILL"),
        ("sys_exit_text", "SystemExit: I give up"),
        ("keyboard_interrupt", "KeyboardInterrupt"),
        ("unprintable_error", "Unprintable"),
        ("long_error", "RuntimeError: xxx"),
        ("recursion", "RecursionError"),
    ],
)
def test_how_it_has_ended_is_said(way, how):
    with pytest.raises(SpecError, match=f"environment {NAME}: .*{how}") as caught:
        examine(NAME, {"way": way, "call": "make"})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("way", ["hold_the_lock", "regex", "sigstop"])
def test_one_that_hangs_is_given_up(way):
    started_s = time.monotonic()
    with pytest.raises(SpecError, match="was not made within 2 s; it hangs"):
        examine(NAME, {"way": way, "call": "make"}, limit_s=2.0)
    assert time.monotonic() - started_s < LIMIT_S


@pytest.mark.parametrize("call", ["make", "reset", "close"])
@pytest.mark.parametrize(
    "way",
    [
        "close_descriptors",
        "print_much",
        "fork_that_returns",
        "detached_process",
        "many_children",
        "threads",
        "hang_at_exit",
    ],
)
def test_nothing_is_left_of_it_and_it_ends_in_time(way, call, monkeypatch):
    mark = uuid.uuid4().hex  # other tests, which run at the same time, examine environments, too
    monkeypatch.setenv("TEST_OF_EXAMINING", mark)
    try:
        examine(NAME, {"way": way, "call": call}, limit_s=LIMIT_S)
    except SpecError as error:
        assert "\n" not in str(error)  # it may be refused or not, but in one sentence
    assert [each for each in psutil.process_iter() if inherits(each, mark)] == []


def inherits(process, mark):
    """Whether a process was started by this test, or by one that it has started, and has not ended."""
    try:
        return process.pid != os.getpid() and process.environ().get("TEST_OF_EXAMINING") == mark
    except psutil.Error:  # it has ended, or is another user's
        return False


def test_what_it_prints_is_no_answer(capfd):
    with pytest.raises(SpecError, match="ended itself with exit code 0"):
        examine(NAME, {"way": "exit_0", "call": "reset"}, output=1)
    found = examine(NAME, {"way": "print_much", "call": "make"})
    assert found.can_be_saved
    assert capfd.readouterr().out == ""


def test_its_secrets_are_kept_from_it(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    seen = []
    honest = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **given: seen.append(given["env"]) or honest(*args, **given))
    examine(NAME, {"call": ""})
    assert "AWS_SECRET_ACCESS_KEY" not in seen[0]
