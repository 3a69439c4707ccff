"""Workers in Pods that leave in the middle of a round: no trajectory is lost. They are real workers, as processes."""

import pytest

from marless.fleet.launchers.registry import Choice
from tests.faults import scale_down


@pytest.mark.parametrize(("workers", "remaining"), [(12, 3), pytest.param(100, 3, marks=pytest.mark.slow)])
async def test_workers_that_leave_all_at_once_lose_nothing(
    tmp_path, server, options, workers, remaining, record_property
):
    given = options | {"place_s": "60", "connect_s": "600"}
    figures = await scale_down.at_once(
        tmp_path, Choice("kubernetes", given), workers=workers, remaining=remaining, ports=True
    )
    record_property("figures", figures)
    assert (figures["left"], figures["lost"]) == (workers - remaining, 0)
    assert len(server.store.ever["pods"]) >= workers
    assert server.pods == server.secrets == {}
