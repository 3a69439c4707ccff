"""The launcher `docker`: its containers, lost answers, errors, and what dead pools have left."""

import asyncio
import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time

import pytest

from marless.core import process_environment
from marless.core.errors import SpecError
from marless.fleet.gpus import WORKERS_PER_GPU
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, LaunchOutcome, WorkerProgram
from marless.fleet.launchers.contract import check_launcher
from marless_docker import containers
from marless_docker import launcher as docker
from marless_docker.containers import Pool
from marless_docker.engine import Engine
from tests.plugins.docker.engine_server import Fault, engine

MODULE = "tests.unit.fleet.container_worker"
PATIENCE_S = 30.0
SLOW_S = 0.2
DROPPED, DONE_AND_DROPPED = Fault(), Fault(is_done=True)


@pytest.fixture
def server(tmp_path):
    with engine(tmp_path) as running:
        yield running


def program(place, *arguments):
    given = ("--place", str(place), *arguments)
    return WorkerProgram(
        MODULE, given, {"SECRET": "of the pool"}, lambda: "token of the role", process_environment.ACTOR
    )


def options(server, **more):
    return {"image": "workers", "network": "inside", "user": "1000", "engine": server.address, **more}


@pytest.fixture
async def launcher(server, tmp_path):
    made = docker.make(program(tmp_path), options(server))
    yield made
    server.faults.clear()
    await made.close()
    assert server.containers == {}


async def facts(place, worker):
    async with asyncio.timeout(PATIENCE_S):
        while not (place / worker).exists():  # noqa: ASYNC110  # a process tells nobody
            await asyncio.sleep(0.01)
    return json.loads((place / worker).read_text())


async def test_it_passes_the_contract(server):
    given = options(server, network="host")
    await check_launcher(
        lambda each: docker.make(each, given), "marless.services.actor_pool.worker", listen="127.0.0.1:0"
    )
    assert server.containers == {}


async def test_a_container_has_limits_and_no_rights_and_shows_no_secret(server, launcher, tmp_path):
    assert await launcher.launch([LaunchOrder("one", "ticket of one", ("--more",))]) == [ACCEPTED]
    found = await facts(tmp_path, "one")
    assert found["handover"] == {"ticket": "ticket of one", "token": "token of the role"}
    [container] = server.created
    config, limits = container.config, container.config["HostConfig"]
    assert config["Cmd"] == [MODULE, "--place", str(tmp_path), "--more", "--launched", "--worker", "one"]
    assert (config["Entrypoint"], config["User"]) == (["python", "-P", "-m"], "1000")
    assert config["StdinOnce"] is config["OpenStdin"] is True
    assert limits["ReadonlyRootfs"] is True
    assert (limits["CapDrop"], limits["SecurityOpt"]) == (["ALL"], ["no-new-privileges:true"])
    assert limits["Memory"] == limits["MemorySwap"] == 2 * 2**30
    assert (limits["NanoCpus"], limits["PidsLimit"], limits["ShmSize"]) == (10**9, 512, 256 * 2**20)
    assert limits["Tmpfs"] == {"/tmp": f"mode=1777,nosuid,nodev,size={256 * 2**20}"}
    assert limits["NetworkMode"] == "inside"
    assert not limits.get("Privileged") and not limits.get("Binds")
    assert config["Labels"][containers.WORKER] == "one"
    shown = json.dumps(config)
    assert "ticket of" not in shown and "token of" not in shown and "of the pool" not in shown


async def test_containers_of_learners_have_one_gpu_each_and_a_part_of_its_memory(server, tmp_path):
    learners = dataclasses.replace(program(tmp_path), settings={WORKERS_PER_GPU: "0"}, most=3)
    made = docker.make(learners, options(server, gpus="0+2"))
    try:
        await made.launch([LaunchOrder(worker, "ticket") for worker in ("one", "two")])
        found = [each.config for each in server.created]
        asked = [each["HostConfig"]["DeviceRequests"] for each in found]
        assert sorted(each["DeviceIDs"][0] for [each] in asked) == ["0", "2"]
        assert all(each["Capabilities"] == [["gpu"]] for [each] in asked)
        assert all("MARLESS_GPU_SHARE=0.5" in each["Env"] for each in found)
    finally:
        await made.close()


@pytest.mark.parametrize(("worker", "how"), [("exits", "exit code 3"), ("dies", "exit code -15")])
async def test_how_a_worker_ended_is_told(launcher, tmp_path, worker, how):
    assert await launcher.launch([LaunchOrder(worker, "ticket")]) == [ACCEPTED]
    async with asyncio.timeout(PATIENCE_S):
        assert await launcher.observe(worker) == how


