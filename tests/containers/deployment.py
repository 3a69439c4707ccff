"""One deployment of deploy/docker-compose.yml: its containers, and a client on this host."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marless.app.client import Client

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy" / "docker-compose.yml"
SERVICES = ("redis", "param-store", "learner-pool", "actor-pool", "coordinator")
LONG_S = 600.0
BUILD_S = 3600.0
"""Longest build of all images: the first one downloads torch."""


def no_engine() -> str:
    """Why containers cannot be run here; "" if they can."""
    if not shutil.which("docker"):
        return "the program `docker` is not installed"
    try:
        asked = _run("docker", "info", "--format", "{{.ServerVersion}}", limit_s=30.0)
    except subprocess.TimeoutExpired:
        return "no container engine answers: `docker info` took 30 s"
    if asked.returncode:
        return f"no container engine answers (DOCKER_HOST): {asked.stderr.strip() or asked.stdout.strip()}"
    return "" if compose() else "neither `docker compose` nor `docker-compose` is installed"


def compose() -> tuple[str, ...]:
    """The command of Compose here: v2's or v1's; () if there is none."""
    if _run("docker", "compose", "version").returncode == 0:
        return ("docker", "compose")
    return ("docker-compose",) if shutil.which("docker-compose") else ()


class Deployment:
    """A project of Compose with credentials, a port and volumes of its own, from images that are built once.

    With `actor_workers`, so many containers of actor workers dial in and one of a learner worker; pools start none.
    With `engine`, the path of an engine's socket that containers may use, pools start containers for their workers.
    """

    def __init__(self, place: Path, *, actor_workers: int = 0, engine: Path | None = None) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.credentials = place / "credentials"
        self.project = f"marless-{secrets.token_hex(4)}"
        self._compose = (*compose(), "-p", self.project, "-f", str(COMPOSE_FILE))
        self._scale: tuple[str, ...] = ()
        self._engine = engine
        if engine:
            self._compose += ("-f", str(COMPOSE_FILE.with_name("docker-launcher.yml")))
        if actor_workers:
            self._compose += ("--profile", "workers")
            self._scale = ("--scale", f"actor-worker={actor_workers}")

    @property
    def environment(self) -> dict[str, str]:
        """The settings of the compose file."""
        own = {"MARLESS_PORT": str(self.port), "MARLESS_CREDENTIALS": str(self.credentials)}
        own |= {"MARLESS_LAUNCHER": "external"} if self._scale else {}
        if self._engine:
            own |= {"MARLESS_DOCKER_SOCKET": str(self._engine), "MARLESS_NETWORK": f"{self.project}-inside"}
        return own | ({"MARLESS_UID": str(os.getuid())} if os.getuid() else {})

    def build(self) -> None:
        """Build all images."""
        self.compose("build", limit_s=BUILD_S)

    def compose(self, *arguments: str, limit_s: float = LONG_S) -> str:
        """Run a command of Compose; returns its output. Raises AssertionError with what it said if it fails."""
        done = _run(*self._compose, *arguments, environment=self.environment, limit_s=limit_s)
        assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self) -> None:
        """Start all containers that do not run."""
        self.compose("up", "-d", *self._scale)

    def make_credentials(self) -> None:
        """Make everything secret, as an operator would."""
        done = _run(sys.executable, "-m", "marless", "credentials", str(self.credentials))
        assert done.returncode == 0, done.stderr

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self.compose("ps", "-q", service).strip()

    def inspect(self, service: str) -> Mapping[str, Any]:  # Any: as the engine has it
        """What the engine knows of a service's container."""
        [found] = json.loads(_run("docker", "inspect", self.container(service)).stdout)
        return dict(found)

    def execute(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a service's container."""
        return _run("docker", "exec", self.container(service), *command)

    def client(self) -> Client:
        """A client on this host, which waits for as long as containers take to come back."""
        token = (self.credentials / "client" / "client").read_text(encoding="ascii").strip()
        return Client(
            f"localhost:{self.port}",
            token=token,
            tls_ca=str(self.credentials / "client" / "authority.pem"),
            contact_s=120.0,
            patience_s=120.0,
        )

    @property
    def logs(self) -> str:
        """What all containers have logged."""
        return self.compose("logs", "--no-color", "--tail", "40")


@contextmanager
def up(deployment: Deployment) -> Iterator[None]:
    """Have a deployment run, of which nothing is left afterwards."""
    try:
        deployment.start()
        yield
    finally:
        deployment.compose("down", "--volumes", "--timeout", "5")


def _run(
    *command: str, environment: Mapping[str, str] | None = None, limit_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("MARLESS_")}
    base = {name: os.environ[name] for name in ("MARLESS_PYTHON", "MARLESS_REDIS_IMAGE") if name in os.environ}
    return subprocess.run(
        command,
        env=known | base | dict(environment or {}),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )
