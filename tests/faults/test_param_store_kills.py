"""Redis dies, or its disk is full or fails: what was acknowledged stays, whole and once."""

import pytest

from tests.faults import disk_full, read_only, redis_kills


async def test_nothing_acknowledged_is_lost_torn_or_doubled(tmp_path):
    figures = await redis_kills.run(0, tmp_path, kills=5)
    assert figures["unanswered calls"] > 0
    assert figures["acknowledged"] > 25


@pytest.mark.skipif(not disk_full.possible(), reason="this kernel gives processes no mounts of their own")
async def test_a_full_disk_refuses_publishes_and_comes_back(tmp_path):
    figures = await disk_full.run(0, tmp_path)
    assert figures["acknowledged"] > 20


@pytest.mark.skipif(not disk_full.possible(), reason="this kernel gives processes no mounts of their own")
async def test_a_read_only_filesystem_refuses_publishes_and_comes_back(tmp_path):
    figures = await read_only.remounted(0, tmp_path)
    assert figures["acknowledged"] == read_only.PUBLISHED + 1


@pytest.mark.slow
@pytest.mark.skipif(not read_only.can_abort(), reason="this process may not mount images of filesystems")
async def test_a_filesystem_that_aborts_under_the_log_refuses_publishes(tmp_path):
    figures = await read_only.aborted(0, tmp_path)
    assert figures["acknowledged"] == read_only.PUBLISHED + 1
