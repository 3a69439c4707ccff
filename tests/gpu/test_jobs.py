"""Jobs whose learners compute on a GPU, with all services."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from tests.e2e.test_up import place  # noqa: F401  # a fixture
from tests.gpu.device import DEVICE, needs_device

pytestmark = [pytest.mark.gpu, needs_device, pytest.mark.timeout(300)]
ROUNDS = 15
JOB = """
env: {name: mpe/simple_spread, options: {agents: 3}}
algorithm: {name: ippo}
model: {hidden: [64, 64]}
actors: {count: 4, envs: 8}
evaluation: {every: 0, episodes: 10, random_episodes: 10}
"""


def weights(path, job):
    files = sorted((path / "runs" / job / "checkpoints").rglob("*.safetensors"))
    assert files
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def settings(rounds=ROUNDS):
    return ("--set", f"stop.rounds={rounds}", "--set", f"learner.device={DEVICE}")


def test_job_trains_there_and_again_to_the_same_bits(place):  # noqa: F811
    (place.path / "job.yaml").write_text(JOB)
    for job in ("one", "again"):
        code, _, said = place.type("train", "job.yaml", "--job", job, *settings())
        assert code == 0, said
    assert weights(place.path, "one") == weights(place.path, "again")
    log = (place.path / "runs" / "one" / "logs" / "learner_pool.log").read_text()
    assert set(re.findall(r'"?device"?[=:] ?"?(cpu|cuda:\d+)', log)) == {DEVICE}


def test_two_workers_share_the_device(place):  # noqa: F811
    (place.path / "job.yaml").write_text(JOB)
    code, _, said = place.type("up", "--learner-workers", "2", "--actor-workers", "4")
    assert code == 0, said
    try:
        for job in ("a", "b"):
            code, _, said = place.type("submit", "job.yaml", "--job", job, *settings())
            assert code == 0, said
        code, out, said = place.type("wait", "a", "b", "-o", "json")
        assert code == 0, said
        assert {job["state"] for job in json.loads(out)} == {"SUCCEEDED"}
    finally:
        place.type("down")
