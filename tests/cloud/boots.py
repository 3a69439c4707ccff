"""Containers that stand for machines of EC2: with systemd, metadata, AWS's endpoints, and nothing of marless."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.certificates import made

HERE = Path(__file__).parent
BASE = os.environ.get("MARLESS_PYTHON", "localhost/python-base:latest")
"""A base image with what Debian's image for EC2 has of Python and its package manager."""
IMAGE = "localhost/marless-test-machine"
_SOURCE = f"""
FROM {BASE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends \\
    systemd systemd-sysv dbus iproute2 procps ca-certificates
"""
_ENVIRONMENT = "[Manager]\nDefaultEnvironment=AWS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt\n"
"""boto3 of PyPI has authorities of its own, which do not know that of the tests."""
BOOT_S = 900.0
MOST_TRIES = 3
START_S = 180.0


def refused() -> str:
    """Why no such machines can be had here; "" if they can."""
    if not shutil.which("podman"):
        return "podman, whose containers can run systemd, is not installed"
    if os.geteuid():
        return "only root may give containers what systemd needs"
    if _podman("image", "exists", BASE).returncode:
        return f"there is no image {BASE}: set MARLESS_PYTHON to one of Debian with Python 3.11 or newer"
    return ""


@dataclass(frozen=True)
class Network:
    """A network of containers with the addresses of the first subnet of a deployment."""

    name: str
    vpc_cidr: str
    gateway: str
    control: str
    """Address of the control plane."""
    moto_port: int
    region: str
    place: Path
    """Folder of certificates."""


@contextmanager
def network(place: Path, moto_port: int, region: str) -> Iterator[Network]:
    """One network, of addresses that hardly anybody else uses."""
    third = 100 + secrets.randbelow(100)
    made_here = Network(
        f"marless-{secrets.token_hex(4)}",
        vpc_cidr=f"10.{third}.0.0/16",
        gateway=f"10.{third}.0.1",
        control=f"10.{third}.0.10",
        moto_port=moto_port,
        region=region,
        place=place,
    )
    _checked("network", "create", "--subnet", f"10.{third}.0.0/19", "--gateway", made_here.gateway, made_here.name)
    try:
        subprocess.run(
            ("podman", "build", "-q", "-t", IMAGE, "-f", "-"),
            input=_SOURCE.encode(),
            check=True,
            capture_output=True,
            timeout=BOOT_S,
        )
        yield made_here
    finally:
        _podman("network", "rm", "--force", made_here.name)


@dataclass(frozen=True)
class Machine:
    """A container that stands for an instance."""

    name: str

    def run(self, *command: str, limit_s: float = START_S) -> subprocess.CompletedProcess[str]:
        """Run a command there, as root."""
        return _podman("exec", self.name, *command, limit_s=limit_s)

    def start(self, script: str) -> None:
        """Do what cloud-init does with user data: run it once, as root, in a service of systemd."""
        self._write("/var/lib/cloud/user-data", script)
        service = ("--quiet", "--pipe", "--wait", "--collect", "--unit=cloud-final", "--service-type=oneshot")
        done = self.run("systemd-run", *service, "bash", "/var/lib/cloud/user-data", limit_s=BOOT_S)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def boot(self, script: str) -> None:
        """Start it, and wait until all that its user data had systemd do is done."""
        self.start(script)
        deadline = time.monotonic() + BOOT_S
        while self.run("test", "-e", "/var/lib/marless-boot/done").returncode:
            assert self.tries < MOST_TRIES and time.monotonic() < deadline, self.journal("marless-boot")[-3000:]
            time.sleep(0.5)

    @property
    def tries(self) -> int:
        """How often its boot has been tried again."""
        shown = self.run("systemctl", "show", "--property=NRestarts", "--value", "marless-boot")
        return int(shown.stdout.strip() or 0)

    def active(self, unit: str) -> bool:
        """Whether systemd has a unit active."""
        return self.run("systemctl", "is-active", "--quiet", unit).returncode == 0

    @property
    def is_on(self) -> bool:
        """Whether it has not been switched off."""
        return _podman("inspect", "--format={{.State.Running}}", self.name).stdout.strip() == "true"

    @contextmanager
    def imaged(self) -> Iterator[str]:
        """An image of what is on it, once it has switched itself off."""
        name = f"localhost/{self.name}"
        _checked("commit", "--quiet", self.name, name)
        try:
            yield name
        finally:
            _podman("rmi", "--force", name)

    def switch_off(self) -> None:
        """Do what EC2 does with an instance that is terminated."""
        _podman("kill", self.name)

    def seconds_until(self, timer: str) -> float:
        """Until a timer of systemd elapses."""
        [found] = json.loads(self.run("systemctl", "list-timers", "--output=json", timer).stdout)
        return float(found["next"]) / 1e6 - time.time()

    def journal(self, unit: str) -> str:
        """What a unit has logged."""
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}").stdout

    def _write(self, path: str, text: str) -> None:
        script = f"mkdir -p $(dirname {path}) && cat > {path}"
        subprocess.run(("podman", "exec", "-i", self.name, "sh", "-c", script), input=text.encode(), check=True)


