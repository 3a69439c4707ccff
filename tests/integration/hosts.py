"""The four services as they run on different hosts, and what a test asks them over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import tokens

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
"""In the order in which they need one another."""


@dataclass
class Hosts:
    """Services that were started, and what they have said."""

    place: Path
    environment: dict[str, str]
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
            *(sys.executable, "-m", f"services.{service}", "--listen", "0.0.0.0:0", "--exit-with-stdin"),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | self.environment,
        )
        self.processes[service], log = process, self.logs.setdefault(service, [])
        assert process.stderr
        told: dict[str, str] = {}
        while told.get("event") != "serving":
            log.append((await process.stderr.readline()).decode())
            assert log[-1], f"{service} ended before it served: {log}"
            told = json.loads(log[-1]) if log[-1].startswith("{") else {}
        self.environment[f"MARLESS_{service.upper()}"] = told["address"]

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
async def running_hosts(place: Path, tls: Mapping[str, str]) -> AsyncIterator[Hosts]:
    """All four services with tokens of every role, mutual TLS, and a certificate of the workers' own."""
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
    )
    async with AsyncExitStack() as stack:
        for service in SERVICES:
            await hosts.start(service)
            listening = asyncio.create_task(hosts.listen(service))
            stack.push_async_callback(asyncio.wait, [listening])
            stack.push_async_callback(hosts.stop, service)
        yield hosts
