"""The launcher `ray` on a real node: the contract, room, secrets, errors, and what a killed pool leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import venv
from contextlib import AsyncExitStack, suppress
from importlib import metadata
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from marless.core import orphans, process_environment
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.contract import check_launcher
from marless.rpc.v1.actor_pool_pb2 import ScaleRequest
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless_ray import launcher as ray_launcher
from tests.plugins.ray.clusters.cluster import (
    ACTOR,
    DRIVER,
    PATIENCE_S,
    WORKER,
    driver_of,
    eventually,
    further_node,
    marless,
    processes,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left")]
MODULE = "tests.unit.fleet.container_worker"
"""Writes what it was given to a file, and waits for its pool to close its standard input."""
ROOT = Path(__file__).parents[4]


def program(place, token="token of the role", **more):
    given = ("--place", str(place))
    return WorkerProgram(
        MODULE, given, process_environment.inherited(os.environ), lambda: token, process_environment.ACTOR | more
    )


@pytest_asyncio.fixture
async def made(tmp_path):
    """Makes launchers, which are closed after the test."""
    async with AsyncExitStack() as stack:

        def make(cluster, token=lambda: "token of the role", **options):
            given = dataclasses.replace(program(tmp_path, PYTHONPATH=str(ROOT)), token=token)
            launcher = ray_launcher.make(given, {"address": cluster.address, **options})
            stack.push_async_callback(launcher.close)
            return launcher

        yield make


async def placed(launcher, order):
    """The answer to an order, as its pool repeats it while there is no room."""
    async with asyncio.timeout(2 * PATIENCE_S):
        while "has no room" in (answer := (await launcher.launch([order]))[0]).reason:
            await launcher.drain(order.worker, 0.0)
    return answer


async def facts(place, worker):
    await asyncio.to_thread(eventually, (place / worker).exists, f"{worker} starts")
    return json.loads((place / worker).read_text())


async def test_it_passes_the_contract(one_node):
    options = {"address": one_node.address}
    await check_launcher(lambda each: ray_launcher.make(each, options), "marless.services.actor_pool.worker")


async def test_no_secret_is_shown_and_nothing_of_ray_reaches_the_worker(one_node, made, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_CANARY", "of the pool")
    launcher = made(one_node)
    secrets = ["ticket-d41d8cd98f00b204", "token of the role"]
    assert await placed(launcher, LaunchOrder("one", secrets[0], ("--more",))) == ACCEPTED
    found = await facts(tmp_path, "one")
    assert found["handover"] == dict(zip(("ticket", "token"), secrets, strict=True))
    [worker] = processes(WORKER, "--worker one")
    variables = variables_of(worker)
    assert not [each for each in variables if each.startswith(("RAY_", "_RAY"))]
    assert {"OMP_NUM_THREADS=1", "MALLOC_ARENA_MAX=1"} <= set(variables)
    await launcher.close()
    kept = files_of(one_node)
    assert any(path.name.startswith("worker-") for path in kept) and any(path.parent.name == "fd" for path in kept)
    assert [path for path in kept if holds(path, secrets)] == []


def variables_of(process: int) -> list[str]:
    return Path(f"/proc/{process}/environ").read_text().split("\0")


def files_of(cluster) -> list[Path]:
    """What Ray keeps: its logs, and its object stores, which it has deleted and holds open."""
    stores = [path for raylet in processes("/raylet ") for path in Path(f"/proc/{raylet}/fd").iterdir()]
    logs = [path for path in Path(cluster.head_node.get_session_dir_path()).rglob("*") if path.is_file()]
    return [*logs, *(path for path in stores if "plasma" in str(path.readlink()) and path.is_file())]


def holds(path: Path, secrets: list[str]) -> bool:
    content = path.read_bytes()
    return any(secret.encode() in content for secret in secrets)


async def test_what_ray_has_no_room_for_waits_and_is_started_once(one_node, made, tmp_path):
    launcher = made(one_node, cpus="2", place_s="3")
    assert await placed(launcher, LaunchOrder("one", "ticket")) == ACCEPTED
    [second] = await launcher.launch([LaunchOrder("two", "ticket")])
    assert second.outcome is LaunchOutcome.REFUSED
    assert second.reason.startswith("Ray has no room for a worker of 2 CPUs: 1 node with 3 CPUs (1 free), ")
    assert second.reason.endswith("; add nodes, or end something else; an autoscaler adds nodes by itself")
    await launcher.drain("two", 0.0)
    await launcher.drain("one", 0.0)
    assert await placed(launcher, LaunchOrder("two", "second ticket")) == ACCEPTED
    assert (await facts(tmp_path, "two"))["handover"]["ticket"] == "second ticket"
    assert len(processes(WORKER)) == 1
    await launcher.close()


async def test_a_demand_that_no_node_can_meet_is_told(one_node, made):
    launcher = made(one_node, gpus="1", place_s="1")
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.reason.startswith("Ray has no room for a worker of 1 CPU, 1 GPU: no node has 1 GPU (1 node with ")
    condition = await launcher.check()
    assert condition.found.endswith("none has 1 CPU, 1 GPU, which a worker needs")
    assert condition.advice == "add such nodes, or ask for less"
    await launcher.close()


@pytest.mark.parametrize(("worker", "how"), [("exits", "exit code 3"), ("dies", "killed by signal 15")])
async def test_how_a_worker_ended_is_told_and_its_place_is_used_again(one_node, made, tmp_path, worker, how):
    launcher = made(one_node)
    assert await placed(launcher, LaunchOrder(worker, "ticket")) == ACCEPTED
    async with asyncio.timeout(PATIENCE_S):
        assert await launcher.observe(worker) == how
    before = processes(ACTOR)
    await launcher.drain(worker, 0.0)
    assert await placed(launcher, LaunchOrder("next", "ticket")) == ACCEPTED
    assert processes(ACTOR) == before
    await launcher.close()


async def test_a_new_token_reaches_running_workers(one_node, made, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_launcher, "CHECK_S", 0.01)
    tokens = ["first"]
    launcher = made(one_node, token=lambda: tokens[-1])
    assert await placed(launcher, LaunchOrder("one", "ticket")) == ACCEPTED
    for token in ("first", "second"):
        assert (await facts(tmp_path, "one"))["handover"]["token"] == token
        (tmp_path / "one").unlink()
        tokens.append("second")
    await launcher.close()


async def test_a_hung_worker_is_ended(one_node, made, tmp_path):
    launcher = made(one_node)
    assert await placed(launcher, LaunchOrder("one", "ticket")) == ACCEPTED
    await facts(tmp_path, "one")
    [worker] = processes(WORKER)
    os.kill(worker, signal.SIGSTOP)
    await launcher.drain("one", 0.1)
    assert processes(WORKER) == []
    await launcher.close()


async def test_a_lost_driver_is_lost_workers_and_is_replaced(one_node, made):
    launcher = made(one_node)
    assert await placed(launcher, LaunchOrder("one", "ticket")) == ACCEPTED
    [worker] = processes(WORKER)
    [driver] = driver_of(os.getpid())
    os.kill(driver, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        assert await launcher.observe("one") == "the connection to Ray is lost (its driver ended: killed by signal 9)"
    await launcher.drain("one", 0.0)
    assert await placed(launcher, LaunchOrder("one", "ticket")) == ACCEPTED
    await asyncio.to_thread(eventually, lambda: worker not in processes(WORKER), "the worker of the dead driver ends")
    await launcher.close()


async def test_a_cluster_that_is_not_there_is_told(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"127.0.0.1:{free.getsockname()[1]}"
    launcher = ray_launcher.make(program(tmp_path), {"address": nowhere})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert launch.reason == (
        f"no Ray cluster answers at {nowhere}; start one (`ray start --head`), or give the address of one with "
        "address=HOST:6379 or address=ray://HOST:10001"
    )
    await launcher.close()


def test_doctor_tells_nodes_and_resources(one_node):
    shown = marless("doctor", "-o", "json", MARLESS_LAUNCHER=f"ray,address={one_node.address}").stdout
    [found] = [each for each in json.loads(shown) if each["check"] == "launcher-ray"]
    assert found["level"] == "ok"
    assert f"at {one_node.address}: 1 node with 3 CPUs (3 free), " in found["found"]
    assert found["found"].endswith("; a worker takes 1 CPU")


async def test_a_node_without_marless_or_with_another_version_is_told(one_node, made, tmp_path):
    """Such nodes have Ray, as the interpreter that runs them sees this one's packages, but not its editable install."""
    python = other_python(tmp_path / "bare")
    with further_node(one_node.address, python, bare=1):
        launcher = made(one_node, resources="bare:1")
        launch = await placed(launcher, LaunchOrder("one", "ticket"))
        await launcher.close()
    assert launch.outcome is LaunchOutcome.REFUSED
    ours = metadata.version("marless")
    assert launch.reason == f"a node of Ray has no marless {ours}: install it there, for the Python that runs Ray"
    python = other_python(tmp_path / "other", version="9.9")
    with further_node(one_node.address, python, other=1):
        launcher = made(one_node, resources="other:1")
        launch = await placed(launcher, LaunchOrder("one", "ticket"))
        await launcher.close()
    assert launch.outcome is LaunchOutcome.REFUSED
    there = f"{socket.gethostname()} has marless 9.9, and this pool has {ours}: install {ours} there, for {python}"
    assert launch.reason == f"Ray's node {there}"


