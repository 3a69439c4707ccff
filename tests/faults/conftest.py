"""Services for the table of faults."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.faults.harness import ProcessStage, Stage, staged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(redis_url, tmp_path_factory, templates) -> AsyncIterator[Stage]:
    async for each in staged(tmp_path_factory.mktemp("stage"), redis_url, templates):
        yield each


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process_stage(tmp_path_factory) -> AsyncIterator[ProcessStage]:
    async with ProcessStage(tmp_path_factory.mktemp("rig")) as each:
        yield each
