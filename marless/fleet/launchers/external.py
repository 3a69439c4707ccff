"""The launcher of pools whose workers something else starts: by hand, Slurm, Kubernetes.

Such workers dial in with the token of their role. The pool uses them, and starts and ends none.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from marless.fleet.launchers.base import Condition, Launch, Launcher, Options, Order, Outcome, Program
from marless.fleet.launchers.options import seconds_of

CONNECT_S = 600.0


class ExternalLauncher:
    """Starts nothing."""

    def __init__(self, connect_s: float = CONNECT_S) -> None:
        self.connect_s = connect_s

    def capacity(self) -> int:
        """None of its own."""
        return 0

    async def launch(self, orders: Sequence[Order]) -> Sequence[Launch]:
        """Refuse all."""
        return [Launch(Outcome.REFUSED, "the workers of this pool are started by something else")] * len(orders)

    async def observe(self, worker: str) -> str:
        """No worker is its own."""
        return "not started"

    async def drain(self, worker: str, grace_s: float) -> None:
        """No worker is its own."""

    async def close(self) -> None:
        """Nothing is to be ended."""

    async def check(self) -> Condition:
        """Whether there are tokens for workers that dial in."""
        if not os.environ.get("MARLESS_TOKENS"):
            return Condition(
                "workers that dial in need the token of their role, and $MARLESS_TOKENS is not set",
                "`marless tokens DIR`, and give DIR to the pools and the workers",
            )
        return Condition("workers dial in with a token, and for another host with TLS files (docs/operating.md)")


def make(program: Program, options: Options) -> Launcher:
    """The launcher `external`, with the option `connect_s`."""
    return ExternalLauncher(seconds_of("external", options, CONNECT_S))


LAUNCHER = make
