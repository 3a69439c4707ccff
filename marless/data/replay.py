"""Replay buffer of off-policy algorithms: a ring of frames of past rounds, sampled uniformly or by priority.

Frames are in a file that outlives the worker and its pool (`marless.data.frame_file`). The positions of the rounds,
counters and priorities are small arrays that the learner publishes with its versions. File and published arrays
together are the exact state: the position of a round follows from the arrays alone, so that an interrupted update is
repeated bit for bit. Every round has a checksum, so that rounds missing from the file are detected and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marless.data.frame_file import FrameFile
from marless.data.frames import Placing, ReplaySchema, Rows, place, write
from marless.data.ring import NOTHING, Ring, Round
from marless.data.sum_tree import SumTree
from marless.data.trajectory import Trajectory
from marless.errors import CorruptError, SpecError

__all__ = ["Draw", "EpisodeDraw", "Replay", "ReplayCounts", "ReplaySchema"]

FIRST_PRIORITY = 1.0
"""Priority of new samples before any has been updated."""
PRIORITIES = 1e-6, 1e6
"""Least and greatest priority: samples without error stay drawable (ε of Schaul et al. 2016, §3.3), none dominates."""
Arrays = Mapping[str, NDArray[np.generic]]
FloatArray = NDArray[np.float32]
Unit = Literal["transitions", "episodes"]


@dataclass(frozen=True)
class ReplayCounts:
    """Counts of env steps since the job began: inserted = dropped + lost + `Replay.size`."""

    inserted: int = 0
    dropped: int = 0
    """Removed to make room for newer ones, or did not fit."""
    lost: int = 0
    """Missing from the file when a learner continued with it."""
    drawn: int = 0
    """Draws so far, of env steps or episodes, repeated ones included."""


@dataclass(frozen=True)
class Draw:
    """Sampled env steps, with replacement."""

    row: Rows
    """int64 [M]: their frames; the successor of frame r is frame r + 1."""
    weight: FloatArray
    """float32 [M]: importance-sampling weights, at most 1; all 1 for uniform draws."""


@dataclass(frozen=True)
class EpisodeDraw:
    """Sampled episodes, or their first parts if a rollout cut them."""

    first: Rows
    """int64 [E]: their first frames."""
    length: Rows
    """int64 [E]: env steps; one more frame follows."""
    weight: FloatArray
    """float32 [E], as in `Draw`."""


class Replay:
    """Stores at most `capacity` frames of the newest rounds; drops whole rounds, the oldest first.

    With `alpha` None, all draws are uniform. Otherwise draws of `unit` are proportional to priority ** `alpha`, and
    draws of the other unit are uniform. Raises UnavailableError if there is no space for the file.
    """

    def __init__(
        self,
        schema: ReplaySchema,
        capacity: int,
        path: Path | None = None,
        *,
        alpha: float | None = None,
        unit: Unit = "transitions",
    ) -> None:
        self._schema = schema
        self._file = FrameFile(schema, capacity, path)
        self._alpha = alpha
        self._unit: Unit = unit
        self._ring = Ring(capacity)
        self._counts = ReplayCounts()
        self._highest = FIRST_PRIORITY
        self._tree = SumTree(capacity if alpha is not None else 1)
        self._length = np.zeros(capacity, np.int64)
        """Length of each episode, at the index of its first frame."""
        self._index: dict[str, Rows] | None = None
        """Unit → rows that can be drawn; None if it must be recomputed."""

    @property
    def size(self) -> int:
        """Number of env steps that can be drawn."""
        return sum(each.transitions for each in self._ring.rounds)

    @property
    def episodes(self) -> int:
        """Number of episodes that can be drawn."""
        return sum(each.episodes for each in self._ring.rounds)

    @property
    def counts(self) -> ReplayCounts:
        """Counts of inserted, dropped, lost and drawn samples."""
        return self._counts

    def report(self) -> dict[str, float]:
        """Metrics for an update: the size of the replay, and all counts since the job began."""
        return {"size": float(self.size), **{name: float(count) for name, count in asdict(self._counts).items()}}

    def insert(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Insert a round, unless it is already stored.

        Of a round larger than the whole replay, the first segments are stored and the others count as dropped.
        Raises SpecError if not even one segment fits, StaleError if another learner has continued with the file.
        """
        self._file.own()
        if self._ring.rounds and number <= max(each.number for each in self._ring.rounds):
            self._settle()
            if any(each.number == number for each in self._ring.rounds):
                return
        placings = self._placings(trajectories)
        new, dropped = self._ring.add(number, *_ends(placings))
        for each in dropped:
            self._drop(each)
        self._write(new, trajectories, placings)
        steps = sum(trajectory.env_steps for trajectory in trajectories)
        self._count(inserted=steps, dropped=steps - new.transitions)
        self._look_at(new)
        self._settle()

    def draw(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> Draw:
        """Draw env steps; `beta` is the exponent of the importance-sampling weights (Schaul et al. 2016, §3.4).

        Prioritised draws are stratified: one from each of `count` ranges of equal mass. Raises SpecError if the replay
        is empty.
        """
        row, weight = self._drawn("transitions", rng, count, beta)
        return Draw(row, weight)

    def draw_episodes(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> EpisodeDraw:
        """Draw episodes, as `draw` does env steps; uniform draws do not repeat episodes while there are enough."""
        first, weight = self._drawn("episodes", rng, count, beta)
        return EpisodeDraw(first, self._length[first], weight)

    def reprioritise(self, row: Rows, priority: NDArray[np.floating]) -> None:
        """Update the priorities, such as |TD error|, of samples, given by row (of episodes: by first frame).

        Priorities are given without the exponent `alpha`. If a row occurs twice, its last priority counts; rows that
        have been dropped are ignored.
        """
        if self._alpha is None:
            return
        known = self._tree[row] > 0
        bounded = np.fmin(np.fmax(priority, PRIORITIES[0]), PRIORITIES[1]).astype(np.float64)
        leaf = (bounded**self._alpha).astype(np.float32)
        self._tree.set(row[known], leaf[known])
        self._highest = max(self._highest, float(leaf[known].max(initial=0.0)))

    def take(self, name: str, row: Rows) -> NDArray[np.generic]:
        """Gather a field of frames, e.g. "obs/0": [..., N, O] for rows [...]; see `marless.data.frames` for all names.

        "alive/k" and "mask/k" are all true if the environment has no deaths or masks. Raises KeyError for other names
        that are not stored.
        """
        array = self._file.arrays.get(name)
        if array is not None:
            return array.take(row, axis=0)
        kind, _, k = name.partition("/")
        if kind not in ("alive", "mask"):
            raise KeyError(f"a replay of {sorted(self._file.arrays)} has no {name}")
        agents = self._schema.spaces.classes[int(k)]
        shape = (len(agents.agents), agents.action.n) if kind == "mask" else (len(agents.agents),)
        return np.broadcast_to(np.True_, (*row.shape, *shape))

    def arrays(self) -> Arrays:
        """The arrays to publish beside the file, at the end of an update; also releases the file's write lock."""
        self._file.release()
        table = [each.entry() for each in self._ring.rounds]
        arrays: dict[str, NDArray[np.generic]] = {
            "ring": np.array([self._schema.fingerprint(self._ring.capacity), self._ring.head], np.int64),
            "rounds": np.array(table, np.int64).reshape(-1, 7),
            "counts": np.array(list(asdict(self._counts).values()), np.int64),
        }
        if self._alpha is not None:
            known = [self._priorities(each) for each in self._ring.rounds]
            arrays["priorities"] = np.concatenate([np.zeros(0, np.float32), *known])
            arrays["highest"] = np.array([self._highest], np.float32)
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Continue from published arrays. Rounds are compared with the file only when they are first needed, and count
        as lost if it does not hold them: an interrupted update may have overwritten rounds that the next insert drops
        anyway.

        Raises CorruptError for arrays that a replay of this kind cannot have published.
        """
        try:
            fingerprint, head = (int(value) for value in arrays["ring"])
            inserted, dropped, lost, drawn = (int(value) for value in arrays["counts"])
            rounds = [Round(*entry) for entry in arrays["rounds"].tolist()]
            alike = fingerprint == self._schema.fingerprint(self._ring.capacity)
            if alike and not all(each.fits(self._ring.capacity) for each in rounds):
                raise ValueError("rounds that lie beyond its end")
            if self._alpha is not None:
                self._highest = float(arrays["highest"][0])
                units = np.cumsum([self._units(each) for each in rounds], dtype=np.int64)
                if len(arrays["priorities"]) != units[-1:].sum():
                    raise ValueError(f"{len(arrays['priorities'])} priorities do not fit the rounds")
                for each, part in zip(rounds, np.split(arrays["priorities"], units), strict=False):
                    each.priorities = part.astype(np.float32)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CorruptError(f"no state of a replay: {error}") from None
        self._file.look()
        self._counts, self._index = ReplayCounts(inserted, dropped, lost, drawn), None
        self._ring = Ring(self._ring.capacity, head, rounds)
        if self._alpha is not None:
            self._tree = SumTree(self._ring.capacity)
        if not alike:  # the capacity or the spaces have changed
            self._ring = Ring(self._ring.capacity)
            self._count(lost=sum(each.transitions for each in rounds))

    def _placings(self, trajectories: Sequence[Trajectory]) -> list[Placing]:
        room, placings = self._ring.capacity, []
        for trajectory in trajectories:
            placings.append(place(trajectory, room))
            room = room - placings[-1].frames if placings[-1].kept is None else 0
        if trajectories and not sum(placing.frames for placing in placings):
            raise SpecError(
                f"algorithm.replay.capacity {self._ring.capacity} does not hold one episode of a rollout and its last "
                "view; raise it"
            )
        return placings

    def _write(self, new: Round, trajectories: Sequence[Trajectory], placings: Sequence[Placing]) -> None:
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

    def _checksum(self, each: Round) -> int:
        found = 0
        for array in self._file.arrays.values():
            for piece in each.pieces:
                found = zlib.crc32(array[piece].data, found)
        return found

    def _drop(self, each: Round) -> None:
        if each.rows is not None and self._alpha is not None:
            self._tree.set(self._samples(each), 0.0)
        self._count(dropped=each.transitions)
        self._index = None

    def _settle(self) -> None:
        """Verify the rounds that have not been verified yet; those that the file does not hold are lost."""
        new = [each for each in self._ring.rounds if each.rows is None]
        lost = [each for each in new if self._checksum(each) != each.checksum]
        for each in new:
            if each not in lost:
                self._look_at(each)
        if lost:
            self._ring.rounds = [each for each in self._ring.rounds if each not in lost]
            self._count(lost=sum(each.transitions for each in lost))
            self._index = None

    def _look_at(self, each: Round) -> None:
        last, first = (
            np.concatenate([self._file.arrays[name][piece] for piece in each.pieces]) for name in ("last", "first")
        )
        each.rows = each.at(np.flatnonzero(np.logical_not(last)))
        each.firsts = each.at(np.flatnonzero(first))
        self._length[each.firsts] = np.flatnonzero(last) - np.flatnonzero(first)
        if self._alpha is not None:
            self._tree.set(self._samples(each), self._highest if each.priorities is None else each.priorities)
        self._index = None

    def _drawn(self, unit: Unit, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        self._settle()
        if self._index is None:
            rows = [each.rows for each in self._ring.rounds if each.rows is not None]
            firsts = [each.firsts for each in self._ring.rounds]
            self._index = {
                "transitions": np.concatenate([NOTHING, *rows]),
                "episodes": np.concatenate([NOTHING, *firsts]),
            }
        among = self._index[unit]
        if not len(among):
            raise SpecError("nothing can be drawn from an empty replay")
        self._count(drawn=count)
        if self._alpha is not None and unit == self._unit:
            return self._by_priority(len(among), rng, count, beta)
        if unit == "episodes" and count <= len(among):
            index = rng.choice(len(among), count, replace=False)
        else:
            index = rng.integers(len(among), size=count)
        return among.take(index), np.ones(count, np.float32)

    def _by_priority(self, among: int, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        """P(i) = p_i^α / Σ p^α; w_i = (N · P(i))^−β / max w over this draw (Schaul et al. 2016, §3.3 and §3.4)."""
        total = self._tree.total
        row = self._tree.find((np.arange(count) + rng.random(count)) / count * total)
        weight = (among * self._tree[row] / total) ** -beta
        return row, (weight / weight.max()).astype(np.float32)

    def _samples(self, each: Round) -> Rows:
        rows = each.rows if self._unit == "transitions" else each.firsts
        assert rows is not None  # it has been verified
        return rows

    def _units(self, each: Round) -> int:
        return each.transitions if self._unit == "transitions" else each.episodes

    def _priorities(self, each: Round) -> FloatArray:
        if each.rows is None and each.priorities is not None:
            return each.priorities
        return self._tree[self._samples(each)].astype(np.float32)

    def _count(self, *, inserted: int = 0, dropped: int = 0, lost: int = 0, drawn: int = 0) -> None:
        now = self._counts
        self._counts = ReplayCounts(now.inserted + inserted, now.dropped + dropped, now.lost + lost, now.drawn + drawn)


def byte_ranges(schema: ReplaySchema, capacity: int, arrays: Arrays, number: int | None = None) -> list[slice]:
    """The bytes of a replay's file that hold the rounds of its published arrays, or only round `number`.

    Raises CorruptError for arrays that no replay of this schema and capacity has published.
    """
    try:
        rounds = [Round(*entry) for entry in arrays["rounds"].tolist()]
        if int(arrays["ring"][0]) != schema.fingerprint(capacity):
            return []  # the spaces or the capacity have changed: all is lost, see `Replay.restore`
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptError(f"no state of a replay: {error}") from None
    wanted = [each for each in rounds if number in (None, each.number)]
    if not all(each.fits(capacity) for each in wanted):
        raise CorruptError("no state of a replay: rounds that lie beyond its end")
    return schema.byte_ranges((piece for each in wanted for piece in each.pieces), capacity)


def _ends(placings: Sequence[Placing]) -> tuple[Rows, int]:
    """The ends of a round's segments (the frame after each), counted from its first frame; and their number."""
    starts = np.cumsum([0, *(placing.frames for placing in placings)])
    ends = [NOTHING, *(start + placing.last + 1 for start, placing in zip(starts, placings, strict=False))]
    found = np.concatenate(ends)
    return found, len(found)
