"""The launcher of pools whose workers something else starts: by hand, Slurm, Kubernetes.

Such workers dial in with the token of their role. The pool uses them, and starts and ends none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from marless.core.errors import MarlessError
from marless.fleet.launchers.base import Condition, Launch, Launcher, LaunchOrder, LaunchOutcome, Options, WorkerProgram
from marless.fleet.launchers.registry import seconds_of
from marless.rpc.client import Peer
from marless.rpc.roles import Role
from marless.rpc.security import Security
from marless.rpc.v1.actor_pool_pb2_grpc import ActorPoolServiceStub
from marless.rpc.v1.common_pb2 import ListWorkersRequest

CONNECT_S = 600.0
ASK_S = 5.0
"""Seconds that a pool may take to say which workers it has."""


class ExternalLauncher:
    """Starts nothing."""

    def __init__(self, connect_s: float = CONNECT_S) -> None:
        self.connect_s = connect_s

    def capacity(self) -> int:
        """The launcher has no room of its own."""
        return 0

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Refuse all."""
        return [Launch(LaunchOutcome.REFUSED, "the workers of this pool are started by something else")] * len(orders)

    async def observe(self, worker: str) -> str:
        """No worker is its own."""
        return "not started"

    async def drain(self, worker: str, grace_s: float) -> None:
        """No worker is its own."""

    async def close(self) -> None:
        """Nothing is to be ended."""

    async def check(self) -> Condition:
        """Whether there are tokens for workers that dial in, and how many have, to the pool at $MARLESS_ACTOR_POOL."""
        if not os.environ.get("MARLESS_TOKENS"):
            return Condition(
                "workers that dial in need the token of their role, and $MARLESS_TOKENS is not set",
                "`marless tokens DIR`, and give DIR to the pools and the workers",
            )
        pool = os.environ.get("MARLESS_ACTOR_POOL")
        if not pool:
            return Condition("workers dial in with a token; $MARLESS_ACTOR_POOL, the pool to ask for them, is not set")
        try:
            attached = await _attached(pool)
        except MarlessError as error:
            return Condition(f"workers dial in with a token; how many have is not known: {error}")
        found = attached or "none; docs/operating.md says how to start some"
        return Condition(f"actor workers attached to the pool at {pool}: {found}")


async def _attached(pool: str) -> int:
    """The number of workers that an actor pool has; raises the errors of a call."""
    files = {name: os.environ.get(f"MARLESS_{name.upper()}", "") for name in ("tls_cert", "tls_key", "tls_ca")}
    peer = Peer(pool, Security.of_process(Role.OPERATOR, os.environ["MARLESS_TOKENS"], **files), "actor_pool")
    try:
        asked = ListWorkersRequest()
        answer = await peer.call(ActorPoolServiceStub(peer.channel).ListWorkers, asked, timeout_s=ASK_S)
    finally:
        await peer.close()
    return len(answer.workers)


def make(program: WorkerProgram, options: Options) -> Launcher:
    """The launcher `external`, with the option `connect_s`."""
    return ExternalLauncher(seconds_of("external", options, CONNECT_S))


LAUNCHER = make
