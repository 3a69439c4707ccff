"""Stopping a long computation from another thread: it asks, wherever it may end, whether it is to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Stopped: TypeAlias = Callable[[], bool]
"""True once a computation is to stop. Takes no lock, so that it may be asked in each step."""


class StoppedError(Exception):
    """A computation ended early because it was told to. What it was computing is incomplete and must not be used."""


def never() -> bool:
    """The answer for a computation that nobody stops."""
    return False


def check(stopped: Stopped) -> None:
    """Raises StoppedError if the computation is to stop."""
    if stopped():
        raise StoppedError
