"""What a host program asks of where it runs: which machine this is, and whether it is about to end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Identity:
    """Which machine this is."""

    name: str
    """Unique among all machines of a pool, and what its launcher knows it by."""
    machine: str = ""
    """For bills and people: id=…,provider=…,type=…,market=…,zone=…; "": not known."""


@dataclass(frozen=True)
class Notice:
    """The machine is about to end, or may be."""

    why: str
    seconds: float = 0.0
    """Until then; 0: not known."""


class Surroundings(Protocol):
    """What a cloud tells a machine of itself."""

    async def identify(self) -> Identity:
        """Which machine this is; waits until it is known."""
        ...

    def notices(self) -> AsyncIterator[Notice]:
        """Each notice, as it comes."""
        ...