@contextmanager
def machine(
    inside: Network,
    instance: str,
    role: str,
    *,
    address: str = "",
    buckets: tuple[str, ...] = (),
    image: str = IMAGE,
) -> Iterator[Machine]:
    """A machine that has been started, and has run nothing yet."""
    name = f"{inside.name}-{instance}"
    hosts = [f"{service}.{inside.region}.amazonaws.com" for service in ("s3", "secretsmanager", "autoscaling", "ec2")]
    hosts += ["s3.amazonaws.com", *(f"{each}.{host}" for each in buckets for host in (hosts[0], "s3.amazonaws.com"))]
    at = ("--ip", address) if address else ()
    names = [word for host in hosts for word in ("--add-host", f"{host}:127.0.0.2")]
    try:
        _checked(
            "run",
            "--detach",
            "--privileged",
            "--systemd=always",
            "--name",
            name,
            "--hostname",
            instance,
            "--network",
            inside.name,
            *at,
            *names,
            image,
            "/sbin/init",
        )
        started = Machine(name)
        _surround(started, inside, instance, role, hosts)
        yield started
    finally:
        _podman("rm", "--force", "--time", "1", name)


def _surround(started: Machine, inside: Network, instance: str, role: str, hosts: list[str]) -> None:
    place = inside.place / instance
    place.mkdir()
    made(place, *hosts)
    (place / "metadata.json").write_text(json.dumps(_metadata(instance, role, inside.region)))
    (place / "environment.conf").write_text(_ENVIRONMENT)
    shutil.copy(HERE / "surroundings.py", place)
    _checked("cp", f"{place}", f"{started.name}:/opt/surroundings")
    script = """
    until systemctl is-system-running --wait 2>/dev/null | grep -qE 'running|degraded'; do sleep 0.2; done
    mkdir -p /etc/systemd/system.conf.d && cp /opt/surroundings/environment.conf /etc/systemd/system.conf.d/
    cat /opt/surroundings/ca.pem >> /etc/ssl/certs/ca-certificates.crt
    systemctl daemon-reexec
    cd /opt/surroundings && systemd-run --quiet --same-dir --unit=surroundings \
        python3 -I surroundings.py metadata.json "$0" "$1" server.pem server.key
    until ss -ltn | grep -q 127.0.0.2:443; do sleep 0.2; done
    """
    done = started.run("bash", "-c", script, inside.gateway, f"{inside.moto_port}")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _metadata(instance: str, role: str, region: str) -> dict[str, str]:
    document = {
        "instanceId": instance,
        "instanceType": "c7i.4xlarge",
        "availabilityZone": f"{region}a",
        "region": region,
        "pendingTime": "2026-11-24T12:00:00Z",
    }
    keys = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": "testing",
        "SecretAccessKey": "testing",
        "Token": "testing",
        "LastUpdated": "2026-11-24T12:00:00Z",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    return {
        "/latest/dynamic/instance-identity/document": json.dumps(document),
        "/latest/meta-data/instance-life-cycle": "spot",
        "/latest/meta-data/autoscaling/target-lifecycle-state": "InService",
        "/latest/meta-data/iam/security-credentials/": role,
        f"/latest/meta-data/iam/security-credentials/{role}": json.dumps(keys),
    }


def _podman(*arguments: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("podman", *arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit_s
    )


def _checked(*arguments: str) -> None:
    done = _podman(*arguments)
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
