"""Pods of pools that have ended: which are found, and that they are removed."""

import asyncio
import dataclasses
import json
import subprocess

import pytest

from marless.fleet.launchers.base import LaunchOrder
from marless_kubernetes import api_server, leftovers, manifests, pools
from marless_kubernetes import launcher as kubernetes
from marless_kubernetes.pools import PoolIdentity

PAST, FUTURE = "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def add(server, name, pool=None, *, app="pool"):
    """A Pod that something else has created, which no node runs; returns its uid."""
    annotations = {manifests.POOL: str(pool)} if pool else {}
    spec = {"containers": [{"name": "one", "image": "workers"}], "nodeName": "", "volumes": []}
    made = {"metadata": {"name": name, "labels": {"app": app}, "annotations": annotations}, "spec": spec}
    return server.do(lambda: server.store.create("pods", made))["metadata"]["uid"]


def started(server, name, at):
    status = [{"name": "one", "state": {"running": {"startedAt": at}}}]
    server.do(lambda: server.store.change("pods", name, lambda pod: pod["status"].update(containerStatuses=status)))


@pytest.fixture
def left(server):
    """Pods of dead pools, and others, which belong to living pools or to nobody; returns the former."""
    here = PoolIdentity.of_process("actor")
    with subprocess.Popen(["sleep", "600"]) as process:
        dead = dataclasses.replace(here, pid=process.pid)
        process.kill()
    runs, again = add(server, "pool-runs"), add(server, "pool-again")
    started(server, "pool-runs", PAST)
    started(server, "pool-again", FUTURE)
    of = {
        "left-process": dead,
        "left-of-restarted": PoolIdentity(role="actor", pod="pool-again", uid=again),
        "left-of-removed": PoolIdentity(role="actor", pod="pool-removed", uid="gone"),
        "left-of-namesake": PoolIdentity(role="actor", pod="pool-runs", uid="an earlier one"),
        "of-this": here,
        "of-pod": PoolIdentity(role="actor", pod="pool-runs", uid=runs),
        "of-another-machine": dataclasses.replace(dead, boot="other"),
        "of-nobody": "no pool",
    }
    for name, pool in of.items():
        add(server, name, pool)
    return {name for name in of if name.startswith("left-")}


def test_pods_of_dead_pools_are_found_and_no_others_and_are_ended(server, options, left):
    with_it = leftovers.leftovers({"kubeconfig": options["kubeconfig"]})
    found = {each.id: each for each in with_it.of_dead_pools()}
    assert found.keys() == left
    assert {each.launcher for each in found.values()} == {"kubernetes"}
    assert found["left-of-removed"].pool == "Pod pool-removed"
    assert found["left-process"].what == "workers (Pending)"
    kept = server.pods.keys() - left
    with_it.end(list(found.values()))
    assert server.pods.keys() == kept


def test_no_cluster_is_asked_unless_its_launcher_is_chosen():
    assert leftovers.leftovers(None) is None


async def test_a_pool_s_first_launch_removes_what_dead_pools_left(server, program, options, left):
    kept = server.pods.keys() - left
    launcher = kubernetes.make(program, options)
    await launcher.launch([LaunchOrder("one", "ticket")])
    await launcher.close()
    assert server.pods.keys() == kept


@pytest.fixture
def account(server, tmp_path, monkeypatch):
    """The service account of a Pod, as a cluster mounts it."""
    from tests.plugins.kubernetes.api_fake import TOKEN

    (tmp_path / "account").mkdir()
    (tmp_path / "account" / "token").write_text(TOKEN)
    (tmp_path / "account" / "namespace").write_text("marless")
    monkeypatch.setattr(api_server, "_ACCOUNT", tmp_path / "account")

    def configure(configuration):
        configuration.host, configuration.api_key["BearerToken"] = server.url, f"bearer {TOKEN}"

    monkeypatch.setattr("kubernetes.aio.config.load_incluster_config", configure)
    monkeypatch.setenv("MARLESS_POD", "actor-pool-0")


async def test_in_a_cluster_workers_take_the_image_of_their_pool_and_are_deleted_with_it(
    server, program, place, account
):
    spec = {
        "containers": [{"name": "pool", "image": "registry.test/actors:7", "imagePullPolicy": "Always"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    made = {"metadata": {"name": "actor-pool-0", "labels": {"app": "pool"}}, "spec": spec}
    pool = server.do(lambda: server.store.create("pods", made))
    launcher = kubernetes.make(program, {})
    await launcher.launch([LaunchOrder("one", "ticket")])
    [worker] = [each for name, each in server.pods.items() if name != "actor-pool-0"]
    [container] = worker["spec"]["containers"]
    assert (container["image"], container["imagePullPolicy"]) == ("registry.test/actors:7", "Always")
    assert worker["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert worker["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]
    assert json.loads(worker["metadata"]["annotations"][manifests.POOL])["pod"] == "actor-pool-0"
    server.do(lambda: server.store.remove("pods", "actor-pool-0"))
    async with asyncio.timeout(10):
        assert "Pod" in await launcher.observe("one")
    await launcher.close()
    assert server.pods == {}


async def test_a_pool_that_does_not_find_its_own_pod_is_told(server, program, account):
    launcher = kubernetes.make(program, {})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.reason == "launcher kubernetes: this pool runs in no Pod actor-pool-0; set MARLESS_POD to its name"
    await launcher.close()


def test_a_pool_s_identity_is_read_back():
    assert pools.PoolIdentity.parse(str(PoolIdentity(role="actor", pod="a", uid="b"))).uid == "b"
