"""Services in this process for the table of faults."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.faults.harness import Stage, staged


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(redis_url, tmp_path_factory, templates) -> AsyncIterator[Stage]:
    async for each in staged(tmp_path_factory.mktemp("stage"), redis_url, templates):
        yield each
