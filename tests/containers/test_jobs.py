"""Jobs that are submitted from the host, whatever becomes of the containers."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from marless.app.client import JobState
from marless.jobs import spec as specs
from tests.containers.deployment import SERVICES, Deployment, up

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900, func_only=True)]
FIRST_ROUND_S = 15.0
ROUNDS = 60
JOB = specs.parse(
    {
        "env": {"name": "mpe/simple_spread"},
        "algorithm": {"name": "ippo"},
        "actors": {"count": 2, "envs": 10, "steps": 100},
        "evaluation": {"every": 0, "episodes": 4, "random_episodes": 4},
        "stop": {"rounds": ROUNDS},
    },
    "spec",
)


def weights(deployment: Deployment, job: str, to: Path) -> dict[str, bytes]:
    """The last weights of a job, as downloaded to the host."""
    with deployment.client() as client:
        client.download(job, to)
    newest = max((to / "checkpoints").iterdir(), key=lambda folder: int("".join(filter(str.isdigit, folder.name))))
    return {file.name: file.read_bytes() for file in newest.glob("*.safetensors")}


def disturbed(deployment: Deployment, job: str, disturb) -> None:
    """Run a job; `disturb` is called with the number of each recorded round. Raises AssertionError if it fails."""
    with deployment.client() as client:
        client.submit(JOB, job=job)
        rounds = 0
        for event in client.watch(job):
            if event.record is not None:
                rounds += 1
                disturb(rounds)
        ended = client.get(job)
    assert ended.state is JobState.SUCCEEDED, f"{ended.reason}\n{deployment.logs}"
    assert rounds == ROUNDS


@pytest.fixture(scope="module")
def undisturbed(deployment, tmp_path_factory) -> dict[str, bytes]:
    disturbed(deployment, "undisturbed", lambda rounds: None)
    found = weights(deployment, "undisturbed", tmp_path_factory.mktemp("undisturbed") / "run")
    assert found
    return found


def test_killed_containers_change_no_weight(deployment, undisturbed, tmp_path):
    """Each is killed by `docker kill`, after which an operator starts it; then each by a crash, after which it is
    started by the engine.
    """

    def kill(rounds: int) -> None:
        number, left = divmod(rounds, 5)
        if left or not 0 < number <= 2 * len(SERVICES):
            return
        service = SERVICES[(number - 1) % len(SERVICES)]
        if number <= len(SERVICES):
            deployment.compose("kill", "-s", "SIGKILL", service)
            deployment.compose("up", "-d")
        else:
            os.kill(deployment.inspect(service)["State"]["Pid"], signal.SIGKILL)

    disturbed(deployment, "killed", kill)
    assert weights(deployment, "killed", tmp_path / "run") == undisturbed


def test_down_and_up_in_the_middle_of_a_job_change_no_weight(deployment, undisturbed, tmp_path):
    def restart(rounds: int) -> None:
        if rounds == ROUNDS // 2:
            deployment.compose("down")
            deployment.compose("up", "-d")

    disturbed(deployment, "restarted", restart)
    assert weights(deployment, "restarted", tmp_path / "run") == undisturbed


def test_workers_that_dial_in_train_to_the_same_weights(images, undisturbed, tmp_path):
    """From containers of their own; the learner worker sees none of its pool's files. It crashes once."""
    deployment = Deployment(tmp_path, actor_workers=3)
    deployment.make_credentials()

    def crash(rounds: int) -> None:
        if rounds == ROUNDS // 2:
            os.kill(deployment.inspect("learner-worker")["State"]["Pid"], signal.SIGKILL)

    with up(deployment):
        disturbed(deployment, "dialled", crash)
        assert weights(deployment, "dialled", tmp_path / "run") == undisturbed
        workers = re.findall(r'"worker": ?"([^"]+)"', (tmp_path / "run" / "rounds.jsonl").read_text("utf-8"))
        assert workers
        assert not [name for name in workers if name.startswith(("actor-", "learner-"))]  # as pools name theirs


def test_the_first_round_is_recorded_soon_after_up(images, tmp_path, record_property):
    deployment = Deployment(tmp_path)
    deployment.make_credentials()
    started_s = time.monotonic()
    with up(deployment), deployment.client() as client:
        client.submit(JOB, job="first")
        next(event for event in client.watch("first") if event.record is not None)
        took_s = time.monotonic() - started_s
        client.cancel("first")
    record_property("first_round_s", took_s)
    assert took_s <= FIRST_ROUND_S
