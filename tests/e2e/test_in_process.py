"""`marless train --in-process` as a user meets it: debuggers, tracebacks, kill -9, and going on elsewhere."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.called import called
from tests.e2e.test_train import JOB

CORRIDOR = """
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Corridor(ParallelEnv):
    metadata = {"name": "corridor"}
    possible_agents = ["left", "right"]

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {a: np.zeros(2, np.float32) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1  # here
        over = self.t >= 5
        obs, agents = {a: np.full(2, self.t / 5, np.float32) for a in self.agents}, self.agents
        self.agents = [] if over else agents
        every = lambda value: {a: value for a in agents}
        return obs, every(1.0), every(False), every(over), every({})
"""
LINE = 1 + CORRIDOR[: CORRIDOR.index("# here")].count("\n")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    own = {"env": {"name": "pettingzoo/corridor:Corridor"}, "stop": {"rounds": 2}}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(JOB | own))
    (tmp_path / "corridor.py").write_text(CORRIDOR)
    return tmp_path


def marless(place: Path, *arguments: str, debugger: str = "", code: int = 0) -> str:
    """Run a command to its end, under a debugger that is given these commands; returns all that it printed."""
    command = [sys.executable, *(["-m", "pdb"] if debugger else []), "-m", "marless", *arguments]
    environment = {**os.environ, "MARLESS_ENV_MODULES": "corridor", "PYTHONPATH": str(place)}
    ended = subprocess.run(
        command, cwd=place, env=environment, input=debugger, capture_output=True, text=True, timeout=100, check=False
    )
    assert debugger or ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


def weights(folder: Path) -> dict[str, bytes]:
    newest = max((folder / "checkpoints").glob("round-*"))
    return {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}


def test_a_breakpoint_in_an_environment_stops_there(place):
    told = marless(
        place,
        "train",
        "own.yaml",
        "--in-process",
        "--job",
        "own",
        debugger=f"b corridor.py:{LINE}\nc\nc\nup\nup\np 6 * 7, sorted(actions)\ndown\ndown\nwhere\ncl 1\nc\nq\n",
    )
    assert f"corridor.py({LINE})step()" in told
    assert "in_process/actors.py" in told and "asyncio/base_events.py" in told  # calls, and no thread between
    assert "SUCCEEDED" in told
    assert len((place / "runs/own/rounds.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("workers", ["0", "1"])
def test_an_exception_is_told_with_its_line(place, workers):
    wrong = CORRIDOR.replace("self.t += 1  # here", "self.t += 1 if self.t < 3 else 1 // 0  # here")
    (place / "corridor.py").write_text(wrong)
    told = marless(place, "train", "own.yaml", "--in-process", "--workers", workers, "--job", "own", code=100)
    assert "marless: job failed: the environment is broken: its step() of copy 0 at step" in told
    assert f'corridor.py", line {LINE}, in step' in told
    assert "ZeroDivisionError" in told


def test_a_job_that_is_killed_goes_on_in_a_process_or_on_services_to_the_same_weights(place):
    code, whole, _ = called(place, ("train", "job.yaml", "--in-process", "--job", "whole", "-o", "json"), os.environ)
    assert (code, json.loads(whole)["rounds"]) == (0, JOB["stop"]["rounds"])
    for job, how in (("process", ["--in-process", "--workers", "2"]), ("services", [])):
        killed(place, job)
        assert called(place, ("train", "--resume", job, *how), os.environ)[0] == 0
        assert weights(place / "runs" / job) == weights(place / "runs/whole")


def test_a_job_that_is_run_already_is_refused(place):
    """A second command would only have watched, and not have ended by Ctrl-C."""
    qmix = "algorithm={name: qmix, warmup: 16, updates: 1, batch: 8, replay: {capacity: 500}}"
    command = [sys.executable, "-m", "marless", "train", "job.yaml", "--in-process", "--job", "twice", "--set", qmix]
    with subprocess.Popen(
        [*command, "--set", "stop.rounds=1000000"], cwd=place, stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stderr is not None
        while "greedy return" not in first.stderr.readline():
            assert first.poll() is None
        for how in (["--in-process"], []):
            code, _, told = called(place, ("train", "--resume", "twice", *how), os.environ)
            assert code == 1
            assert "job twice is being run by a coordinator or another command" in told
        first.kill()


def killed(place: Path, job: str) -> None:
    """Start a job and kill it after its first checkpoint, in the middle of some round."""
    command = [sys.executable, "-m", "marless", "train", "job.yaml", "--in-process", "--job", job]
    environment = {**os.environ, "MARLESS_FAILPOINT": "coordinator.record.before:20"}
    ended = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def test_workers_are_for_one_process(place):
    code, _, told = called(place, ("train", "job.yaml", "--workers", "2"), os.environ)
    assert code == 2
    assert "--workers: it is for --in-process" in told
