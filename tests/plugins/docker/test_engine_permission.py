"""A container engine whose socket the pool's user may not use: the kernel refuses the connection.

Root may use every socket. So the commands here run without the capabilities by which root overrides permissions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.hosts import running_hosts
from tests.plugins.docker.engine_server import EngineServer, engine

AS_OTHERS = () if os.getuid() else ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
JOB = {
    "env": {"name": "mpe/simple_spread", "options": {"agents": 2}},
    "algorithm": {"name": "ippo", "epochs": 1, "minibatches": 1},
    "model": {"hidden": [8]},
    "actors": {"count": 2, "envs": 2},
    "evaluation": {"every": 0, "episodes": 4, "random_episodes": 4},
    "stop": {"rounds": 3},
}
ADVICE = "add the user to the group of its socket (`docker`), or set DOCKER_HOST to a rootless engine"


@pytest.fixture
def forbidden(tmp_path: Path) -> Iterator[EngineServer]:
    """An engine whose socket nobody may use yet."""
    with engine(tmp_path) as server:
        socket_of(server).chmod(0)
        yield server


def socket_of(server: EngineServer) -> Path:
    return Path(server.address.removeprefix("unix://"))


def refused(call: str, server: EngineServer) -> str:
    return f"cannot {call}: user {os.getuid()} may not use the container engine at {server.address}"


def of_doctor(server: EngineServer) -> dict[str, str]:
    """What `marless doctor` finds of the launcher `docker`."""
    chosen = {"MARLESS_LAUNCHER": f"docker,image=workers,engine={server.address}"}
    command = (*AS_OTHERS, sys.executable, "-m", "marless", "doctor", "-o", "json")
    done = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, check=False)
    [found] = [each for each in json.loads(done.stdout) if each["check"] == "launcher-docker"]
    return found


def test_the_doctor_says_who_may_not_use_which_socket_and_what_to_do(forbidden):
    found = of_doctor(forbidden)
    assert (found["level"], found["advice"]) == ("fail", ADVICE)
    assert found["found"] == refused(f"ask for the version of {forbidden.address}", forbidden)
    socket_of(forbidden).chmod(0o600)
    assert of_doctor(forbidden)["level"] == "ok"


@pytest.mark.slow  # it starts all services
async def test_a_job_waits_for_permission_says_so_and_goes_on(forbidden, tls, tmp_path):
    launcher = f"docker,image=workers,network=host,user=1000,engine={forbidden.address}"
    variables = {"actor_pool": {"MARLESS_LAUNCHER": launcher}}
    async with running_hosts(tmp_path, tls, variables, {"actor_pool": AS_OTHERS}) as hosts:
        spec = tmp_path / "job.yaml"
        spec.write_text(json.dumps(JOB))
        await hosts.marless("submit", str(spec), "--job", "job")
        while "engine" not in (job := json.loads(await hosts.marless("get", "job", "-o", "json")))["reason"]:
            assert job["state"] in ("PENDING", "RUNNING"), job
        said = f"waits for actor workers: {refused('inspect image workers', forbidden)}; {ADVICE}"
        assert (job["state"], job["reason"]) == ("RUNNING", said)
        socket_of(forbidden).chmod(0o600)
        await hosts.marless("wait", "job")
        job = json.loads(await hosts.marless("get", "job", "-o", "json"))
    assert (job["state"], job["reason"]) == ("SUCCEEDED", "3 rounds done")
