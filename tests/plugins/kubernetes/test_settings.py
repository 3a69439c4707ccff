"""Options of the launcher `kubernetes`, and what its Pods are made of."""

import dataclasses

import pytest

from marless.core.errors import SpecError
from marless.fleet.launchers.base import LaunchOrder, WorkerProgram
from marless_kubernetes import manifests, settings
from marless_kubernetes.manifests import PodOwner

TLS = ("--tls-cert", "/etc/pool/chain.pem", "--tls-key", "/etc/pool/key", "--tls-ca", "/etc/pool/ca.pem")
ORDER = LaunchOrder("learner-0", "ticket")
OWNER = PodOwner("0123abcd", "pool", {"apiVersion": "v1", "kind": "Pod", "name": "learner-pool-0", "uid": "u"})


def program(*arguments):
    return WorkerProgram("marless.services.learner_pool.worker", arguments, {}, lambda: "", {"OMP_NUM_THREADS": "2"})


def pod(*arguments, order=ORDER, **options):
    read = settings.read(program(*arguments), {"image": "workers", **options})
    return manifests.pod("marless-0123abcd-learner-0-0", order, program(*arguments), read.pod, OWNER)


def test_a_pod_goes_where_its_options_say():
    spec = pod(
        gpus="2",
        resources="example.com/ib:1",
        memory="8g",
        shm="4g",
        node_selector="cloud.example/spot:true;zone:a",
        tolerations="nvidia.com/gpu:NoSchedule;dedicated=marl:NoExecute;spot",
        priority_class="low",
        runtime_class="nvidia",
        pull_secret="registry",
        pull="always",
        labels="kueue.x-k8s.io/queue-name:team",
    )["spec"]
    [container] = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "2000m", "memory": str(8 * 2**30), "example.com/ib": "1", "nvidia.com/gpu": "2"},
        "limits": {"memory": str(8 * 2**30), "example.com/ib": "1", "nvidia.com/gpu": "2"},
    }
    assert spec["nodeSelector"] == {"cloud.example/spot": "true", "zone": "a"}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "dedicated", "operator": "Equal", "value": "marl", "effect": "NoExecute"},
        {"key": "spot", "operator": "Exists"},
    ]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("low", "nvidia")
    assert (spec["imagePullSecrets"], container["imagePullPolicy"]) == ([{"name": "registry"}], "Always")
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(4 * 2**30)}} in spec["volumes"]


def test_a_pod_belongs_to_its_pool_and_to_the_chart_s_policies():
    made = pod(labels="kueue.x-k8s.io/queue-name:team;part:other")["metadata"]
    assert made["ownerReferences"] == [OWNER.reference]
    assert made["labels"] == {
        "kueue.x-k8s.io/queue-name": "team",
        "app": "learner-worker",
        "part": "worker",
        "marless.pool": "true",
        "marless.launch": "0123abcd",
        "marless.worker": "learner-0",
    }
    assert made["annotations"] == {"marless.pool": "pool"}


def test_tls_files_come_from_the_secret_of_workers():
    with pytest.raises(
        SpecError, match=r"workers need TLS files: give credentials=SECRET, a Secret with the keys cert"
    ):
        pod(*TLS)
    spec = pod(*TLS, credentials="marless-learner-worker")["spec"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "credentials"]
    keys = ["certificate.pem", "key.pem", "authority.pem", "learner"]
    items = [{"key": key, "path": key} for key in keys]
    assert volume["projected"]["sources"] == [{"secret": {"name": "marless-learner-worker", "items": items}}]
    own = [f"/run/marless/{name}" for name in ("certificate.pem", "key.pem", "authority.pem")]
    assert spec["containers"][0]["args"][3:9] == ["--tls-cert", own[0], "--tls-key", own[1], "--tls-ca", own[2]]


def test_tls_files_may_come_from_cert_manager():
    spec = pod(*TLS, credentials="marless-learner-worker", tls_secret="made")["spec"]
    [volume] = [each for each in spec["volumes"] if each["name"] == "credentials"]
    files = {"tls.crt": "certificate.pem", "tls.key": "key.pem", "ca.crt": "authority.pem"}
    items = [{"key": key, "path": path} for key, path in files.items()]
    token = {"name": "marless-learner-worker", "items": [{"key": "learner", "path": "learner"}]}
    assert volume["projected"]["sources"] == [{"secret": {"name": "made", "items": items}}, {"secret": token}]


def test_a_worker_of_the_lowest_priority_asks_for_no_cpu_that_others_could_use():
    order = dataclasses.replace(ORDER, arguments=("--background",))
    assert pod(order=order)["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "10m"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"colour": "red"}, "launcher kubernetes: no option 'colour'; it has image, pull, pull_secret"),
        ({"pull": "often"}, "pull=often: give always, missing, never"),
        ({"user": "0"}, "user=0: give a user that is not root, such as 1000"),
        ({"user": "root"}, "user=root: give a user that is not root"),
        ({"gpus": "0.5"}, "nvidia.com/gpu=0.5: give a whole number above 0"),
        ({"memory": "much"}, "memory=much: give a size, such as 512m or 2g"),
        ({"cpus": "0"}, "cpus=0: give a number of CPUs above 0"),
        ({"node_selector": "spot"}, "node_selector=spot: give NAME:VALUE, several with ';' between them"),
        ({"tolerations": "a:b"}, "tolerations=a:b: give KEY, KEY:EFFECT or KEY=VALUE:EFFECT"),
        ({"place_s": "soon"}, "place_s=soon: give a number of seconds above 0"),
        ({"api_s": "-1"}, "api_s=-1: give a number of seconds above 0"),
    ],
)
def test_options_that_cannot_be_are_told(given, said):
    with pytest.raises(SpecError) as told:
        pod(**given)
    assert said in str(told.value)


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "unix:/run/pool.sock", "localhost:7070"])
def test_addresses_that_pods_cannot_reach_are_told(address):
    with pytest.raises(SpecError, match=rf"workers in Pods cannot reach {address}; let the services listen on an addr"):
        pod("--pool", address)
    assert pod("--pool", "actor-pool:7070")
