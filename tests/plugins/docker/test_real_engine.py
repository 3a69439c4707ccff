"""The launcher `docker` on a real engine: the contract, what containers may do, and what is left of killed pools."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from bench.cold_start import worker_start_s
from marless.core import process_environment
from marless.fleet import fleet
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.contract import check_launcher
from marless.fleet.launchers.registry import Choice
from marless.rpc.v1.actor_pool_pb2 import ScaleRequest
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest
from marless_docker import containers
from marless_docker import launcher as docker
from marless_docker.engine import DEFAULT, Engine
from tests.containers.deployment import ROOT, Deployment, up
from tests.containers.relay import engine_for_all
from tests.containers.test_jobs import JOB, ROUNDS, disturbed, undisturbed, weights
from tests.faults import scale_down
from tests.faults.pools import RunningPools, running_pools, small_job

__all__ = ["undisturbed"]

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900, func_only=True), pytest.mark.usefixtures("images")]
OPTIONS = {"network": "host", "user": "1000"}
MODULE = "marless.services.actor_pool.worker"
PATIENCE_S = 30.0
START_S = 2.0


def engine() -> Engine:
    return Engine("", PATIENCE_S)


def of_key(launcher) -> list:
    return engine().labelled(f"{containers.KEY}={launcher._key}")


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


async def test_it_passes_the_contract():
    await check_launcher(lambda program: docker.make(program, OPTIONS), MODULE, listen="127.0.0.1:0")


async def test_a_worker_has_no_rights_and_has_limits(tmp_path):
    """It waits for its pool, which is not there."""
    program = WorkerProgram(
        MODULE,
        ("--pool", "127.0.0.1:9", "--param-store", "127.0.0.1:9"),
        {},
        lambda: "token",
        process_environment.ACTOR,
    )
    launcher = docker.make(program, OPTIONS | {"memory": "300m", "pids": "60"})
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    [found] = of_key(launcher)
    shown = output("docker", "inspect", found["Id"])
    assert "ticket" not in shown and "token" not in shown
    [told] = json.loads(shown)
    assert told["HostConfig"]["Memory"] == 300 * 2**20
    assert told["HostConfig"]["PidsLimit"] == 60
    assert told["HostConfig"]["ReadonlyRootfs"] is True
    asked = output("docker", "exec", found["Id"], "cat", "/proc/1/status")
    status = dict(line.split(":\t", 1) for line in asked.splitlines())
    assert set(status["Uid"].split()) == {"1000"}
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    await launcher.close()
    assert of_key(launcher) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": "marless-nowhere"}, "cannot inspect image marless-nowhere: "),
        ({"network": "marless-nowhere"}, "cannot inspect network marless-nowhere: "),
        ({"volumes": "{tmp_path}/nowhere:/data"}, "/nowhere"),
    ],
)
async def test_what_the_engine_refuses_is_told(options, said, tmp_path):
    options = {name: value.format(tmp_path=tmp_path) for name, value in options.items()}
    program = WorkerProgram(MODULE, (), {}, lambda: "token", process_environment.ACTOR)
    launcher = docker.make(program, OPTIONS | options)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    await launcher.close()
    assert of_key(launcher) == []
    if launch.outcome is LaunchOutcome.ACCEPTED:
        pytest.xfail("this engine makes missing sources of mounts, as podman's does")
    assert launch.outcome is LaunchOutcome.REFUSED
    assert said in launch.reason


async def test_a_worker_that_is_out_of_memory_costs_one_attempt_and_is_replaced(tmp_path, monkeypatch):
    """The kernel is told which process to end; then another one in the same container takes all of its memory."""
    monkeypatch.setattr(fleet, "TOLD_S", PATIENCE_S)  # an engine that still removes others' containers may answer late
    choice = Choice("docker", OPTIONS | {"memory": "300m"})
    actors = 20  # of one worker, since engines may take seconds to say where it runs
    job = small_job(actors={"count": actors, "envs": 8, "steps": 4000})
    with capture_logs() as logs:
        async with running_pools(tmp_path, actor_workers=1, launcher=choice, ports=True) as running:
            epoch, versions = await running.open("memory", job)
            groups = job.sharing.decide(()).groups
            sampling = asyncio.create_task(running.pools.train("memory", job, 0, actors, groups, versions, epoch=epoch))
            [worker] = await busy(running)
            await asyncio.to_thread(exhaust, worker)
            rollout = await sampling
    lost = [each for each in rollout.invocations if each.attempt < 2 and each.worker == worker and each.vcpu_s == 0]
    assert len(rollout.invocations) == actors + 1 and len(lost) == 1
    [how] = [each["how"] for each in logs if each["event"] == "worker.ended"]
    assert "out of memory" in how and "memory=300m" in how


async def busy(running: RunningPools) -> list[str]:
    """The names of the workers, once all of them run tasks."""
    stub = ActorPoolServiceStub(running.operator.channel)
    async with asyncio.timeout(4 * PATIENCE_S):
        while True:
            found = (await running.operator.call(stub.ListWorkers, ListWorkersRequest())).workers
            if found and all(each.busy for each in found):
                return [each.worker for each in found]
            await asyncio.sleep(0.01)


def exhaust(worker: str) -> None:
    """Use all memory that the container of a worker may use, which stops meanwhile, so that its task lasts."""
    [found] = engine().labelled(f"{containers.WORKER}={worker}")
    pid = engine()._client().inspect_container(found["Id"])["State"]["Pid"]
    os.kill(pid, signal.SIGSTOP)
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    hog = ["docker", "exec", found["Id"], "python", "-c", f"b'1' * {2**29}"]
    subprocess.run(
        hog, capture_output=True, check=False
    )  # ends with its container, in a way that depends on the engine


def test_nothing_is_left_of_a_killed_pool(tmp_path):
    """Its workers exit by themselves; one that hangs, and what all have left, is found and removed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "marless.services.actor_pool", "--listen", address, "--actor-workers", "2"]
    command += ["--param-store", "127.0.0.1:9", "--launcher", "docker,network=host,user=1000"]
    pool = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    with grpc.insecure_channel(address) as channel:
        ActorPoolServiceStub(channel).Scale(ScaleRequest(workers=2), timeout=PATIENCE_S, wait_for_ready=True)
    mine = f"/{pool.pid}/"
    found = [each for each in engine().labelled(containers.POOL) if mine in each["Labels"][containers.POOL]]
    assert len(found) == 2
    hung = engine()._client().inspect_container(found[0]["Id"])["State"]["Pid"]
    os.kill(hung, signal.SIGSTOP)
    assert pool.pid not in {int(each.pool) for each in containers.of_dead_pools(engine()) if each.pool.isdecimal()}
    pool.kill()
    pool.wait()
    ended = engine().ended(found[1]["Id"])
    assert ended and not ended.is_running
    left = {each.id for each in containers.of_dead_pools(engine()) if each.pool == f"{pool.pid}"}
    assert len(left) == 2
    assert left <= set(output(sys.executable, "-m", "marless", "fleet", "reap", "-o", "name").split())
    assert not [each for each in engine().labelled(containers.POOL) if mine in each["Labels"][containers.POOL]]


def test_a_worker_in_a_container_soon_runs_its_first_task(record_property):
    first_s, start = worker_start_s(5, "docker,network=host,user=1000")
    record_property("first_of_its_pool_s", first_s)
    record_property("start_s", start.median)
    assert start.low <= START_S  # other programs may slow down the others


def test_pools_in_containers_start_workers_in_containers(undisturbed, tmp_path):
    """To the same weights; one worker is killed on the way. None is left when the pools are stopped.

    At first, the pools' user may not use the engine's socket.
    """
    with engine_for_all(tmp_path) as path:
        path.chmod(0o600)
        deployment = Deployment(tmp_path, engine=path)
        deployment.make_credentials()

        def crash(rounds: int) -> None:
            if rounds == ROUNDS // 2:
                engine().remove(workers(deployment)[0]["Id"])

        with up(deployment):
            permitted_later(deployment, path)
            disturbed(deployment, "contained", crash)
            assert weights(deployment, "contained", tmp_path / "run") == undisturbed
            left = {each["Labels"][containers.WORKER].partition("-")[0] for each in workers(deployment)}
            assert left - {"background"} == {"actor", "learner"}  # that one leaves seconds after the random baseline
            deployment.compose("stop")
            assert workers(deployment) == []


def permitted_later(deployment: Deployment, path: Path) -> None:
    """A job waits for permission to use the socket, says so, and goes on once there is."""
    with deployment.client() as client:
        client.submit(JOB, job="waiting")
        while "container engine" not in (job := client.get("waiting")).reason:
            assert not job.state.ended, job.reason
            time.sleep(0.1)
        said = (
            f"user {os.getuid() or 1000} may not use the container engine at {DEFAULT}; add the user to the group of "
            "its socket (`docker`), or set DOCKER_HOST to a rootless engine"
        )
        assert job.reason == f"waits for learner workers: cannot inspect image marless-learners: {said}"
        path.chmod(0o666)
        next(event for event in client.watch("waiting") if event.record is not None)
        client.cancel("waiting")


def workers(deployment: Deployment) -> list:
    """Containers of workers in the network of a deployment."""
    name = f"{deployment.project}-inside"
    found = engine().labelled(containers.WORKER)
    return [each for each in found if name in ((each["NetworkSettings"] or {}).get("Networks") or {})]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("workers", "steps"), [(12, 10_000), (100, 1200)])
async def test_workers_that_leave_all_at_once_lose_nothing(tmp_path, record_property, workers, steps):
    options = Choice("docker", OPTIONS | {"connect_s": "240"})
    figures = await scale_down.at_once(tmp_path, options, workers=workers, remaining=3, steps=steps, ports=True)
    record_property("figures", figures)
    assert (figures["left"], figures["lost"], figures["actors run again"]) == (workers - 3, 0, 0)