async def test_a_worker_that_needs_more_memory_than_its_limit_is_told(server, launcher, tmp_path):
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(tmp_path, "one")
    [container] = server.created
    container.is_out_of_memory = True
    container.process.kill()
    async with asyncio.timeout(PATIENCE_S):
        assert await launcher.observe("one") == "out of memory: it needs more than memory=2048m"


async def test_workers_end_with_their_pool(server, launcher, tmp_path):
    """As in a pool that is killed, the connection closes, and nobody kills."""
    await launcher.launch([LaunchOrder("one", "ticket")])
    await facts(tmp_path, "one")
    launcher._workers["one"]._writer.transport.abort()
    [container] = server.created
    assert await asyncio.to_thread(container.process.wait, PATIENCE_S) == 0


async def test_a_new_token_reaches_running_workers(server, tmp_path, monkeypatch):
    monkeypatch.setattr(docker, "CHECK_S", 0.01)
    tokens = ["first"]
    given = dataclasses.replace(program(tmp_path), token=lambda: tokens[-1])
    launcher = docker.make(given, options(server))
    await launcher.launch([LaunchOrder("one", "ticket")])
    for token in ("first", "second"):
        assert (await facts(tmp_path, "one"))["handover"]["token"] == token
        (tmp_path / "one").unlink()
        tokens.append("second")
    await launcher.close()


@pytest.mark.parametrize("call", ["create", "start"])
@pytest.mark.parametrize("fault", [DROPPED, DONE_AND_DROPPED])
async def test_a_lost_answer_is_looked_up_and_nothing_is_doubled(server, launcher, tmp_path, call, fault):
    server.faults[call].append(fault)
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(tmp_path, "one")
    assert len(server.created) == len(server.containers) == 1


async def test_what_is_not_known_to_run_is_removed_before_it_is_ordered_again(server, launcher, tmp_path):
    server.faults["create"].append(DONE_AND_DROPPED)
    server.faults["inspect"].append(DROPPED)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.UNKNOWN
    assert launch.reason.startswith("cannot inspect container marless-")
    assert len(server.containers) == 1
    server.faults["remove"].append(DROPPED)
    async with asyncio.timeout(PATIENCE_S):
        assert await launcher.observe("one") == launch.reason
    assert server.containers == {}
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(tmp_path, "one")
    assert len(server.containers) == 1


async def test_a_container_that_appears_after_its_worker_was_given_up_is_removed_at_the_end(server, launcher):
    await launcher.launch([])
    late = f"marless-{launcher._key}-late"
    server.add(late, "created", **{containers.KEY: launcher._key, containers.POOL: launcher._pool})
    await launcher.close()
    assert server.containers == {}


ERRORS = [
    ("image", Fault(404, "No such image: workers"), "cannot inspect image workers: No such image: workers; build the"),
    ("network", Fault(404, "network inside not found"), "network inside not found; create the network"),
    ("create", Fault(500, "OCI runtime: fork: Cannot allocate memory"), "cannot create container marless-.*; end some"),
    ("start", Fault(500, "OCI runtime: out of memory"), "cannot start container marless-.*; end something else, or"),
    ("start", Fault(400, "invalid mount config: bind source path does not exist"), "; correct volumes="),
    ("attach", Fault(500, "no space left on device"), "cannot attach to container .*; make room on the disk"),
    ("create", Fault(500, "something else."), "something else; see the engine's log"),
    ("version", Fault(404, "Not Found"), r"what answers at unix:\S+ does not serve Docker's API \(status 404\); set"),
    ("version", DROPPED, "cannot inspect image workers: the connection ended .* from the container engine at unix:"),
]


@pytest.mark.parametrize(("call", "fault", "said"), ERRORS)
async def test_the_engine_s_errors_are_told_and_the_worker_may_be_ordered_again(
    server, launcher, tmp_path, call, fault, said
):
    server.faults[call].append(fault)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert re.search(said, launch.reason), launch.reason
    assert server.containers == {}
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(tmp_path, "one")


