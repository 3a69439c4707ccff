"""The services of `bench.scale`, each a process: on one host, or with actor workers on several network namespaces."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # psutil ships no types

from bench import harness
from bench.harness import BenchError
from marless.app.client import AsyncClient
from marless.rpc.roles import Role
from marless.rpc.security import Security
from tests import certificates, tokens
from tests.hosts.network import network

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
PLACES = "MARLESS_BENCH_PLACES"
"""Variable for `bench.crowd`: the namespaces of its hosts, as NAME=ADDRESS,…; ADDRESS.cache is its cache, ADDRESS.relay
its relay."""
LIGHT = "MARLESS_BENCH_LIGHT"
"""Variable for `bench.crowd`: the address of the learner pool, if each host is one process; see `bench.light`."""
_INSIDE = "MARLESS_BENCH_NAMESPACES"
"""Variable of a program that runs in the namespace of the services: its address, and the names of all others."""
_CACHE, _RELAY, _WORKERS = "cache", "relay", "workers"
ON_HOSTS = (_CACHE, _RELAY, _WORKERS)
"""What runs on the hosts of actors, and is none of the services."""


@dataclass(frozen=True)
class Stack:
    """The processes of the services, and of the caches."""

    place: Path
    host: str
    """Address of the services' host; "": they listen at unix sockets."""
    processes: Mapping[str, psutil.Process]
    tls: Mapping[str, str] = field(default_factory=dict)
    """PEM files by name; without them, there are no tokens either."""

    def address(self, service: str) -> str:
        """The address of a service."""
        return _address(self.place, self.host, service)

    def security(self, role: Role) -> Security:
        """What a caller of this role shows."""
        if not self.tls:
            return Security()
        return Security(tokens.token_of(role), self.tls["server.pem"], self.tls["server.key"], self.tls["ca.pem"])

    def client(self) -> AsyncClient:
        """A client of the coordinator."""
        if not self.tls:
            return AsyncClient(self.address("coordinator"))
        return AsyncClient(self.address("coordinator"), token=tokens.token_of(Role.CLIENT), tls_ca=self.tls["ca.pem"])

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that each service has used, without its children; those of all caches, relays and workers."""
        used: dict[str, float] = {}
        crowd = self.processes["actor_pool"].children(recursive=True)
        for name, process in (*self.processes.items(), *((_WORKERS, each) for each in crowd)):
            kind = name.partition("-")[0]
            used[kind] = used.get(kind, 0.0) + _cpu_s(process.pid)
        return used

    def peak_mb(self) -> dict[str, float]:
        """The largest memory that each service, and a cache, has had resident, in MB of 10^6 bytes."""
        peaks: dict[str, float] = {}
        for name, process in self.processes.items():
            kind = name.partition("-")[0]
            peaks[kind] = max(peaks.get(kind, 0.0), peak_mb(process.pid))
        return peaks


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process, with those of threads that have ended: its clock, by the number that Linux gives it."""
    return time.clock_gettime(~pid << 3 | 2)


def peak_mb(pid: int) -> float:
    """The largest memory that a process has had resident, in MB of 10^6 bytes."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def _address(place: Path, host: str, service: str) -> str:
    return f"{host}:{7070 + SERVICES.index(service)}" if host else f"unix:{place}/{service}.sock"


def _peers(place: Path, host: str, *services: str) -> list[str]:
    return [word for each in services for word in (f"--{each.replace('_', '-')}", _address(place, host, each))]


def on_hosts(count: int) -> bool:
    """Run this program again in a network namespace, beside this many for actor workers; False if it runs there.

    Network namespaces need root.
    """
    if not count or _INSIDE in os.environ:
        return False
    with network(1 + count) as (own, *others):
        variables = {_INSIDE: ",".join((own.address, *(host.name for host in others)))}
        command = [*own.command, sys.executable, "-m", "bench.scale", *sys.argv[1:]]
        subprocess.run(command, check=True, env=os.environ | variables, cwd=harness.ROOT)
    return True


@contextmanager
def services(actors: int, *, light: bool = False) -> Iterator[Stack]:
    """Run the services; their logs are in the directory, and are printed if the block raises BenchError."""
    host, *names = os.environ.get(_INSIDE, "").split(",")
    with tempfile.TemporaryDirectory(prefix="marless-") as name, ExitStack() as stack:
        place = Path(name)
        tls = _secured(place, host) if host else {}
        peers = _peers(place, host, *SERVICES)
        options = {
            "param_store": ("marless.services.param_store", "--data-dir", place / "data"),
            "learner_pool": ("marless.services.learner_pool", *peers[:2], "--warm-workers", "1"),
            "actor_pool": ("bench.crowd", *peers[:2], "--actor-workers", str(actors)),
            "coordinator": ("marless.services.coordinator", *peers[:6], "--runs", place / "runs"),
        }
        os.environ[PLACES] = ",".join(f"{each}=unix:{place}/{each}" for each in names)
        if light:
            os.environ[LIGHT] = _address(place, host, "learner_pool")
        running = {}
        secrets = ("--tokens", place / "tokens", *_files(tls)) if host else ()
        for service, (module, *arguments) in options.items():
            command = (module, "--listen", _address(place, host, service), *secrets, *arguments)
            running[service] = stack.enter_context(serving(place / f"{service}.log", *map(str, command)))
        for each in () if light else names:
            within, shown = ("ip", "netns", "exec", each), ("--tokens", str(place / "of-actors"), *_files(tls))
            cache = ("marless.services.param_store", "--upstream", _address(place, host, "param_store"))
            relay = ("marless.services.relay", *_peers(place, host, "actor_pool", "learner_pool"))
            for kind, command in ((_CACHE, cache), (_RELAY, relay)):
                started = (*command, "--listen", f"unix:{place}/{each}.{kind}", *shown)
                log = place / f"{each}.{kind}.log"
                running[f"{kind}-{each}"] = stack.enter_context(serving(log, *started, within=within))
        yield Stack(place, host, running, tls)


def _secured(place: Path, host: str) -> Mapping[str, str]:
    """Make certificates and tokens, as services on several hosts need them; returns the certificates' files."""
    tokens.made(place / "tokens")
    (place / "of-actors").mkdir(mode=0o700)
    tokens.write(place / "of-actors", Role.ACTOR, tokens.token_of(Role.ACTOR))
    (place / "tls").mkdir()
    return certificates.made(place / "tls", host)


def _files(tls: Mapping[str, str]) -> Sequence[str]:
    return ("--tls-cert", tls["server.pem"], "--tls-key", tls["server.key"], "--tls-ca", tls["ca.pem"])


@contextmanager
def serving(log: Path, module: str, *arguments: str, within: Sequence[str] = ()) -> Iterator[psutil.Process]:
    """Run a module until the end of the block; its log is printed if the block raises BenchError."""
    command = [*within, sys.executable, "-m", module, *arguments, "--exit-with-stdin"]
    with log.open("w") as file:
        process = psutil.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=file, cwd=harness.ROOT, env=harness.variables()
        )
        try:
            yield psutil.Process(process.pid)
        except BenchError:
            harness.say(f"{log.name}:\n{log.read_text(encoding='utf-8')[-3000:]}")
            raise
        finally:
            harness.end_tree(process)