def other_python(place: Path, version: str = "") -> str:
    """An interpreter that has the packages of this one, and marless only under another version, or not at all."""
    venv.create(place, symlinks=True)
    [packages] = place.glob("lib/python3*/site-packages")
    ours = Path(pytest.__file__).parent.parent
    if version:
        (packages / "marless").symlink_to(ROOT / "marless")
        (packages / "marless_ray").symlink_to(ROOT / "plugins" / "marless_ray")
        (packages / f"marless-{version}.dist-info").mkdir()
        (packages / f"marless-{version}.dist-info" / "METADATA").write_text(f"Name: marless\nVersion: {version}\n")
    (packages / "ours.pth").write_text(f"{ours}\n")
    return str(place / "bin" / "python")


@pytest.fixture
def pool(one_node, tmp_path):
    """A pool with two workers on the cluster, and its driver."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "marless.services.actor_pool", "--listen", address, "--actor-workers", "2"]
    command += ["--param-store", "127.0.0.1:9", "--launcher", f"ray,address={one_node.address}"]
    log = tmp_path / "pool.log"
    with log.open("wb") as errors, subprocess.Popen(command, cwd=ROOT, stderr=errors) as process:
        with grpc.insecure_channel(address) as channel, suppress(grpc.RpcError):  # if there is no room at first
            ActorPoolServiceStub(channel).Scale(ScaleRequest(workers=2), timeout=PATIENCE_S, wait_for_ready=True)

        def started() -> bool:
            assert process.poll() is None, f"the pool has ended by itself: {log.read_text()[-3000:]}"
            return len(processes(WORKER)) == 2

        try:
            eventually(started, "both workers start, which Ray may be slow to do; the pool runs")
        except AssertionError as error:
            process.kill()
            raise AssertionError(f"{error}\n{log.read_text()[-3000:]}") from None
        [driver] = driver_of(process.pid)
        yield process, driver
        process.kill()


def test_nothing_is_left_of_a_killed_pool_even_if_a_worker_hangs(pool):
    pool, driver = pool
    os.kill(processes(WORKER)[0], signal.SIGSTOP)
    pool.kill()
    pool.wait()
    eventually(lambda: not processes(WORKER), "workers end")
    eventually(lambda: not processes(ACTOR), "actors end")
    eventually(lambda: driver not in processes(DRIVER), "the driver ends")


def test_a_driver_that_hangs_after_its_pool_is_found_and_ended(pool):
    pool, driver = pool
    os.kill(driver, signal.SIGSTOP)
    assert str(driver) not in [each.id for each in orphans.of_dead_pools()]
    pool.kill()
    pool.wait()
    eventually(lambda: not processes(WORKER), "workers end by themselves")
    assert processes(ACTOR)
    [left] = [each for each in json.loads(marless("fleet", "list", "-o", "json").stdout) if each["id"] == f"{driver}"]
    assert left["pool"] == f"{pool.pid}" and DRIVER in left["what"]
    assert str(driver) in marless("fleet", "reap", "-o", "name").stdout.split()
    eventually(lambda: not processes(ACTOR), "Ray ends the actors of a driver that is gone")
