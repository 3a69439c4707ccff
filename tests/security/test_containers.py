"""S9: what the files of deploy/ grant containers. tests/containers looks at running ones."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "deploy" / "docker-compose.yml").read_text())["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
IMAGES = ("services", "actors", "learners", "redis")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_rights_and_has_limits(name):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"] and service["pids_limit"]
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "userns_mode"} & set(service)
    assert all(mount.endswith(":ro") for mount in service["volumes"] if "credentials" in mount or "tokens" in mount)


@pytest.mark.parametrize("name", SERVICES)
def test_only_the_coordinator_is_published_and_only_on_loopback(name):
    ports = SERVICES[name].get("ports", [])
    assert bool(ports) == (name == "coordinator")
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_in_a_variable_or_a_command_line(name):
    told = str(SERVICES[name].get("environment")) + str(SERVICES[name]["command"])
    assert not re.search(r"MARLESS_TOKEN\b|://[^@/]*:[^@/]*@|password [^/]|requirepass", told)


def test_images_run_as_a_user_without_rights():
    stages = {part.split()[0]: part for part in re.split(r"^FROM \S+ AS ", DOCKERFILE, flags=re.MULTILINE)[1:]}
    for image in IMAGES:
        assert re.findall(r"^USER (\S+)$", stages[image], flags=re.MULTILINE) == ["marless"]


def test_images_install_only_what_is_locked():
    installs = re.findall(r"-m pip install .*|\$\{LOCKED\}.*", DOCKERFILE)
    assert len(installs) > 5
    for install in installs:
        locked = "${LOCKED}" in install or "--require-hashes --no-deps --only-binary :all:" in install
        assert locked or "--no-deps /wheels/*.whl" in install, install


def test_only_sources_reach_the_engine():
    ignored = (ROOT / ".dockerignore").read_text().split("\n")
    assert ignored[1] == "*"
    assert {line.removeprefix("!").split("/")[0] for line in ignored if line.startswith("!")} == {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "NOTICE",
        "examples",
        "requirements",
        "marless",
        "services",
        "plugins",
    }
