"""The four services as they run on different hosts, and what a test asks them over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from marless.rpc.roles import Role
from tests import tokens

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
"""In the order in which they need one another."""


@dataclass
class Hosts:
    """Services that were started, and what they have said."""

    place: Path
    environment: dict[str, str]
    of_service: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables of single services."""
    prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By service, what its command begins with, such as `ip netns exec NAME`."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def address(self, service: str) -> str:
        """Where a service listens."""
        return self.environment[f"MARLESS_{service.upper()}"]

    @property
    def tokens(self) -> Path:
        """Their directory of tokens."""
        return self.place / "tokens"

    @property
    def said(self) -> str:
        """Everything in the logs."""
        return "".join(line for log in self.logs.values() for line in log)

    async def start(self, service: str) -> None:
        """Start a service on a free port of all interfaces; returns once it serves."""
        process = await asyncio.create_subprocess_exec(
            *self.prefixes.get(service, ()),
            sys.executable,
            "-m",
            f"marless.services.{service}",
            "--listen",
            "0.0.0.0:0",
            "--exit-with-stdin",
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | self.environment | self.of_service.get(service, {}),
        )
        self.processes[service], log = process, self.logs.setdefault(service, [])
        assert process.stderr
        told: dict[str, str] = {}
        while told.get("event") != "serving":
            log.append((await process.stderr.readline()).decode())
            assert log[-1], f"{service} ended before it served: {log}"
            told = json.loads(log[-1]) if log[-1].startswith("{") else {}
        self.environment[f"MARLESS_{service.upper()}"] = told["address"]

    async def marless(self, *words: str) -> str:
        """Run the command on the coordinator's host, as a client; returns its output."""
        client = {
            "MARLESS_TOKEN": tokens.token_of(Role.CLIENT),
            "MARLESS_TLS_CA": self.environment["MARLESS_TLS_CA"],
        }
        process = await asyncio.create_subprocess_exec(
            *self.prefixes.get("coordinator", ()),
            sys.executable,
            "-m",
            "marless",
            *words,
            "--coordinator",
            self.address("coordinator"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=os.environ | client,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    async def listen(self, service: str) -> None:
        """Take in what a service says, to its end."""
        stderr = self.processes[service].stderr
        assert stderr
        async for line in stderr:
            self.logs[service].append(line.decode())

    async def stop(self, service: str) -> None:
        """Have it end in order."""
        process = self.processes[service]
        assert process.stdin
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def running_hosts(
    place: Path,
    tls: Mapping[str, str],
    of_service: Mapping[str, Mapping[str, str]] | None = None,
    prefixes: Mapping[str, Sequence[str]] | None = None,
) -> AsyncIterator[Hosts]:
    """All four services with tokens of every role, mutual TLS, and a certificate of the workers' own; see `Hosts`."""
    tokens.made(place / "tokens")
    hosts = Hosts(
        place,
        {
            "MARLESS_ADVERTISE": "127.0.0.1",
            "MARLESS_TOKENS": str(place / "tokens"),
            "MARLESS_TLS_CERT": tls["server.pem"],
            "MARLESS_TLS_KEY": tls["server.key"],
            "MARLESS_TLS_CA": tls["ca.pem"],
            "MARLESS_WORKER_TLS_CERT": tls["worker.pem"],
            "MARLESS_WORKER_TLS_KEY": tls["worker.key"],
            "MARLESS_RUNS": str(place / "runs"),
            "MARLESS_ACTOR_WORKERS": "2",
        },
        of_service or {},
        prefixes or {},
    )
    async with AsyncExitStack() as stack:
        for service in SERVICES:
            await hosts.start(service)
            listening = asyncio.create_task(hosts.listen(service))
            stack.push_async_callback(asyncio.wait, [listening])
            stack.push_async_callback(hosts.stop, service)
        yield hosts