async def test_an_engine_that_hangs_is_given_up_and_does_not_block_the_pool(server, tmp_path):
    launcher = docker.make(program(tmp_path), options(server, engine_s=str(SLOW_S)))
    server.faults["image"].append(Fault(hangs=True))
    launching = asyncio.create_task(launcher.launch([LaunchOrder("one", "ticket")]))
    await asyncio.sleep(0)
    assert not launching.done()
    [launch] = await launching
    assert launch.outcome is LaunchOutcome.REFUSED
    assert f"cannot inspect image workers: no answer within {SLOW_S} s from the container engine" in launch.reason
    await launcher.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("unix:///nowhere/engine.sock", "no container engine answers at unix:///nowhere/engine.sock; start it"),
        ("tcp://127.0.0.1:{port}", "no container engine answers at tcp://127.0.0.1:[0-9]+; start it"),
    ],
)
async def test_an_engine_that_is_not_there_is_told(server, tmp_path, url, said):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = url.format(port=taken.getsockname()[1])
        launcher = docker.make(program(tmp_path), options(server, engine=address))
        [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
        assert launch.outcome is LaunchOutcome.REFUSED
        assert re.search(said, launch.reason), launch.reason
        condition = await launcher.check()
        assert condition.advice
        await launcher.close()


async def test_a_socket_that_the_user_may_not_use_is_told(server, tmp_path, monkeypatch):
    def connect(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("socket.socket.connect", connect)
    launcher = docker.make(program(tmp_path), options(server))
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    monkeypatch.undo()
    assert launch.outcome is LaunchOutcome.REFUSED
    assert f"user {os.getuid()} may not use the container engine at {server.address}; add the user to" in launch.reason
    await launcher.close()


async def test_images_that_run_as_root_are_refused(server, tmp_path):
    server.images["workers"] = ""
    given = options(server)
    if os.getuid():
        given["user"] = "1000"
    settings = dataclasses.replace(containers.read(program(tmp_path), given), user="")
    launcher = docker.DockerLauncher(program(tmp_path), settings, Engine(server.address, 15.0))
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert (launch.outcome, launch.reason) == (
        LaunchOutcome.REFUSED,
        "image workers runs as root, and workers do not; give user=, such as user=1000",
    )
    await launcher.close()


async def test_the_doctor_is_told_what_the_engine_has(server, launcher):
    condition = await launcher.check()
    assert condition.found == f"Engine 25.0, API 1.44 at {server.address}, image workers"
    assert not condition.advice
    server.images.clear()
    condition = await launcher.check()
    assert condition.found == "cannot inspect image workers: No such image: workers"
    assert condition.advice == "build the image, or pull it, or give another one with image="


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": ""}, "give the image of the workers: --launcher docker,image="),
        ({"colour": "red"}, "launcher docker: no option 'colour'; it has image, network, user, memory"),
        ({"user": "0"}, "user=0: workers do not run as root"),
        ({"user": "root:root"}, "workers do not run as root"),
        ({"memory": "much"}, "memory=much: give a size, such as 512m or 2g"),
        ({"memory": "0g"}, "memory=0g: give a size"),
        ({"cpus": "-1"}, "cpus=-1: give a number of CPUs above 0"),
        ({"pids": "x"}, "pids=x: give a number of processes above 0"),
        ({"connect_s": "0"}, "connect_s=0: give a number of seconds above 0"),
        ({"engine_s": "soon"}, "engine_s=soon: give a number of seconds above 0"),
        ({"volumes": "/here"}, "volumes=/here: give SOURCE:/TARGET"),
        ({"engine": "https://far:2376"}, "the engine at https://far:2376 over TLS or SSH is not supported"),
    ],
)
def test_options_that_cannot_be_are_told(server, tmp_path, given, said):
    with pytest.raises(SpecError) as told:
        docker.make(program(tmp_path), options(server) | given)
    assert said in str(told.value)


def test_addresses_that_containers_cannot_reach_are_told(server, tmp_path):
    given = program(tmp_path, "--pool", "127.0.0.1:7000")
    with pytest.raises(SpecError, match=r"cannot reach 127\.0\.0\.1:7000; let the services listen on an address"):
        docker.make(given, options(server))
    assert docker.make(given, options(server, network="host"))


@pytest.fixture
def bound(tmp_path):
    """The address of a socket in a directory that has nothing else."""
    place = tmp_path / "sockets"
    place.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"{place}/pool.sock")
        yield f"unix:{place}/pool.sock"


def test_sockets_and_tls_files_of_the_command_are_mounted(server, tmp_path, bound):
    key = f"{tmp_path}/key.pem"
    given = program(tmp_path, "--pool", bound, "--param-store", bound.replace("pool", "store"), "--tls-key", key)
    (tmp_path / "sockets").chmod(0o711)
    settings = containers.read(given, options(server))
    assert settings.volumes == (f"{tmp_path}/sockets:{tmp_path}/sockets", f"{key}:{key}")
    settings = containers.read(given, options(server, volumes="tls:/run/tls;/data:/data"))
    assert settings.volumes == ("tls:/run/tls", "/data:/data")
    binds = containers.configs(given, settings, ())[1]["binds"]
    assert binds == ["tls:/run/tls:ro", "/data:/data:ro"]


