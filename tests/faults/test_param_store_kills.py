"""Redis dies, or its disk is full: what was acknowledged stays, whole and once."""

import pytest

from tests.faults import disk_full, redis_kills


async def test_nothing_acknowledged_is_lost_torn_or_doubled(tmp_path):
    figures = await redis_kills.run(0, tmp_path, kills=5)
    assert figures["unanswered calls"] > 0
    assert figures["acknowledged"] > 25


@pytest.mark.skipif(not disk_full.possible(), reason="this kernel gives processes no mounts of their own")
async def test_a_full_disk_refuses_publishes_and_comes_back(tmp_path):
    figures = await disk_full.run(0, tmp_path)
    assert figures["acknowledged"] > 20
