"""Ways to interrupt a job that runs in this process, and to see what was computed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from marless.services.coordinator.execution.service_pools import ServicePools
from marless.services.learner_pool.updates import Updates
from tests.integration.running import KilledError

FAILPOINTS = ("state.run_folder", "execution.recovery", "state.checkpoints", "state.pending_rollouts")
"""The coordinator's modules that have failpoints."""
Interrupt = Callable[[], Awaitable[object]]


class Interruptions:
    """Interrupts what runs while a monkeypatch lasts."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self._patched = patched

    def kill_at(self, place: str, passes: int = 1) -> None:
        """Arm a failpoint of this process's coordinator: it springs at the given pass."""
        left = count(passes - 1, -1)

        def failpoint(name: str) -> None:
            if name == place and next(left) == 0:
                raise KilledError(name)

        for module in FAILPOINTS:
            self._patched.setattr(f"marless.services.coordinator.{module}.failpoint", failpoint)

    def after(self, call: str, number: int, interrupt: Interrupt, *, before: bool = False) -> None:
        """Arm an interruption: awaited once, right after (or before) the call of `ServicePools` of this number.

        It comes to its end even if the call is cancelled because of it.
        """
        real, calls = getattr(ServicePools, call), count()

        async def called(*args, **kwargs):
            now = next(calls) == number
            if now and before:
                await asyncio.shield(asyncio.ensure_future(interrupt()))
            answer = await real(*args, **kwargs)
            if now and not before:
                await asyncio.shield(asyncio.ensure_future(interrupt()))
            return answer

        self._patched.setattr(ServicePools, call, called)

    def trained(self) -> list[int]:
        """The rounds that the learner pool computes from now on."""
        rounds, real = [], Updates._update

        async def update(updates, known, request):
            answer = await real(updates, known, request)
            rounds.append(request.round)
            return answer

        self._patched.setattr(Updates, "_update", update)
        return rounds

    def sampled(self) -> list[int]:
        """The rounds whose actors run from now on."""
        rounds, real = [], ServicePools.train

        async def train(pools, job_id, job, round_, *rest, **options):
            answer = await real(pools, job_id, job, round_, *rest, **options)
            rounds.append(round_)
            return answer

        self._patched.setattr(ServicePools, "train", train)
        return rounds
