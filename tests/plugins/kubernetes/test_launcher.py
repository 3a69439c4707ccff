"""The launcher `kubernetes`: its Pods and Secrets, lost answers, what people are told, and how workers end."""

import asyncio
import dataclasses
import json
import re
import sys

import pytest

from marless.core.errors import SpecError
from marless.fleet.launchers.base import ACCEPTED, LaunchOrder, LaunchOutcome
from marless_kubernetes import launcher as kubernetes
from marless_kubernetes import manifests, pools
from marless_kubernetes import worker as first_process
from tests.plugins.kubernetes.api_fake import Fault
from tests.plugins.kubernetes.conftest import facts, seen

PATIENCE_S = 10.0
DROPPED, DONE_AND_DROPPED = Fault(), Fault(is_done=True)


async def ended(launcher, worker):
    async with asyncio.timeout(PATIENCE_S):
        return await launcher.observe(worker)


async def test_a_pod_has_limits_and_no_rights_and_shows_no_secret(server, launcher, place):
    assert await launcher.launch([LaunchOrder("Actor_1", "ticket of one", ("--more",))]) == [ACCEPTED]
    found = await facts(place, "Actor_1")
    assert found["handover"] == {"ticket": "ticket of one", "token": "token of the role"}
    [pod] = server.store.ever["pods"]
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert re.fullmatch(r"marless-[0-9a-f]{8}-actor-1-0", pod["metadata"]["name"])
    assert pod["metadata"]["labels"]["part"] == "worker"
    assert (spec["restartPolicy"], spec["automountServiceAccountToken"]) == ("Never", False)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    memory = {"memory": str(2 * 2**30)}
    assert container["resources"] == {"requests": {"cpu": "1000m"} | memory, "limits": memory}
    own = ("tests.unit.fleet.container_worker", "--place", str(place), "--more")
    assert container["args"][2:] == [*own, "--launched", "--worker", "Actor_1"]
    sizes = {each["name"]: each["emptyDir"]["sizeLimit"] for each in spec["volumes"] if "emptyDir" in each}
    assert sizes == {"run": str(2**20), "tmp": str(256 * 2**20), "shm": str(256 * 2**20)}
    shown = json.dumps(pod)
    assert "ticket of" not in shown and "token of" not in shown and "of the pool" not in shown


async def test_the_secret_with_a_ticket_is_made_for_a_pod_that_has_a_node_and_is_removed_when_it_runs(
    server, launcher, place
):
    server.node.room = 0
    launching = asyncio.create_task(launcher.launch([LaunchOrder("one", "ticket")]))
    await seen(lambda: server.pods)
    assert server.calls["create secrets"] == 0
    server.do(lambda: setattr(server.node, "room", 1))
    server.do(server.store._wake)
    assert await launching == [ACCEPTED]
    await facts(place, "one")
    await seen(lambda: not server.secrets)
    [secret], [pod] = server.store.ever["secrets"], server.store.ever["pods"]
    assert secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    ]


@pytest.mark.parametrize(("worker", "how"), [("exits", "exit code 3"), ("dies", "exit code 143")])
async def test_how_a_worker_ended_is_told(launcher, worker, how):
    assert await launcher.launch([LaunchOrder(worker, "ticket")]) == [ACCEPTED]
    assert await ended(launcher, worker) == how


ENDS = [
    ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "out of memory: it needs more than memory=2048m"),
    ({"terminated": {"exitCode": 137}}, "killed, perhaps because it was out of memory: it may use memory=2048m"),
    (
        {"reason": "Evicted", "message": "The node was low on resource: memory. "},
        "Evicted: The node was low on resource: memory",
    ),
    (
        {"reason": "UnexpectedAdmissionError", "message": "Allocate failed: no healthy devices; nvidia.com/gpu"},
        "UnexpectedAdmissionError: Allocate failed: no healthy devices; nvidia.com/gpu",
    ),
]


@pytest.mark.parametrize(("end", "how"), ENDS)
async def test_what_the_node_says_of_an_end_is_told(server, launcher, end, how):
    server.node.ends["exits"] = json.loads(json.dumps(end))
    assert await launcher.launch([LaunchOrder("exits", "ticket")]) == [ACCEPTED]
    assert await ended(launcher, "exits") == how


