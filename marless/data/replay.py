"""What off-policy algorithms remember of past rounds: a ring of frames, drawn from uniformly or by priority.

Frames lie in a file that outlives the worker and its pool (`marless.data.frame_file`); which rounds lie where, counters
and priorities are small arrays that the learner publishes with its versions. File and published arrays together are the
exact state: a round is written to a place that follows from the arrays alone, so an update that was cut short anywhere
is redone to the same bits. Every round is known by a checksum, so what a file does not hold is noticed, and counted.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from marless.data.frame_file import FrameFile
from marless.data.frames import Placing, ReplaySchema, Rows, place, write
from marless.data.sum_tree import SumTree
from marless.data.trajectory import Trajectory
from marless.errors import CorruptError, SpecError

__all__ = ["Draw", "EpisodeDraw", "Replay", "ReplayCounts", "ReplaySchema"]

FIRST_PRIORITY = 1.0
"""Of samples, before anything is known of any."""
LEAST_PRIORITY = 1e-6
"""ε of Schaul et al. 2016, §3.3: a sample without error may be drawn again, too."""
Arrays = Mapping[str, NDArray[np.generic]]
FloatArray = NDArray[np.float32]
Unit = Literal["transitions", "episodes"]


@dataclass(frozen=True)
class ReplayCounts:
    """Env steps, since the beginning: inserted = dropped + lost + `Replay.size`."""

    inserted: int = 0
    dropped: int = 0
    """Made room for newer ones."""
    lost: int = 0
    """Were not in the file that a learner went on with."""
    drawn: int = 0
    """Samples drawn: env steps or episodes, as often as they were drawn."""


@dataclass(frozen=True)
class Draw:
    """Env steps, drawn independently: one may come twice."""

    row: Rows
    """int64 [M]: their frames; the successor of frame r is frame r + 1."""
    weight: FloatArray
    """float32 [M]: importance, at most 1; all 1 where draws are uniform."""


@dataclass(frozen=True)
class EpisodeDraw:
    """Episodes, or their first parts where a rollout cut them."""

    first: Rows
    """int64 [E]: their first frames."""
    length: Rows
    """int64 [E]: env steps; one more frame follows."""
    weight: FloatArray
    """float32 [E], as in `Draw`."""


@dataclass(eq=False)
class _Round:
    """The frames of one round; those of a restored replay have not been looked at yet."""

    number: int
    start: int
    frames: int
    transitions: int
    episodes: int
    checksum: int
    rows: Rows | None = None
    """int64 [transitions]: those that can be drawn."""
    firsts: Rows = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [episodes]."""
    priorities: FloatArray | None = None
    """As restored, until the round has been looked at."""

    @classmethod
    def of(cls, row: Sequence[int]) -> _Round:
        """As `row` writes it."""
        number, start, frames, transitions, episodes, checksum = row
        return cls(number, start, frames, transitions, episodes, checksum)

    def row(self) -> tuple[int, ...]:
        """What is published."""
        return self.number, self.start, self.frames, self.transitions, self.episodes, self.checksum

    @property
    def end(self) -> int:
        return self.start + self.frames


