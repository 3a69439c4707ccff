"""Positions of rounds in a ring of frames: pure arithmetic, so that the same rounds always get the same positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marless.learning.data.frames import Rows

NOTHING = np.zeros(0, np.int64)


@dataclass(eq=False)
class RingRound:
    """One round in the ring: contiguous, or split between two segments at the ring's end."""

    number: int
    start: int
    """Position of its first frame."""
    split: int
    """Number of frames in its first piece; the second one begins at position 0."""
    frames: int
    transitions: int
    episodes: int
    checksum: int = 0
    """CRC-32 of its bytes, array by array."""
    rows: Rows | None = None
    """int64 [transitions]: positions of the frames that can be drawn. None: not yet verified against the file."""
    firsts: Rows = field(default_factory=lambda: NOTHING)
    """int64 [episodes]: positions of the episodes' first frames."""
    lengths: Rows = field(default_factory=lambda: NOTHING)
    """int64 [episodes]: their env steps."""
    priorities: NDArray[np.float32] | None = None
    """Restored priorities, applied once the round has been verified."""

    @property
    def pieces(self) -> tuple[slice, ...]:
        """The one or two ranges of positions, in order."""
        first = slice(self.start, self.start + self.split)
        return (first,) if self.split == self.frames else (first, slice(0, self.frames - self.split))

    def at(self, index: Rows) -> Rows:
        """Positions in the ring of the round's frames `index`, which count from 0."""
        return np.where(index < self.split, index + self.start, index - self.split)

    def units(self, unit: Literal["transitions", "episodes"]) -> int:
        """Number of its samples."""
        return self.transitions if unit == "transitions" else self.episodes

    def samples(self, unit: Literal["transitions", "episodes"]) -> Rows:
        """The frames of its samples, or their first ones; it must have been verified."""
        assert self.rows is not None
        return self.rows if unit == "transitions" else self.firsts

    def entry(self) -> tuple[int, ...]:
        """The numbers to publish, in the order of the constructor's arguments."""
        return self.number, self.start, self.split, self.frames, self.transitions, self.episodes, self.checksum

    def fits(self, capacity: int) -> bool:
        """True if it lies within a ring of this capacity."""
        return 0 <= self.split <= self.frames and all(0 <= each.start <= each.stop <= capacity for each in self.pieces)

    def overlaps(self, places: Sequence[slice]) -> bool:
        """True if any of its frames lies in one of these ranges."""
        return any(mine.start < its.stop and its.start < mine.stop for mine in self.pieces for its in places)


class Ring:
    """A ring of rounds, ordered by age, which is also their order along the ring."""

    def __init__(self, capacity: int, head: int = 0, rounds: Sequence[RingRound] = ()) -> None:
        self.capacity = capacity
        self.head = head
        """Position of the next round."""
        self.rounds = list(rounds)

    def add(self, number: int, ends: Rows, episodes: int) -> tuple[RingRound, list[RingRound]]:
        """Place a new round and return it, and the rounds that it replaces.

        `ends` holds the end of each segment (the frame after its last), ascending, counted from the round's first
        frame. The round must fit: `ends[-1] <= capacity`.
        """
        frames = int(ends[-1]) if len(ends) else 0
        tail = self.capacity - self.head
        start, split = self.head, frames
        if frames > tail:
            # Split between segments only, because the successor of frame r must be frame r + 1.
            split = int(ends[ends <= tail].max(initial=0))
            if split == 0 or frames - split > self.head:
                start, split = 0, frames
        new = RingRound(number, start, split, frames, frames - episodes, episodes)
        # Rounds in the part that is skipped go, too, so that their order along the ring stays that of their age.
        skipped = (slice(self.head, self.capacity),) if frames > tail else ()
        dropped = []
        while self.rounds and self.rounds[0].overlaps((*new.pieces, *skipped)):
            dropped.append(self.rounds.pop(0))
        self.rounds.append(new)
        self.head = new.pieces[-1].stop
        return new, dropped