async def test_the_last_lines_of_a_worker_that_fails_reach_the_pool_s_log(server, program, options, capsys):
    module = dataclasses.replace(program, module="tests.plugins.kubernetes.no_such_module")
    launcher = kubernetes.make(module, options)
    await launcher.launch([LaunchOrder("one", "ticket")])
    assert await ended(launcher, "one") == "exit code 1"
    await launcher.close()
    assert "No module named tests.plugins.kubernetes.no_such_module" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["create pods", "create secrets"])
@pytest.mark.parametrize("fault", [DROPPED, DONE_AND_DROPPED])
async def test_a_lost_answer_is_looked_up_and_nothing_is_doubled(server, launcher, place, call, fault):
    server.faults[call].append(fault)
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(place, "one")
    assert len(server.store.ever["pods"]) == len(server.store.ever["secrets"]) == 1


async def test_what_is_not_known_to_exist_is_removed_before_it_is_ordered_again(server, program, options, place):
    launcher = kubernetes.make(program, options | {"api_s": "1"})
    server.faults["create pods"] += [DONE_AND_DROPPED, *[Fault(hangs=True)] * 4]
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.UNKNOWN
    assert launch.reason.startswith("cannot create Pod marless-")
    assert len(server.pods) == 1
    server.faults.clear()
    assert await ended(launcher, "one") == launch.reason
    await launcher.drain("one", 0.0)
    await seen(lambda: not server.pods)
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(place, "one")
    await launcher.close()
    assert server.pods == {}


PASSING = [
    Fault(429, "Too many requests, please try again later.", "TooManyRequests", headers={"Retry-After": "0"}),
    Fault(500, "etcdserver: leader changed", "InternalError"),
    Fault(503, "apiserver is shutting down.", "ServiceUnavailable"),
    Fault(
        409,
        'Operation cannot be fulfilled on resourcequotas "team": the object has been modified; please apply your '
        "changes to the latest version and try again",
        "Conflict",
    ),
]


@pytest.mark.parametrize("fault", PASSING, ids=[str(each.status) for each in PASSING])
async def test_what_passes_is_asked_again(server, launcher, fault):
    for call in ("create pods", "list pods", "create secrets"):
        server.faults[call].append(fault)
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    assert server.calls["create pods"] == server.calls["create secrets"] == 2


async def test_a_server_that_stays_overloaded_is_given_up(server, program, options):
    launcher = kubernetes.make(program, options | {"api_s": "2"})
    server.faults["list pods"] += [PASSING[1]] * 20
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert launch.reason == "cannot list Pods: etcdserver: leader changed; it is asked again; see the API server's log"
    assert server.calls["list pods"] < 10
    await launcher.close()


POLICY = 'violates PodSecurity "restricted:latest": unrestricted capabilities'
ERRORS = [
    ("create pods", Fault(403, f'pods "x" is forbidden: {POLICY}', "Forbidden"), "use the namespace of the chart"),
    ("create pods", Fault(403, "admission webhook denied the request", "Forbidden"), "ask whoever runs the cluster"),
    ("list pods", Fault(401, "Unauthorized", "Unauthorized"), "its credentials are not valid, or not any more"),
    ("list pods", Fault(404, 'namespaces "marless" not found', "NotFound"), "; make the namespace"),
    ("create secrets", Fault(403, "secrets is forbidden: User cannot", "Forbidden"), "Role of the chart"),
]


@pytest.mark.parametrize(("call", "fault", "said"), ERRORS)
async def test_refusals_are_told_and_the_worker_may_be_ordered_again(server, launcher, place, call, fault, said):
    server.faults[call].append(fault)
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert said in launch.reason
    await seen(lambda: not server.pods)
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    await facts(place, "one")


async def test_what_the_server_does_not_understand_is_not_ordered_again(server, launcher):
    server.faults["create pods"].append(Fault(422, 'Pod "x" is invalid: spec.priorityClassName: not found', "Invalid"))
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.FAILED
    assert launch.reason.endswith("; correct the launcher's options")


