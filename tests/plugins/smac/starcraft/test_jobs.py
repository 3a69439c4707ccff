"""Jobs whose battles are fought in the game, from their file on."""

import json
import subprocess
import sys

import pytest

from marless.core.errors import SpecError
from marless.jobs.job import prepare
from marless.jobs.spec import parse
from marless.learning.envs import registry

JOB = {
    "seed": 0,
    "env": {"name": "smac/3m", "options": {"backend": "sc2"}},
    "algorithm": {"name": "mappo"},
    "actors": {"count": 1, "envs": 2, "steps": 20, "episodes": "fresh"},
    "evaluation": {"every": 0, "episodes": 2, "random_episodes": 2},
    "stop": {"rounds": 2},
}


def job(**changes):
    return parse(JOB | changes, "job.yaml")


def test_a_job_that_would_carry_battles_is_refused(sc2):
    sc2("3m")
    carried = job(actors=JOB["actors"] | {"episodes": "carried"})
    with pytest.raises(SpecError, match=r"battles of StarCraft II cannot be saved; set actors.episodes: fresh"):
        prepare(carried)
    assert prepare(job()).spaces.wins


def test_a_job_without_the_game_is_refused_before_it_starts(monkeypatch):
    monkeypatch.delenv("SC2PATH", raising=False)
    with pytest.raises(SpecError, match="env: environment smac/3m: backend sc2 needs StarCraft II: install"):
        prepare(job())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"backend": "sc"}, "unknown backend 'sc'; did you mean 'sc2'"),
        ({"build": -1}, "build must be a number of a folder Versions/Base<build>, or 0, got -1"),
        ({"backend": "sc2", "build": 7}, "build 7 is not installed; installed: 69232, 75689"),
        ({"backend": "sc2", "reward_win": "high"}, "reward_win must be a number"),
    ],
)
def test_options_that_are_wrong(sc2, options, why):
    sc2("3m")
    with pytest.raises(SpecError, match=why):
        registry.make("smac/3m", options, 1)


@pytest.mark.slow  # starts services, and a stand-in for each copy of workers and evaluations
def test_a_job_trains_while_its_game_dies(sc2, tmp_path):
    sc2("3m", exit=5, processes=3)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    command = [sys.executable, "-m", "marless", "train", str(file), "-o", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=110)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2
