"""The launcher `ray` without Ray: its options, its sentences, and what a pool does as its driver answers or ends."""

import asyncio
import json
import sys

import pytest

from marless.core import process_environment
from marless.core.errors import SpecError
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, LaunchOutcome, WorkerProgram
from marless_ray import driving, host, launcher, sentences
from marless_ray.sentences import Cluster
from marless_ray.settings import Assignment, WorkerResources, read

PROGRAM = WorkerProgram(
    "module", ("--pool", "unix:/pool"), {"PATH": "/bin"}, lambda: "token", process_environment.ACTOR
)
NODES = [
    {"Alive": True, "Resources": {"CPU": 4.0, "memory": 8 * 2.0**30, "node:here": 1.0, "object_store_memory": 9.0}},
    {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0, "spot": 2.0}},
    {"Alive": False, "Resources": {"CPU": 99.0}},
]
CLUSTER = Cluster.of(NODES, {"CPU": 1.0, "GPU": 1.0, "memory": 2.0**30})
DRIVER = """
import json, sys
told = json.loads(sys.stdin.readline())
print(json.dumps({"connected": "2"}), flush=True)
for line in sys.stdin:
    call = json.loads(line)
    sys.stderr.write(line)
    if call["call"] == "launch" and call["worker"] == "lost":
        sys.exit(7)
    if call["call"] == "launch":
        accepted = call["worker"] != "full"
        answer = {"outcome": "accepted" if accepted else "refused", "reason": "" if accepted else "no room"}
        print(json.dumps({"id": call["id"], **answer}), flush=True)
    if call["call"] == "end":
        print(json.dumps({"ended": call["worker"], "how": "exit code 5"}), flush=True)
        print(json.dumps({"id": call["id"]}), flush=True)
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """A driver that answers as its script does; `-m MODULE` runs it."""
    (tmp_path / "scripted_driver.py").write_text(DRIVER)
    monkeypatch.setattr(driving, "_MODULE", "scripted_driver")
    return WorkerProgram("module", (), {"PYTHONPATH": str(tmp_path)}, lambda: "token", process_environment.ACTOR)


def test_options_become_what_ray_counts():
    given = {"cpus": "0.5", "gpus": "1", "memory": "2g", "resources": "spot:1;a100:0.25", "address": "ray://head:10001"}
    settings = read(PROGRAM, given)
    assert settings.demand.of_ray() == {"CPU": 0.5, "GPU": 1.0, "memory": 2.0 * 2**30, "spot": 1.0, "a100": 0.25}
    assert str(settings.demand) == "0.5 CPUs, 1 GPU, 2.0 GiB, 1 spot, 0.25 a100"
    assignment = Assignment.of(PROGRAM, settings)
    assert Assignment.from_line(assignment.to_line()) == assignment
    assert read(PROGRAM, {}).demand == WorkerResources(cpus=1.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"image": "x"}, "no option 'image'; it has address, cpus, "),
        ({"cpus": "0"}, "cpus=0: give a number of CPUs above 0"),
        ({"memory": "much"}, "memory=much: give a size"),
        ({"resources": "spot"}, "resources=spot: give NAME:AMOUNT, several with ';' between them"),
        ({"resources": "spot:0"}, "resources=spot:0: give NAME:AMOUNT"),
    ],
)
def test_invalid_options_are_told(options, said):
    with pytest.raises(SpecError, match=f"launcher ray: {said}"):
        read(PROGRAM, options)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(launcher.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"the package `ray` is missing: pip install 'marless\[ray\]'"):
        launcher.make(PROGRAM, {})


def test_a_cluster_is_told_with_what_is_free():
    assert str(CLUSTER) == ("2 nodes with 6 CPUs (1 free), 1 GPU (1 free), 8.0 GiB (1.0 GiB free), 2 spot (0 free)")


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        (WorkerResources(cpus=2.0), "for a worker of 2 CPUs: 2 nodes with 6 CPUs (1 free), "),
        (WorkerResources(cpus=5.0), "for a worker of 5 CPUs: no node has 5 CPUs (2 nodes"),
        (WorkerResources(cpus=1.0, gpus=2.0), "for a worker of 1 CPU, 2 GPUs: no node has 2 GPUs (2 nodes"),
        (WorkerResources(cpus=1.0), "for a worker of 1 CPU on one node, or does not start it in time: 2 nodes"),
    ],
)
def test_why_there_is_no_room_is_told(demand, said):
    assert sentences.no_room(demand, CLUSTER).startswith(f"Ray has no room {said}")


def test_a_node_is_examined():
    here = host.found_for(["--pool", "unix:/nowhere/pool.sock", "--tls-ca", "/nowhere/ca.pem"])
    assert here["missing"] == ["/nowhere/pool.sock", "/nowhere/ca.pem"]
    fit = {**here, "missing": [], "host": "far"}
    assert sentences.unfit(fit, ["--pool", "unix:/pool"]) == ""
    assert (
        sentences.unfit({**fit, "missing": ["/x"]}, [])
        == "Ray's node far has no /x: put a copy there, at the same path"
    )
    assert "has marless 0.0, and this pool has " in sentences.unfit({**fit, "marless": "0.0"}, [])
    away = {**fit, "boot": "another"}
    for local in ("unix:/pool", "127.0.0.1:7000", "localhost:7000"):
        assert f"cannot reach {local}: let the services" in sentences.unfit(away, ["--pool", local])
    assert sentences.unfit(away, ["--pool", "pool.example:7000", "--worker", "a:b"]) == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionError("x"), "no Ray cluster answers at head:6379; start one (`ray start --head`), or give "),
        (
            RuntimeError("Version mismatch: Ray: 2.1"),
            "Ray at head:6379 is another version: Version mismatch: Ray: 2.1; ",
        ),
        (RuntimeError("one of the Raylet addresses"), "this host is no node of the Ray cluster at head:6379: run "),
        (RuntimeError("odd"), "cannot connect to Ray at head:6379: RuntimeError: odd; start one"),
    ],
)
def test_why_no_cluster_is_connected_is_told(error, said):
    assert sentences.not_connected("head:6379", error).startswith(said)


async def test_answers_of_the_driver_are_those_of_the_launcher(scripted, capfd):
    made = launcher.RayLauncher(scripted, read(scripted, {}))
    orders = [LaunchOrder("one", "ticket of one"), LaunchOrder("full", "ticket")]
    first, second = await made.launch(orders)
    assert first == ACCEPTED
    assert (second.outcome, second.reason) == (LaunchOutcome.REFUSED, "no room")
    observed = asyncio.create_task(made.observe("one"))
    await made.drain("one", 0.0)
    assert await observed == "exit code 5"
    assert await made.observe("one") == await made.observe("full") == "not started"
    await made.close()
    assert (await made.launch(orders))[0].reason == "the pool is stopping"
    calls = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    assert json.loads(calls[0]["handover"]) == {"ticket": "ticket of one", "token": "token"}
    assert calls[0]["arguments"] == ["--launched", "--worker", "one"]


async def test_of_a_driver_that_ends_in_mid_launch_nothing_is_known(scripted):
    made = launcher.RayLauncher(scripted, read(scripted, {}))
    [lost] = await made.launch([LaunchOrder("lost", "ticket")])
    how = "the connection to Ray is lost (its driver ended: exit code 7)"
    assert (lost.outcome, lost.reason) == (LaunchOutcome.UNKNOWN, f"{how}; it is made again")
    assert await made.observe("lost") == how
    await made.drain("lost", 0.0)
    assert await made.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await made.close()


def test_pools_and_actors_do_not_import_ray_by_themselves():
    """What they import is imported above: only a driver imports Ray, once it connects."""
    assert "ray" not in sys.modules