async def test_a_used_up_quota_is_told(server, launcher):
    server.quota = 1
    first, second = await launcher.launch([LaunchOrder("one", "ticket"), LaunchOrder("two", "ticket")])
    refused = first if first.outcome is LaunchOutcome.REFUSED else second
    assert {first.outcome, second.outcome} == {LaunchOutcome.ACCEPTED, LaunchOutcome.REFUSED}
    assert "exceeded quota: team, requested: pods=1, used: pods=1, limited: pods=1; raise the quota" in refused.reason


async def test_a_missing_right_is_told(server, launcher):
    server.allowed.discard(("pods", "create"))
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert 'cannot create resource "pods"' in launch.reason
    assert launch.reason.endswith("give the pool's service account the Role of the chart: launcher.enabled=true")


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("missing", r"image missing cannot be pulled: (ErrImagePull|ImagePullBackOff): .*failed to pull and unpack im"),
        ("Bad", r"image Bad cannot be pulled: InvalidImageName: Failed to apply default image tag"),
    ],
)
async def test_an_image_that_cannot_be_pulled_is_told(server, program, options, image, said):
    launcher = kubernetes.make(program, options | {"image": image})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert re.match(said, launch.reason)
    assert "push it to a registry that the nodes read" in launch.reason
    assert server.pods == server.secrets == {}
    await launcher.close()