def test_sockets_that_workers_in_containers_cannot_open_are_told(server, tmp_path, bound):
    """Such as those of `marless up`, whose directory also has a lock."""
    given, place = program(tmp_path, "--pool", bound), tmp_path / "sockets"
    with pytest.raises(SpecError, match=rf"cannot reach {bound}: user {os.getuid() + 1} may not open it; let the serv"):
        docker.make(given, options(server, user=f"{os.getuid() + 1}"))
    owner = f"{os.getuid() or 1000}"
    os.chown(place, int(owner), -1)
    assert docker.make(given, options(server, user=owner))
    (place / "lock").touch()
    with pytest.raises(SpecError, match=rf"cannot reach {bound}: a directory with other files than sockets is not mo"):
        docker.make(given, options(server, user=owner))
    assert docker.make(given, options(server, user=owner, volumes=f"{place}:{place}"))


def test_the_sdk_is_imported_on_demand(server, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(SpecError, match=r"the package `docker` is missing: pip install 'marless\[docker\]'"):
        docker.make(program(tmp_path), options(server))


@pytest.fixture
def dead() -> Pool:
    """A pool whose process has ended."""
    with subprocess.Popen(["sleep", "600"]) as process:
        pool = dataclasses.replace(Pool.here(), pid=process.pid, container="")
        process.kill()
    return pool


@pytest.fixture
def left(server, dead) -> set[str]:
    """Containers of dead pools, and others, which belong to living pools or to nobody; returns the former."""
    here = Pool.here()
    server.add("pool-restarted", "running").started_at = "2999-01-01T00:00:00.123456789Z"
    server.add("pool-stopped", "exited")
    server.add("pool-runs", "running").started_at = "2001-01-01T00:00:00.123456789Z"
    pools = {
        "left-exited": dead,
        "left-of-restarted": dataclasses.replace(here, container="pool-restarted"),
        "left-of-stopped": dataclasses.replace(here, container="pool-stopped"),
        "left-of-removed": dataclasses.replace(here, container="pool-removed"),
        "of-this": here,
        "of-container": dataclasses.replace(here, pid=1, started=1, container="pool-runs"),
        "of-another-namespace": dataclasses.replace(dead, namespace="1"),
    }
    for name, pool in pools.items():
        server.add(name, **{containers.POOL: str(pool)})
    server.add("before-boot", **{containers.POOL: str(dataclasses.replace(dead, boot="before"))}).created_s = 1.0
    server.add("of-another-machine", **{containers.POOL: str(dataclasses.replace(dead, boot="other"))})
    server.add("of-nobody", **{containers.POOL: "not a pool"})
    return {name for name in server.containers if name.startswith(("left-", "before-"))}


def test_containers_of_dead_pools_are_found_and_no_others(server, left):
    found = {each.id: each for each in containers.of_dead_pools(Engine(server.address, 15.0))}
    assert found.keys() == left
    assert found["left-of-stopped"].pool == "container pool-stopped"
    assert {each.launcher for each in found.values()} == {"docker"}
    assert found["left-exited"].what == "workers (exited)"
    assert 0 <= found["left-exited"].age_s < 60


async def test_a_pool_s_first_launch_removes_what_dead_pools_left(server, left, tmp_path):
    kept = server.containers.keys() - left
    launcher = docker.make(program(tmp_path), options(server))
    await launcher.launch([LaunchOrder("one", "ticket")])
    await launcher.close()
    assert server.containers.keys() == kept
    server.containers.clear()


def test_a_pool_knows_itself_by_its_label():
    here = Pool.here()
    assert Pool.parse(str(here)) == here
    assert Pool.parse("") is Pool.parse("a/b/c/d/e") is None


async def test_many_are_started_a_few_at_a_time(server, launcher, tmp_path):
    orders = [LaunchOrder(f"w{number}", "ticket") for number in range(2 * docker.CALLS)]
    started_s = time.monotonic()
    assert await launcher.launch(orders) == [ACCEPTED] * len(orders)
    assert time.monotonic() - started_s < PATIENCE_S
    assert len(server.created) == len(orders)
    assert server.calls["image"] == server.calls["network"] == 1


ID = "0123456789abcdef" * 4
DOCKERS = f"94 85 254:0 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/vda rw\n"
PODMANS = f"95 85 0:9 /containers/overlay-containers/{ID}/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw\n"
OF_A_HOST = f"96 85 0:9 / /var/lib/containers/storage/overlay-containers/{ID}/userdata/shm rw - tmpfs shm rw\n"


@pytest.mark.parametrize(("mounts", "container"), [(DOCKERS, ID), (PODMANS, ID), (OF_A_HOST, ""), ("", "")])
def test_a_pool_knows_the_container_that_it_runs_in(mounts, container):
    assert containers.own_container(mounts) == container
