"""What is in the images, and what their containers may do."""

import json
import os
import subprocess

import pytest

from tests.containers.deployment import SERVICES

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900, func_only=True)]
BASE = os.environ.get("MARLESS_PYTHON", "python:3.12-slim-bookworm")
ACTORS_BYTES = 200e6


def size_bytes(image: str) -> int:
    done = subprocess.run(["docker", "image", "inspect", image], capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout)[0]["Size"])


def python(image: str, program: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "python", image, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_image_of_actors_is_small(images, record_property):
    above_bytes = size_bytes("marless-actors") - size_bytes(BASE)
    record_property("actors_bytes_above_base", above_bytes)
    assert above_bytes <= ACTORS_BYTES


@pytest.mark.parametrize(("image", "torch"), [("services", False), ("actors", False), ("learners", True)])
def test_only_learners_have_torch(images, image, torch):
    done = python(f"marless-{image}", "import importlib.util as u, marless; print(bool(u.find_spec('torch')))")
    assert (done.returncode, done.stdout.strip()) == (0, str(torch)), done.stderr


@pytest.mark.parametrize("image", ["services", "actors", "learners"])
def test_services_of_an_image_can_tell_traces(images, image):
    program = "from marless.rpc import tracing; import opentelemetry.exporter.otlp.proto.http.trace_exporter"
    done = python(f"marless-{image}", program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("image", ["services", "actors", "learners"])
def test_an_image_has_no_secret_and_no_installer(images, image):
    program = """
import importlib.util, pathlib
secret = {"authority.key", "key.pem", "redis_password", "redis_passwords.json", "users.acl", "client", "operator"}
places = [pathlib.Path(place) for place in ("/opt", "/var/lib/marless", "/run", "/tmp", "/etc/marless")]
found = [str(path) for place in places for path in place.rglob("*") if path.is_file() and path.name in secret]
print(found, importlib.util.find_spec("pip"))
"""
    assert python(f"marless-{image}", program).stdout.strip() == "[] None"


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_no_rights_and_has_limits(deployment, service):
    found = deployment.inspect(service)
    limits = found["HostConfig"]
    assert limits["ReadonlyRootfs"] is True
    assert limits["Memory"] > 0
    assert 0 < limits["PidsLimit"] <= 512
    assert not limits.get("Privileged")
    status = dict(
        line.split(":\t", 1) for line in deployment.execute(service, "cat", "/proc/1/status").stdout.splitlines()
    )
    assert set(status["Uid"].split()) == {str(os.getuid() or 1000)}
    assert {
        name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
    } == dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)
    assert status["NoNewPrivs"] == "1"
    refused = deployment.execute(service, "touch", "/opt/canary")
    assert refused.returncode and "Read-only file system" in refused.stderr


def test_one_port_is_published_and_only_on_loopback(deployment):
    published = [
        (service, binding["HostIp"], int(binding["HostPort"]))
        for service in SERVICES
        for bindings in (deployment.inspect(service)["NetworkSettings"].get("Ports") or {}).values()
        for binding in bindings or ()
    ]
    assert published == [("coordinator", "127.0.0.1", deployment.port)]


@pytest.mark.parametrize("service", SERVICES[1:])
def test_the_probe_of_a_container_says_whether_it_serves(deployment, service):
    with deployment.client() as client:
        client.list()  # the coordinator serves once all others do
    probe = ("python", "-P", "-m", "marless.rpc.health")
    assert deployment.execute(service, *probe).returncode == 0
    elsewhere = deployment.execute(service, *probe, "--advertise", "127.0.0.1:9")
    assert elsewhere.returncode == 1


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_sees_its_own_credentials_only(deployment, service):
    seen = set(deployment.execute(service, "find", "/run/credentials", "-type", "f").stdout.split())
    own = {"redis": {"users.acl"}}.get(service, {"authority.pem", "certificate.pem", "key.pem"})
    more = {"param-store": {"redis_password", "redis_passwords.json", "users.acl"}}.get(service, set())
    assert seen == {f"/run/credentials/{name}" for name in own | more}


def test_actors_have_the_kernel_of_wall_models_without_a_compiler(images):
    program = """
import shutil
from marless_wall_model.kernel import library
print(shutil.which("cc"), library() is not None)
"""
    assert python("marless-actors", program).stdout.strip() == "None True"
