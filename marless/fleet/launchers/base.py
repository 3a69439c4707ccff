"""`Launcher`: the protocol of what starts and ends the workers of a pool, on this machine or elsewhere.

Launchers are chosen by name (`marless/fleet/launchers/registry.py`); docs/extending/launcher.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from marless.core.machine import Machine
from marless.core.orphans import Orphan

Options = Mapping[str, str]
"""What an operator gives after the launcher's name: `--launcher name,key=value,…`."""


@dataclass(frozen=True)
class WorkerProgram:
    """What a pool's launcher starts: one worker is `python -m module *arguments --launched --worker NAME`."""

    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """All environment variables of a worker, without secrets."""
    token: Callable[[], str] = field(repr=False)
    """The current token of the workers' role, which changes while workers run; a secret, as tickets are."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those of its environment variables that a worker needs on any machine: threads, use of memory."""
    ahead: Sequence[str] = ()
    """Modules that some workers import. A launcher that forks them may import these before, while nothing waits."""
    most: int = 0
    """The largest number of workers; 0: not known."""


@dataclass(frozen=True)
class LaunchOrder:
    """A worker to launch."""

    worker: str
    """The name under which it connects."""
    ticket: str = field(repr=False)
    """What it must show the pool. Secret: never on a command line or in an environment; see marless.fleet.handover."""
    arguments: tuple[str, ...] = ()
    """Command-line arguments of this worker in addition to those of the program."""


class LaunchOutcome(Enum):
    """What became of an order."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """There is no room for the worker now; the pool orders it again later."""
    FAILED = "failed"
    """It does not run, and another order would fail too."""
    UNKNOWN = "unknown"
    """It may run, now or later. The pool waits for it as for an accepted one, so that no worker runs twice."""


@dataclass(frozen=True)
class Launch:
    """The answer to an order."""

    outcome: LaunchOutcome
    reason: str = ""
    """For people: why it was not accepted, and what to do."""


ACCEPTED = Launch(LaunchOutcome.ACCEPTED)


@dataclass(frozen=True)
class Condition:
    """Whether a launcher can start workers, for `marless doctor`."""

    found: str
    """What was found, in a few words."""
    advice: str = ""
    """What to do before it can start workers; "" if it can."""


class Launcher(Protocol):
    """Starts workers, which connect to their pool themselves. Only `launch` and `drain` may be called concurrently."""

    connect_s: float
    """Seconds that a worker may take from its order until it is connected; then it is given up and drained."""

    def capacity(self) -> int | None:
        """The number of workers that there is room for besides the running ones, as last known; None: not known."""
        ...

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Start workers; returns the answer to each order, in the same order. Ordered names are not running."""
        ...

    async def observe(self, worker: str) -> str:
        """Wait until an accepted or unknown worker has ended, or is certain never to start; returns how it ended."""
        ...

    async def drain(self, worker: str, grace_s: float) -> None:
        """Give a worker this time to end by itself, then kill it; returns when it is gone. Any name is allowed."""
        ...

    async def close(self) -> None:
        """End all workers, and everything else that the launcher has started; idempotent."""
        ...


@runtime_checkable
class Leaving(Protocol):
    """What a launcher may have in addition: it knows in advance when machines end."""

    async def leaving(self, worker: str) -> str:
        """Wait until a worker's machine is about to end; returns why. The pool has it finish its task, and exit."""
        ...


@runtime_checkable
class KeepsMachines(Protocol):
    """What a launcher may have in addition, if it starts and ends machines."""

    def machines(self) -> Collection[str]:
        """Ids of the machines that cost now, also of those without workers, as last known; returns at once."""
        ...


def kept_by(launcher: Launcher) -> Callable[[], Collection[str]]:
    """Tells which machines a launcher keeps without workers: none, unless it `KeepsMachines`."""
    return launcher.machines if isinstance(launcher, KeepsMachines) else tuple


@runtime_checkable
class PricesMachines(Protocol):
    """What a launcher may have in addition, if it knows what machines cost that do not know it themselves."""

    def usd_h(self, machine: Machine) -> float | None:
        """US dollars per hour of a machine, as last known; None if it is not known. Returns at once."""
        ...


def priced_by(launcher: Launcher) -> Callable[[Machine], float | None]:
    """Tells what a machine costs per hour that does not say it: not known, unless a launcher `PricesMachines`."""
    return launcher.usd_h if isinstance(launcher, PricesMachines) else lambda _: None


class Leftovers(Protocol):
    """What pools that have ended left running somewhere, for `marless fleet`. Methods block, within seconds."""

    what: str
    """What is left, in the plural: "containers"."""

    def of_dead_pools(self) -> Sequence[Orphan]:
        """All that belongs to no pool any more; raises UnavailableError."""
        ...

    def end(self, found: Sequence[Orphan]) -> None:
        """End some of those; raises UnavailableError."""
        ...


@runtime_checkable
class Checked(Protocol):
    """What a launcher may have in addition."""

    async def check(self) -> Condition:
        """Whether it can start workers, without starting one; within a few seconds."""
        ...
