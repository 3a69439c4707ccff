"""Failpoints: named places around each durable write where a test can kill this process.

`MARLESS_FAILPOINT=<name>` kills the process (signal 9) when it first reaches that place, `<name>:3` the third time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import cache
from itertools import count

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


@cache
def _armed() -> tuple[str, int, Iterator[int]]:
    """The failpoint that kills this process, or "", at which of its passes, and the numbers of its passes."""
    name, _, passes = os.environ.get("MARLESS_FAILPOINT", "").partition(":")
    if name and name not in NAMES:
        raise SpecError(f"MARLESS_FAILPOINT: {unknown_name('failpoint', name, NAMES)}")
    return name, int(passes or 1), count(1)


def failpoint(name: str) -> None:
    """Kill this process here if $MARLESS_FAILPOINT says so; otherwise nearly free.

    Raises SpecError if the variable names an unknown failpoint.
    """
    assert name in NAMES, name
    _pass_by(name)


def _pass_by(name: str) -> None:
    # A function of its own, because simulations replace it: their processes are not the kernel's.
    armed, last, passes = _armed()
    if name == armed and next(passes) == last:
        os.kill(os.getpid(), signal.SIGKILL)
