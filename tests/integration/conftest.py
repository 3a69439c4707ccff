"""Ways to interrupt a job that runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from services.coordinator.execution.service_pools import ServicePools
from services.learner_pool.updates import Updates
from tests.integration.running import Cluster, KilledError, running_scripted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """Services that know the scripted policies."""
    async for each in running_scripted(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest.fixture
def kill_at(monkeypatch):
    """Arms a failpoint of this process's coordinator: it springs at the given pass."""

    def arm(place: str, passes: int = 1) -> None:
        left = count(passes - 1, -1)

        def failpoint(name: str) -> None:
            if name == place and next(left) == 0:
                raise KilledError(name)

        for module in ("state.run_folder", "execution.recovery", "state.checkpoints", "state.lanes"):
            monkeypatch.setattr(f"services.coordinator.{module}.failpoint", failpoint)

    return arm


@pytest.fixture
def trained(monkeypatch) -> list[int]:
    """The rounds that the learner pool has computed."""
    rounds, real = [], Updates._update

    async def update(updates, known, request):
        answer = await real(updates, known, request)
        rounds.append(request.round)
        return answer

    monkeypatch.setattr(Updates, "_update", update)
    return rounds


@pytest.fixture
def sampled(monkeypatch) -> list[int]:
    """The rounds whose actors have run."""
    rounds, real = [], ServicePools.train

    async def train(pools, job_id, job, round_, *rest, **options):
        answer = await real(pools, job_id, job, round_, *rest, **options)
        rounds.append(round_)
        return answer

    monkeypatch.setattr(ServicePools, "train", train)
    return rounds


@pytest.fixture
def after(cluster, monkeypatch):
    """Arms an interruption: awaited once, right after (or before) the given call of `Pools` in the given round.

    It comes to its end even if the call is cancelled because of it.
    """

    def arm(call: str, round_: int, interrupt, *, before: bool = False) -> None:
        real, calls = getattr(ServicePools, call), count()

        async def called(*args, **kwargs):
            now = next(calls) == round_
            if now and before:
                await asyncio.shield(asyncio.create_task(interrupt()))
            answer = await real(*args, **kwargs)
            if now and not before:
                await asyncio.shield(asyncio.create_task(interrupt()))
            return answer

        monkeypatch.setattr(ServicePools, call, called)

    return arm