class Replay:
    """At most `capacity` frames of the newest rounds, dropped by whole rounds, the oldest first.

    `alpha`: None draws uniformly; else draws of `unit` are in proportion to priorities to this power. What is not of
    this unit is drawn uniformly. Raises UnavailableError if there is no room for the file.
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
        self._capacity = capacity
        self._file = FrameFile(schema, capacity, path)
        self._alpha = alpha
        self._unit: Unit = unit
        self._rounds: list[_Round] = []
        """Those that can be drawn from, the oldest first; along the ring they lie in this order, too."""
        self._head = 0
        """Where the next round goes, if it fits before the end."""
        self._counts = ReplayCounts()
        self._highest = FIRST_PRIORITY
        self._tree = SumTree(capacity if alpha is not None else 1)
        self._length = np.zeros(capacity, np.int64)
        """By first frame."""
        self._index: dict[str, Rows] | None = None
        """By unit, what can be drawn; None when that has changed."""

    @property
    def size(self) -> int:
        """Env steps that can be drawn."""
        return sum(each.transitions for each in self._rounds)

    @property
    def episodes(self) -> int:
        """Episodes that can be drawn."""
        return sum(each.episodes for each in self._rounds)

    @property
    def counts(self) -> ReplayCounts:
        """What became of all env steps so far."""
        return self._counts

    def report(self) -> dict[str, float]:
        """The metrics of an update: how full the replay is, and all counts since the beginning."""
        return {"size": float(self.size), **{name: float(count) for name, count in asdict(self._counts).items()}}

    def insert(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Remember a round; a round that is known already is left as it is.

        Of a round larger than the whole replay the first segments are kept, the others count as dropped at once.
        Raises SpecError if not even one segment fits, StaleError if another learner went on with the file.
        """
        self._file.own()
        if self._rounds and number <= max(each.number for each in self._rounds):
            self._settle()
            if any(each.number == number for each in self._rounds):
                return
        room, placings = self._capacity, []
        for trajectory in trajectories:
            placings.append(place(trajectory, room))
            room -= placings[-1].frames
        steps = sum(trajectory.env_steps for trajectory in trajectories)
        if room == self._capacity and steps:
            raise SpecError(
                f"algorithm.replay.capacity {self._capacity} does not hold one episode with its last view; raise it"
            )
        start = self._make_room(self._capacity - room)
        self._rounds.append(self._written(number, start, trajectories, placings))
        self._head = self._rounds[-1].end
        kept = self._rounds[-1].transitions
        self._count(inserted=steps, dropped=steps - kept)
        self._settle()

    def draw(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> Draw:
        """Draw env steps; `beta`: how far weights make up for what priorities prefer (Schaul et al. 2016, §3.4).

        Of prioritised draws, one is from each of `count` parts of equal mass. Raises SpecError if there are none.
        """
        row, weight = self._drawn("transitions", rng, count, beta)
        return Draw(row, weight)

    def draw_episodes(self, rng: np.random.Generator, count: int, beta: float = 0.0) -> EpisodeDraw:
        """Draw episodes, as `draw` does env steps; uniform draws name each once as long as there are enough."""
        first, weight = self._drawn("episodes", rng, count, beta)
        return EpisodeDraw(first, self._length[first], weight)

    def reprioritise(self, row: Rows, priority: NDArray[np.floating]) -> None:
        """New priorities of samples (for episodes: of their first frames), such as |TD error|, before `alpha`.

        Of a sample that is named twice the last one counts; samples that were dropped meanwhile are left out.
        """
        if self._alpha is None:
            return
        known = self._tree[row] > 0
        leaf = (np.maximum(priority, LEAST_PRIORITY).astype(np.float64) ** self._alpha).astype(np.float32)
        self._tree.set(row[known], leaf[known])
        self._highest = max(self._highest, float(leaf[known].max(initial=0.0)))

    def take(self, name: str, row: Rows) -> NDArray[np.generic]:
        """What frames hold, e.g. "obs/0": [..., N, O] for rows [...]; see `marless.data.frames` for all names.

        Everybody is alive, and everything legal, where the environment knows nothing else.
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
        """What to publish beside the file. Also lets others write into it: an update ends here."""
        self._file.release()
        table = [each.row() for each in self._rounds]
        arrays: dict[str, NDArray[np.generic]] = {
            "ring": np.array([self._schema.fingerprint(self._capacity), self._head], np.int64),
            "rounds": np.array(table, np.int64).reshape(-1, 6),
            "counts": np.array(list(asdict(self._counts).values()), np.int64),
        }
        if self._alpha is not None:
            known = [self._priorities(each) for each in self._rounds]
            arrays["priorities"] = np.concatenate([np.zeros(0, np.float32), *known])
            arrays["highest"] = np.array([self._highest], np.float32)
        return arrays

    def restore(self, arrays: Arrays) -> None:
        """Go on from what was published. Rounds that the file turns out not to hold count as lost when they are first
        needed: those that the next insert drops anyway may have been overwritten by an update that was cut short.

        Raises CorruptError for arrays that no replay of this kind has published.
        """
        try:
            fingerprint, head = (int(value) for value in arrays["ring"])
            self._counts = ReplayCounts(*(int(value) for value in arrays["counts"]))
            self._rounds = [_Round.of(row) for row in arrays["rounds"].tolist()]
            if self._alpha is not None:
                self._tree = SumTree(self._capacity)
                self._highest = float(arrays["highest"][0])
                units = [self._units(each) for each in self._rounds]
                if len(arrays["priorities"]) != sum(units):
                    raise ValueError(f"{len(arrays['priorities'])} priorities of {sum(units)} samples")
                for each, part in zip(self._rounds, np.split(arrays["priorities"], np.cumsum(units)), strict=False):
                    each.priorities = part.astype(np.float32)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CorruptError(f"no state of a replay: {error}") from None
        self._file.look()
        self._head, self._index = head, None
        if fingerprint != self._schema.fingerprint(self._capacity):  # of another size, or other spaces
            self._head = 0
            self._lose(self._rounds)

    def _written(
        self, number: int, start: int, trajectories: Sequence[Trajectory], placings: Sequence[Placing]
    ) -> _Round:
        row = start
        for trajectory, placing in zip(trajectories, placings, strict=True):
            write(self._file.arrays, row, trajectory, placing)
            row += placing.frames
        transitions = sum(placing.transitions for placing in placings)
        episodes = sum(len(placing.last) for placing in placings)
        return _Round(number, start, row - start, transitions, episodes, self._checksum(start, row))

    def _checksum(self, start: int, end: int) -> int:
        found = 0
        for array in self._file.arrays.values():
            found = zlib.crc32(array[start:end].data, found)
        return found

    def _make_room(self, frames: int) -> int:
        """Where so many frames may go, in one piece; drops what is there."""
        start = self._head
        if start + frames > self._capacity:
            start = 0
            while self._rounds and self._rounds[0].start >= self._head:
                self._drop_oldest()
        while self._rounds and start <= self._rounds[0].start < start + frames:
            self._drop_oldest()
        return start

    def _drop_oldest(self) -> None:
        oldest = self._rounds.pop(0)
        if oldest.rows is not None and self._alpha is not None:
            self._tree.set(self._samples(oldest), 0.0)
        self._count(dropped=oldest.transitions)
        self._index = None

    def _settle(self) -> None:
        """Look at the rounds that were not looked at yet: those that the file does not hold are lost."""
        new = [each for each in self._rounds if each.rows is None]
        lost = [each for each in new if self._checksum(each.start, each.end) != each.checksum]
        for each in new:
            if each not in lost:
                self._look_at(each)
        self._lose(lost)

    def _look_at(self, each: _Round) -> None:
        last = self._file.arrays["last"][each.start : each.end]
        first = self._file.arrays["first"][each.start : each.end]
        each.rows = each.start + np.flatnonzero(np.logical_not(last))
        each.firsts = each.start + np.flatnonzero(first)
        self._length[each.firsts] = each.start + np.flatnonzero(last) - each.firsts
        if self._alpha is not None:
            self._tree.set(self._samples(each), self._highest if each.priorities is None else each.priorities)
        self._index = None

    def _lose(self, rounds: Sequence[_Round]) -> None:
        if rounds:
            self._rounds = [each for each in self._rounds if each not in rounds]
            self._count(lost=sum(each.transitions for each in rounds))
            self._index = None

    def _drawn(self, unit: Unit, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        self._settle()
        if self._index is None:
            none = np.zeros(0, np.int64)
            rows = [each.rows for each in self._rounds if each.rows is not None]
            firsts = [each.firsts for each in self._rounds]
            self._index = {"transitions": np.concatenate([none, *rows]), "episodes": np.concatenate([none, *firsts])}
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
        return among[index], np.ones(count, np.float32)

    def _by_priority(self, among: int, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        """P(i) = p_i^α / Σ p^α; w_i = (N · P(i))^−β, over the greatest drawn (Schaul et al. 2016, §3.3 and §3.4)."""
        total = self._tree.total
        row = self._tree.find((np.arange(count) + rng.random(count)) / count * total)
        weight = (among * self._tree[row] / total) ** -beta
        return row, (weight / weight.max()).astype(np.float32)

    def _samples(self, each: _Round) -> Rows:
        rows = each.rows if self._unit == "transitions" else each.firsts
        assert rows is not None  # it has been looked at
        return rows

    def _units(self, each: _Round) -> int:
        return each.transitions if self._unit == "transitions" else each.episodes

    def _priorities(self, each: _Round) -> FloatArray:
        if each.rows is None and each.priorities is not None:
            return each.priorities
        return self._tree[self._samples(each)].astype(np.float32)

    def _count(self, *, inserted: int = 0, dropped: int = 0, lost: int = 0, drawn: int = 0) -> None:
        now = self._counts
        self._counts = ReplayCounts(now.inserted + inserted, now.dropped + dropped, now.lost + lost, now.drawn + drawn)
