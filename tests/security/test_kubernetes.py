"""deploy/kubernetes/: what pods may do, and that their settings are those of deploy/docker-compose.yml.

The manifests have run on no cluster; docs/deploying.md says so. `make test-kubernetes` checks that they are what the
chart of deploy/helm/ makes, and checks them, and what the chart makes with other values, against schemas.
"""

import re
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
ITEMS = [each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "marless.yaml").read_text()) if each]
[JOB] = [
    each for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "train-job.yaml").read_text()) if each["kind"] == "Job"
]
PODS = {
    item["metadata"]["name"]: item["spec"]["template"]
    for item in ITEMS
    if item["kind"] in ("Deployment", "StatefulSet")
}
CONTAINERS = {each["name"]: each for pod in PODS.values() for each in pod["spec"]["containers"]}
EVERY = [
    (name, each) for name, pod in PODS.items() for key in ("initContainers", "containers") for each in pod["spec"][key]
]
SETTINGS = next(item["data"] for item in ITEMS if item["kind"] == "ConfigMap")
SERVICES = ("param-store", "learner-pool", "actor-pool", "coordinator")
PROBED = {"MARLESS_HEALTH": "0.0.0.0:7071"}
"""Containers of Compose ask the health check themselves."""
_LIMITS = {"MARLESS_ACTOR_WORKERS", "MARLESS_LEARNER_WORKERS", "MARLESS_WARM_WORKERS"}
OWN = {"learner-pool": _LIMITS, "actor-pool": _LIMITS, "learner-worker": {"OMP_NUM_THREADS"}}
"""Settings of Compose that are variables of it, or that pools that start no workers do not have."""
BELOW = {"MARLESS_SPOOL": "/var/lib/marless/spool", "MARLESS_RUNS": "/var/lib/marless/runs"}
"""Directories that are below the volume here: a claim belongs to root, and what is made in it to the service."""
UNITS = {"m": 2**20, "g": 2**30, "Mi": 2**20, "Gi": 2**30}


def size_bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def environment(name: str) -> dict[str, str]:
    container = CONTAINERS[name]
    assert container["envFrom"] == [{"configMapRef": {"name": "settings"}}]
    assert PROBED.items() <= SETTINGS.items()
    common = {key: value for key, value in SETTINGS.items() if key not in PROBED}
    return common | {each["name"]: each["value"] for each in container["env"]}


def written(value: str) -> str:
    """A setting of Compose, or its default."""
    return re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value)


def test_all_that_compose_runs_runs_here():
    assert set(CONTAINERS) == set(COMPOSE)


@pytest.mark.parametrize("name", [name for name in COMPOSE if name != "redis"])
def test_settings_are_those_of_compose(name):
    compose = {key: written(value) for key, value in COMPOSE[name]["environment"].items()}
    here = environment(name)
    if "MARLESS_LAUNCHER" in compose:
        compose["MARLESS_LAUNCHER"] = "external"
    for key in BELOW.keys() & here.keys():
        assert here.pop(key).startswith(f"{compose.pop(key)}/")
    own = OWN.get(name, set())
    unused = {"MARLESS_ENV_MODULES"} - compose.keys()  # of services that make no environments
    assert {key: value for key, value in here.items() if key not in own | unused} == {
        key: value for key, value in compose.items() if key not in own
    }
    assert CONTAINERS[name]["args"] == COMPOSE[name]["command"]
    assert CONTAINERS[name]["image"] == COMPOSE[name]["image"]


def test_redis_is_that_of_compose():
    compose = COMPOSE["redis"]["command"].replace('""', "").split()
    here = [word for word in CONTAINERS["redis"]["command"] if word]
    assert [word.replace("redis-users", "credentials") for word in here] == compose
    assert CONTAINERS["redis"] in PODS["param-store"]["spec"]["containers"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_memory_is_that_of_compose(name):
    limits = CONTAINERS[name]["resources"]
    assert size_bytes(limits["limits"]["memory"]) == size_bytes(COMPOSE[name]["mem_limit"])
    assert size_bytes(limits["requests"]["memory"]) <= size_bytes(limits["limits"]["memory"])
    assert limits["requests"]["cpu"]


@pytest.mark.parametrize(("pod", "container"), EVERY, ids=[f"{pod}-{each['name']}" for pod, each in EVERY])
def test_a_container_has_no_rights_and_has_limits(pod, container):
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]
    spec = PODS[pod]["spec"]
    context = spec["securityContext"]
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert context["runAsUser"] == context["fsGroup"] == 1000
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert not [each for each in spec["volumes"] if "hostPath" in each]


