"""Cooperative cancellation: a long computation asks at safe points whether another thread wants it to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Stopped: TypeAlias = Callable[[], bool]
"""Returns True once the computation should stop. Takes no lock, so that it may be called in every step."""


class StoppedError(Exception):
    """A computation was stopped early. Its result is incomplete and must not be used."""


def never() -> bool:
    """A `Stopped` that is always False, for computations that cannot be stopped."""
    return False


def check(stopped: Stopped) -> None:
    """Raises StoppedError if the computation should stop."""
    if stopped():
        raise StoppedError
