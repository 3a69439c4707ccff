"""Rounds of frames in a file: where each is, its checksum, and which of them the file still holds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from marless.core.errors import SpecError
from marless.learning.data.frame_file import FrameFile
from marless.learning.data.frames import Placing, ReplaySchema, Rows, place, write
from marless.learning.data.ring import NOTHING, Ring, RingRound
from marless.learning.data.trajectory import Trajectory


class StoredRounds:
    """The newest rounds of a replay, in a ring within its file; drops whole rounds, the oldest first."""

    def __init__(self, schema: ReplaySchema, file: FrameFile, capacity: int) -> None:
        self.ring = Ring(capacity)
        self._schema, self._file = schema, file

    def add(self, number: int, trajectories: Sequence[Trajectory]) -> tuple[RingRound, list[RingRound]]:
        """Write a round; returns it, and the rounds that it replaces. See `ReplayBuffer.insert`."""
        placings = self._placings(trajectories)
        new, dropped = self.ring.add(number, *_ends(placings))
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
            placings.append(place(trajectory, room))
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
        last, first = (
            np.concatenate([self._file.arrays[name][piece] for piece in each.pieces]) for name in ("last", "first")
        )
        each.rows = each.at(np.flatnonzero(np.logical_not(last)))
        each.firsts = each.at(np.flatnonzero(first))
        each.lengths = np.flatnonzero(last) - np.flatnonzero(first)


def _ends(placings: Sequence[Placing]) -> tuple[Rows, int]:
    """The ends of a round's segments (the frame after each), counted from its first frame; and their number."""
    starts = np.cumsum([0, *(placing.frames for placing in placings)])
    ends = [NOTHING, *(start + placing.last + 1 for start, placing in zip(starts, placings, strict=False))]
    found = np.concatenate(ends)
    return found, len(found)
