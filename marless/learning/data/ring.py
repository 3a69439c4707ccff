"""The rounds of a replay: their positions in a ring of frames, and the file that holds these.

Positions are pure arithmetic, so that the same rounds always get the same ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import SpecError
from marless.learning.data.frame_file import FrameFile
from marless.learning.data.frames import Placing, ReplaySchema, Rows, place, write
from marless.learning.data.trajectory import Trajectory

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

    def add(self, number: int, ends: Rows, episodes: int, before: int = 0) -> tuple[RingRound, list[RingRound]]:
        """Place a new round, with `before` frames before its segments, and return it, and the rounds that it replaces.

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
        new = RingRound(number, start, split, frames, frames - episodes - before, episodes)
        # Rounds in the part that is skipped go, too, so that their order along the ring stays that of their age.
        skipped = (slice(self.head, self.capacity),) if frames > tail else ()
        dropped = []
        while self.rounds and self.rounds[0].overlaps((*new.pieces, *skipped)):
            dropped.append(self.rounds.pop(0))
        self.rounds.append(new)
        self.head = new.pieces[-1].stop
        return new, dropped


class StoredRounds:
    """The newest rounds of a replay, in a ring within its file; drops whole rounds, the oldest first."""

    def __init__(self, schema: ReplaySchema, file: FrameFile, capacity: int) -> None:
        self.ring = Ring(capacity)
        self._schema, self._file = schema, file

    def add(self, number: int, trajectories: Sequence[Trajectory]) -> tuple[RingRound, list[RingRound]]:
        """Write a round; returns it, and the rounds that it replaces. See `ReplayBuffer.insert`."""
        placings = self._placings(trajectories)
        starts = np.cumsum([0, *(placing.frames for placing in placings)])
        # The frame after each segment, counted from the round's first frame.
        ends = [NOTHING, *(start + each.last + 1 for start, each in zip(starts, placings, strict=False))]
        before = sum(each.before.size for each in placings)
        new, dropped = self.ring.add(number, np.concatenate(ends), sum(len(each) for each in ends), before)
        self._write(new, trajectories, placings)
        self._find(new)
        return new, dropped

    def verify(self) -> tuple[list[RingRound], list[RingRound]]:
        """Compare the rounds that have not been verified yet with the file, once each.

        Returns those that it holds, and those that it does not, which are removed.
        """
        unknown = [each for each in self.ring.rounds if each.rows is None]
        lost = [each for each in unknown if self._checksum(each) != each.checksum]
        held = [each for each in unknown if each not in lost]
        for each in held:
            self._find(each)
        self.ring.rounds = [each for each in self.ring.rounds if each not in lost]
        return held, lost

    def _placings(self, trajectories: Sequence[Trajectory]) -> list[Placing]:
        room, placings = self.ring.capacity, []
        for trajectory in trajectories:
            placings.append(place(trajectory, room, self._schema.before))
            # Once a segment does not fit, nothing of later trajectories is stored either: what is kept is a beginning.
            room = room - placings[-1].frames if placings[-1].kept is None else 0
        if trajectories and not sum(placing.frames for placing in placings):
            raise SpecError(
                f"algorithm.replay.capacity {self.ring.capacity} does not hold one episode of a rollout and its last "
                "view; raise it"
            )
        return placings

    def _write(self, new: RingRound, trajectories: Sequence[Trajectory], placings: Sequence[Placing]) -> None:
        arrays, row = self._file.arrays, new.start
        if new.split < new.frames:  # write to a contiguous buffer, then copy it in two pieces
            arrays, row = self._schema.empty(new.frames), 0
        for trajectory, placing in zip(trajectories, placings, strict=True):
            write(arrays, row, trajectory, placing)
            row += placing.frames
        if new.split < new.frames:
            head, tail = new.pieces
            for name, array in arrays.items():
                self._file.arrays[name][head] = array[: new.split]
                self._file.arrays[name][tail] = array[new.split :]
        new.checksum = self._checksum(new)

    def _checksum(self, each: RingRound) -> int:
        found = 0
        for array in self._file.arrays.values():
            for piece in each.pieces:
                found = zlib.crc32(array[piece].data, found)
        return found

    def _find(self, each: RingRound) -> None:
        """Find the samples of a round that the file holds."""
        names = ("last", "first", "before") if self._schema.before else ("last", "first")
        last, first, *before = (
            np.concatenate([self._file.arrays[name][piece] for piece in each.pieces]) for name in names
        )
        each.rows = each.at(np.flatnonzero(np.logical_not(np.logical_or.reduce([last, *before]))))
        each.firsts = each.at(np.flatnonzero(first))
        each.lengths = np.flatnonzero(last) - np.flatnonzero(first)