async def test_a_pod_without_a_node_is_told_kept_for_an_autoscaler_and_used_when_there_is_room(
    server, program, options, place
):
    server.node.room = 0
    launcher = kubernetes.make(program, options | {"place_s": "0.2"})
    [launch] = await launcher.launch([LaunchOrder("one", "first ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert launch.reason.startswith(
        "no node has room for a worker of 1 CPU, 2048 MiB: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu"
    )
    await launcher.drain("one", 0.0)  # as a pool does before it orders again
    [waiting] = server.pods
    server.do(lambda: setattr(server.node, "room", 1))
    server.do(server.store._wake)
    await seen(lambda: server.pods[waiting]["spec"].get("nodeName"))
    assert await launcher.launch([LaunchOrder("one", "second ticket")]) == [ACCEPTED]
    assert (await facts(place, "one"))["handover"]["ticket"] == "second ticket"
    assert list(server.pods) == [waiting]
    await launcher.close()
    assert server.pods == {}


async def test_a_kept_pod_that_nobody_orders_again_is_removed(server, program, options, monkeypatch):
    monkeypatch.setattr(kubernetes, "KEEP_S", 0.05)
    server.node.room = 0
    launcher = kubernetes.make(program, options | {"place_s": "0.2"})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    await seen(lambda: not server.pods)
    assert (server.calls["create pods"], server.calls["delete pods"]) == (1, 1)
    await launcher.close()


async def test_an_eviction_is_told_before_the_worker_ends(server, launcher, place):
    await launcher.launch([LaunchOrder("one", "ticket")])
    await facts(place, "one")
    [name] = server.pods
    leaving = asyncio.create_task(launcher.leaving("one"))
    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    disruption["message"] = "Eviction API: evicting"
    server.do(lambda: server.store.change("pods", name, lambda pod: pod["status"]["conditions"].append(disruption)))
    async with asyncio.timeout(PATIENCE_S):
        assert await leaving == "EvictionByEvictionAPI: Eviction API: evicting"
    server.do(lambda: server.store.delete("pods", name, 30))
    # The node sends SIGTERM now; the worker is given the time to finish its task.
    await seen(lambda: server.pods[name]["metadata"].get("deletionTimestamp"))
    assert server.node.processes[name].returncode is None
    await launcher.drain("one", 0.0)


async def test_a_pod_that_something_else_deletes_is_told(server, launcher, place):
    await launcher.launch([LaunchOrder("one", "ticket")])
    await facts(place, "one")
    [name] = server.pods
    server.do(lambda: server.store.remove("pods", name))
    assert await ended(launcher, "one") == "its Pod is gone: something else has deleted it, or its node"


async def test_a_new_token_reaches_running_workers(server, program, options, place, monkeypatch):
    keys = {"certificate.pem": "c", "key.pem": "k", "authority.pem": "a", "actor": "token of the role\n"}
    server.do(
        lambda: server.store.create("secrets", {"metadata": {"name": "marless-actor-worker"}, "stringData": keys})
    )
    launcher = kubernetes.make(program, options | {"credentials": "marless-actor-worker"})
    assert await launcher.launch([LaunchOrder("one", "ticket")]) == [ACCEPTED]
    assert (await facts(place, "one"))["handover"]["token"] == "token of the role"
    (place / "one").unlink()
    server.do(lambda: server.node.renew("marless-actor-worker", "actor", "a new token\n"))
    assert (await facts(place, "one"))["handover"] == {"ticket": "ticket", "token": "a new token"}
    await launcher.close()


def test_a_worker_s_files_are_copies_that_are_its_own(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "key.pem").write_text("key")
    first_process.copy_private(tmp_path / "from", tmp_path / "to")
    assert (tmp_path / "to" / "key.pem").read_text() == "key"
    assert (tmp_path / "to" / "key.pem").stat().st_mode & 0o777 == 0o600


async def test_a_lost_node_holds_nobody_up(server, program, options, place, monkeypatch):
    monkeypatch.setattr(kubernetes, "REMOVE_S", 0.2)
    launcher = kubernetes.make(program, options)
    await launcher.launch([LaunchOrder("one", "ticket")])
    await facts(place, "one")
    server.do(lambda: setattr(server.node, "is_lost", True))
    await launcher.drain("one", 0.0)
    assert len(server.pods) == 1
    server.do(lambda: setattr(server.node, "is_lost", False))
    server.do(server.store._wake)
    await seen(lambda: not server.pods)
    await launcher.close()


async def test_a_pod_that_appears_after_its_worker_was_given_up_is_removed_at_the_end(server, launcher):
    await launcher.launch([])
    labels = {manifests.LAUNCH: launcher._launch_id, "app": "pool"}  # no node takes it
    server.do(lambda: server.store.create("pods", {"metadata": {"name": "late", "labels": labels}, "spec": {}}))
    await launcher.close()
    assert server.pods == {}


async def test_the_doctor_is_told_what_there_is_and_what_is_missing(server, launcher):
    condition = await launcher.check()
    assert condition.found == f"Kubernetes v1.36.0, namespace marless of {server.url}, image registry.test/workers:1"
    assert not condition.advice
    assert server.pods == {}  # it was only tried
    server.allowed.discard(("pods", "create"))
    condition = await launcher.check()
    assert 'cannot create resource "pods"' in condition.found
    assert condition.advice.startswith("give the pool's service account the Role")


async def test_a_server_that_is_not_there_is_told(server, program, options, tmp_path):
    config = json.loads(server.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (tmp_path / "other").write_text(json.dumps(config))
    launcher = kubernetes.make(program, options | {"kubeconfig": str(tmp_path / "other"), "api_s": "0.5"})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert launch.reason.startswith("cannot list Pods: no API server answers at http://127.0.0.1:9 (")
    assert (await launcher.check()).advice
    await launcher.close()


async def test_without_a_cluster_the_way_to_one_is_told(program, options, tmp_path, server):
    launcher = kubernetes.make(program, options | {"kubeconfig": str(tmp_path / "none")})
    [launch] = await launcher.launch([LaunchOrder("one", "ticket")])
    assert launch.outcome is LaunchOutcome.REFUSED
    assert f"{tmp_path}/none does not say how to reach a cluster" in launch.reason
    await launcher.close()


def test_the_client_is_imported_on_demand(server, program, options, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(SpecError, match=r"the package `kubernetes` is missing: pip install .*KUBERNETES=1$"):
        kubernetes.make(program, options)


async def test_many_are_started_at_once(server, launcher):
    orders = [LaunchOrder(f"w{number}", "ticket") for number in range(20)]
    assert await launcher.launch(orders) == [ACCEPTED] * len(orders)
    assert len(server.store.ever["pods"]) == len(orders)
    assert server.calls["list pods"] == 2, "one for what dead pools left, one to follow"


def test_a_pool_knows_itself_by_its_annotation():
    here = pools.PoolIdentity.of_process("actor")
    assert pools.PoolIdentity.parse(str(here)) == here
    assert pools.PoolIdentity.parse("") is pools.PoolIdentity.parse('{"who": 1}') is None