@pytest.mark.parametrize("name", PODS)
def test_a_pod_sees_its_own_secrets_only(name):
    [volume] = [each for each in PODS[name]["spec"]["volumes"] if each["name"] == "secrets"]
    secrets = {source["secret"]["name"] for source in volume["projected"]["sources"]}
    own = {f"marless-{name}"} | ({"marless-tokens"} if name in SERVICES else set())
    assert secrets == own | ({"marless-redis"} if name == "param-store" else set())
    for each in PODS[name]["spec"]["containers"]:
        assert not [
            mount for mount in each["volumeMounts"] if mount["name"] == "secrets"
        ]  # copied, for this user alone
        assert "valueFrom" not in str(each.get("env"))


def test_no_secret_is_in_the_manifests():
    assert not [item for item in ITEMS if item["kind"] == "Secret"]
    assert not re.search(r"MARLESS_TOKEN\b|BEGIN [A-Z ]*KEY|requirepass", str(ITEMS))


def test_every_service_is_probed_and_reached_and_nothing_else_is():
    exposed = {item["metadata"]["name"]: item["spec"]["selector"]["app"] for item in ITEMS if item["kind"] == "Service"}
    assert exposed == {name: name for name in SERVICES}
    for name, container in CONTAINERS.items():
        for probe in ("startupProbe", "readinessProbe"):
            asked = container.get(probe, {}).get("grpc")
            assert asked == ({"port": 7071} if name in SERVICES else None)
        assert ("livenessProbe" in container) == (name in {*SERVICES, "redis"})
    policies = {item["metadata"]["name"]: item["spec"] for item in ITEMS if item["kind"] == "NetworkPolicy"}
    assert policies["inside"]["podSelector"] == {}  # all pods: what is not allowed below is refused
    assert set(policies["inside"]["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in policies["inside"]
    assert policies["services"]["ingress"] == [{"from": [{"podSelector": {}}], "ports": [{"port": 7070}]}]


def test_one_service_and_half_of_the_workers_may_be_moved_at_a_time():
    budgets = {item["metadata"]["name"]: item["spec"] for item in ITEMS if item["kind"] == "PodDisruptionBudget"}
    parts = {name: pod["metadata"]["labels"]["part"] for name, pod in PODS.items()}
    assert {name for name, part in parts.items() if part == "service"} == set(SERVICES)
    assert budgets["services"] == {"maxUnavailable": 1, "selector": {"matchLabels": {"part": "service"}}}
    assert budgets["workers"] == {"maxUnavailable": "50%", "selector": {"matchLabels": {"part": "worker"}}}


def test_there_is_never_a_second_pool():
    kinds = {item["metadata"]["name"]: item for item in ITEMS if item["kind"] in ("Deployment", "StatefulSet")}
    for name in SERVICES:
        rolling = kinds[name]["kind"] == "Deployment" and kinds[name]["spec"]["strategy"] != {"type": "Recreate"}
        assert (kinds[name]["spec"]["replicas"], rolling) == (1, False)


@pytest.mark.parametrize("spec", [PODS["learner-worker"]["spec"], JOB["spec"]["template"]["spec"]])
def test_learners_have_memory_to_share(spec):
    """Without a volume, /dev/shm has 64 MiB; a learner keeps its copy of the replay there."""
    [size] = [each["emptyDir"]["sizeLimit"] for each in spec["volumes"] if each["name"] == "shm"]
    assert size_bytes(size) == size_bytes(COMPOSE["learner-worker"]["shm_size"])
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


def test_a_job_of_a_batch_site_has_no_rights():
    spec = JOB["spec"]["template"]["spec"]
    [container] = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == CONTAINERS["coordinator"]["securityContext"]
    assert JOB["spec"]["suspend"] is True, "Kueue starts it"


def test_data_are_on_claims():
    sets = [item["spec"] for item in ITEMS if item["kind"] == "StatefulSet"]
    claims = {each["metadata"]["name"]: each["spec"] for spec in sets for each in spec["volumeClaimTemplates"]}
    assert set(claims) == {"store", "spool", "runs"}
    assert all(size_bytes(each["resources"]["requests"]["storage"]) >= 2**32 for each in claims.values())
