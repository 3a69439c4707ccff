"""What is forgotten of a job's pending rollouts, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from marless.core.errors import UnavailableError
from marless.services.coordinator.state.journal import Journal
from marless.services.coordinator.state.pending_rollouts import LanePublisher, PendingRollouts
from marless.services.coordinator.state.run_folder import RunFolder
from tests.unit.coordinator.test_run_folder import PENDING, taken_over

JOURNAL = cast("Journal", SimpleNamespace(rounds=PENDING.round, env_steps=0, last=None))
NO_LANES = cast("LanePublisher", None)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return taken_over(tmp_path / "runs")


async def left(folder: RunFolder) -> tuple[object, ...]:
    """What another coordinator finds."""
    later = PendingRollouts(folder, JOURNAL, NO_LANES)
    await later.read()
    return later.found


async def test_what_is_dropped_is_not_found_by_a_later_coordinator(folder, monkeypatch):
    pending, synced = PendingRollouts(folder, JOURNAL, NO_LANES), []
    pending.put(PENDING)
    assert await left(folder) == (PENDING,)
    monkeypatch.setattr(folder, "sync_pending", lambda: synced.append(folder.read_pending(PENDING.round)))
    await pending.discard()
    assert pending.found == await left(folder) == ()
    assert synced == [()], "it was not on the disk"


async def test_what_is_only_lost_may_be_found_again(folder):
    """Rounds come to the same when they are sampled again."""
    pending = PendingRollouts(folder, JOURNAL, NO_LANES)
    pending.put(PENDING)
    pending.lost()
    assert pending.found == ()
    assert await left(folder) == (PENDING,)


async def test_what_cannot_be_dropped_is_still_there_for_the_next_attempt(folder, monkeypatch):
    pending = PendingRollouts(folder, JOURNAL, NO_LANES)
    pending.put(PENDING)

    def full(_: object) -> None:
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as patched, pytest.raises(UnavailableError, match="full"):
        patched.setattr(folder, "write_pending", full)
        await pending.discard()
    assert pending.found == (PENDING,)
    await pending.discard()
    assert await left(folder) == ()
