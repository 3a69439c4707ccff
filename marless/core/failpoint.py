"""Failpoints: named places around each durable write where a test can kill this process.

`MARLESS_FAILPOINT=<name>` kills the process (signal 9) when it first reaches that place, `<name>:3` the third time.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from functools import cache

from marless.core.errors import SpecError, unknown_name

_PLACES = (
    "coordinator.spec",
    "coordinator.status",
    "coordinator.take_over",
    "coordinator.epoch",
    "coordinator.pending",
    "coordinator.carry",
    "coordinator.record",
    "coordinator.checkpoint",
    "coordinator.cut",
    "coordinator.machines",
    "coordinator.restore",
    "coordinator.drop",
    "actor.carry",
    "learner.publish",
    "param_store.publish",
    "param_store.aggregate",
)
NAMES = tuple(f"{place}.{moment}" for place in _PLACES for moment in ("before", "after"))
"""Every failpoint; the first word says in which process."""


class _Trap:
    """Counts how often one failpoint is reached, and kills the process at the configured count."""

    def __init__(self, setting: str) -> None:
        self._name, _, count = setting.partition(":")
        if self._name not in NAMES:
            raise SpecError(f"MARLESS_FAILPOINT: {unknown_name('failpoint', self._name, NAMES)}")
        self._spring_at = int(count or 1)
        self._passes: Counter[str] = Counter()

    def pass_by(self, name: str) -> None:
        if name != self._name:
            return
        self._passes[name] += 1
        if self._passes[name] == self._spring_at:
            os.kill(os.getpid(), signal.SIGKILL)


@cache
def _trap() -> _Trap | None:
    setting = os.environ.get("MARLESS_FAILPOINT", "")
    return _Trap(setting) if setting else None


def failpoint(name: str) -> None:
    """Kill this process here if $MARLESS_FAILPOINT says so; otherwise nearly free.

    Raises SpecError if the variable names an unknown failpoint.
    """
    assert name in NAMES, name
    if trap := _trap():
        trap.pass_by(name)
