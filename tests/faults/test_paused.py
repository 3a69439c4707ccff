"""A process that is paused for longer than its lease, and wakes up, writes nothing."""

from tests.faults import paused_writer


async def test_a_writer_that_was_paused_is_refused_when_it_wakes_up(tmp_path):
    figures = await paused_writer.run(0, tmp_path, times=8)
    assert figures["published before"] >= 8
