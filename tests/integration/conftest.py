"""Services in this process, and ways to interrupt a job that runs on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from marless.services.coordinator.state.run_folder import RunFolder
from tests.integration.interruptions import Interruptions
from tests.integration.one_process import check_same_weights
from tests.integration.running import Cluster, outcome, restarted, running_scripted, succeeded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory, templates) -> AsyncIterator[Cluster]:
    """Services that know the scripted policies."""
    async for each in running_scripted(tmp_path_factory.mktemp("cluster"), redis_url, templates):
        yield each


@pytest.fixture
def kill_at(monkeypatch):
    """Arms a failpoint of this process's coordinator."""
    return Interruptions(monkeypatch).kill_at


@pytest.fixture
def trained(monkeypatch) -> list[int]:
    """The rounds that the learner pool has computed."""
    return Interruptions(monkeypatch).trained()


@pytest.fixture
def sampled(monkeypatch) -> list[int]:
    """The rounds whose actors have run."""
    return Interruptions(monkeypatch).sampled()


@pytest.fixture
def after(cluster, monkeypatch):
    """Arms an interruption at a call of `ServicePools`."""
    return Interruptions(monkeypatch).after


@pytest.fixture
def check_restarts(cluster, after) -> Callable[[RunFolder, RunFolder], Awaitable[None]]:
    """Runs a job undisturbed, and the same one with pools that restart; all three ways come to the same."""

    async def check(whole: RunFolder, interrupted: RunFolder) -> None:
        await succeeded(cluster, whole)
        check_same_weights(whole)
        after("train", 3, restarted(cluster, "actor_pool"))
        after("update", 4, restarted(cluster, "learner_pool"))
        await succeeded(cluster, interrupted)
        assert outcome(interrupted) == outcome(whole)

    return check
