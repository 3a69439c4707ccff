"""Standard output holds data alone, whatever an environment, its threads, its subprocesses or its C code print."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from marless.app.cli import output
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs.base import Discrete
from tests.unit.app.cli.conftest import JOB
from tests.unit.learning.policies.saved import save, state

MODULE = "tests.unit.app.cli.talkative"
NAME = f"pettingzoo/{MODULE}:Talkative"
WAYS = ("python", "original", "descriptor", "thread", "subprocess", "c")


def marless(directory, *words, redirected=""):
    """Runs the command as people do, in a process of its own; `redirected` is how a shell redirects its outputs."""
    program = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "marless", *words]
    given = os.environ | {ENV_MODULES: MODULE, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(program, cwd=directory, env=given, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture
def directory(tmp_path):
    save(tmp_path / "runs" / "shared", {"agent": state(12, Discrete(5), seed=0)}, {"agent": ("agent_0", "agent_1")})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB | {"env": {"name": NAME}}))
    return tmp_path


def test_evaluate_and_film(directory):
    words = ["evaluate", "shared", "--env", NAME, "--episodes", "2", "--render", "film.gif", "-o", "json"]
    done = marless(directory, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["return"] == 3.0
    for when in ("import", "make", "reset", "step", "render", "close", "exit"):
        for way in WAYS:
            assert f"{way} {when}\n" in done.stderr


def test_a_process_that_an_environment_has_forked_prints_no_data(directory):
    words = ["evaluate", "shared", "--env", NAME, "--env-option", "forks=true", "--episodes", "1", "-o", "json"]
    done = marless(directory, *words)
    assert json.loads(done.stdout)["return"] == 3.0


def test_tables_and_names_too(directory):
    table = marless(directory, "evaluate", "shared", "--env", NAME, "--episodes", "2").stdout
    assert [line.split()[0] for line in table.splitlines()] == ["agent", "agent_0", "agent_1", "mean"]
    assert marless(directory, "evaluate", "shared", "--env", NAME, "-o", "name").stdout == "shared\n"


@pytest.mark.parametrize("words", [["check", "job.yaml"], ["train", "job.yaml", "--dry-run"], ["doctor", "job.yaml"]])
def test_commands_that_look_at_jobs(directory, words):
    done = marless(directory, *words, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_a_calibration_that_ends_is_said_in_one_sentence(directory):
    dying = yaml.safe_dump(JOB | {"env": {"name": NAME, "options": {"ends": True}}})
    (directory / "job.yaml").write_text(dying)
    done = marless(directory, "train", "job.yaml", "--dry-run")
    last = [line for line in done.stderr.splitlines() if line.startswith("marless: ")][-1]
    assert (done.returncode, done.stdout) == (1, "")
    assert last == "marless: the calibration was ended by a signal: Segmentation fault"


def test_a_closed_standard_error_is_no_error(directory):
    words = ["evaluate", "shared", "--env", NAME, "--episodes", "2", "-o", "json"]
    done = marless(directory, *words, redirected="2>&-")
    assert json.loads(done.stdout)["return"] == 3.0


def test_a_full_disk_is_still_said(directory):
    done = marless(directory, "evaluate", "shared", "--env", NAME, "--episodes", "2", redirected=">/dev/full")
    assert done.returncode == 1
    assert "marless: the output cannot be written (No space left on device); make room" in done.stderr


def test_a_reader_that_leaves_is_no_error(directory):
    words = ["evaluate", "shared", "--env", NAME, "--episodes", "2", "-o", "json"]
    done = marless(directory, *words, redirected="| true")
    assert "Traceback" not in done.stderr


def test_a_program_that_calls_a_command_keeps_its_standard_output(capfd):
    output.for_data_alone(lambda: output.data("data"))()
    os.write(1, b"own\n")
    assert capfd.readouterr() == ("data\nown\n", "")
