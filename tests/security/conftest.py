"""Fixtures of attacks on all four services."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marless.fleet.launchers.base import Launch, LaunchOrder, LaunchOutcome
from marless.fleet.launchers.local import LocalLauncher


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools cannot start workers: whatever gets as far as a worker is UNAVAILABLE."""

    async def launch(launcher: LocalLauncher, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        return [
            Launch(LaunchOutcome.FAILED, f"cannot start worker {order.worker}: there are none in this test")
            for order in orders
        ]

    monkeypatch.setattr(LocalLauncher, "launch", launch)
