"""Fixtures of attacks on all four services."""

from __future__ import annotations

import pytest

from marless.errors import UnavailableError
from marless.fleet.launchers.local import LocalLauncher


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools cannot start workers: whatever gets as far as a worker is UNAVAILABLE."""

    async def launch(launcher: LocalLauncher, worker: str, ticket: str) -> None:
        raise UnavailableError(f"cannot start worker {worker}: there are none in this test")

    monkeypatch.setattr(LocalLauncher, "launch", launch)
