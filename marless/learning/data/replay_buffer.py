"""Replay buffer of off-policy algorithms: a ring of frames of past rounds, sampled uniformly or by priority.

Frames are in a file that outlives the worker and its pool (`marless.learning.data.frame_file`). The positions of the
rounds, counters and priorities are small arrays that the learner publishes with its versions. File and published arrays
together are the exact state: the position of a round follows from the arrays alone, so that an interrupted update is
repeated bit for bit. Every round has a checksum, so that rounds missing from the file are detected and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError
from marless.learning.data.frame_file import FrameFile
from marless.learning.data.frames import ReplaySchema, Rows
from marless.learning.data.priorities import Priorities, Unit
from marless.learning.data.ring import NOTHING, Ring, RingRound, StoredRounds
from marless.learning.data.trajectory import Trajectory

__all__ = ["Draw", "EpisodeDraw", "ReplayBuffer", "ReplayCounts", "ReplaySchema"]

Arrays = Mapping[str, NDArray[np.generic]]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class ReplayCounts:
    """Counts of env steps since the job began: inserted = dropped + lost + `ReplayBuffer.size`."""

    inserted: int = 0
    dropped: int = 0
    """Removed to make room for newer ones, or did not fit."""
    lost: int = 0
    """Missing from the file when a learner continued with it."""
    drawn: int = 0
    """Draws so far, of env steps or episodes, repeated ones included."""

    def plus(self, *, inserted: int = 0, dropped: int = 0, lost: int = 0, drawn: int = 0) -> ReplayCounts:
        """Counts that are higher by the given numbers."""
        return ReplayCounts(self.inserted + inserted, self.dropped + dropped, self.lost + lost, self.drawn + drawn)


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


class ReplayBuffer:
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
        self._stored = StoredRounds(schema, self._file, capacity)
        self._priorities = None if alpha is None else Priorities(capacity, alpha, unit)
        self.counts = ReplayCounts()
        """Counts of inserted, dropped, lost and drawn samples."""
        self._length = np.zeros(capacity, np.int64)
        """Length of each episode, at the index of its first frame."""
        self._index: dict[Unit, Rows] | None = None
        """Unit → rows that can be drawn; None if it must be recomputed."""

    @property
    def size(self) -> int:
        """Number of env steps that can be drawn."""
        return sum(each.transitions for each in self._stored.ring.rounds)

    @property
    def episodes(self) -> int:
        """Number of episodes that can be drawn."""
        return sum(each.episodes for each in self._stored.ring.rounds)

    def report(self) -> dict[str, float]:
        """Metrics for an update: the size of the replay, and all counts since the job began."""
        return {"size": float(self.size), **{name: float(count) for name, count in asdict(self.counts).items()}}

    def insert(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Insert a round, unless it is already stored.

        Of a round larger than the whole replay, the first segments are stored and the others count as dropped.
        Raises SpecError if not even one segment fits, StaleError if another learner has continued with the file.
        """
        self._file.own()
        # Only such a round may be stored already. To verify reads all rounds from the
        # file, so others are verified later.
        if self._stored.ring.rounds and number <= max(each.number for each in self._stored.ring.rounds):
            self._verify()
            if any(each.number == number for each in self._stored.ring.rounds):
                return
        new, dropped = self._stored.add(number, trajectories)
        for each in dropped:
            if self._priorities is not None:
                self._priorities.discard(each)
        steps = sum(trajectory.env_steps for trajectory in trajectories)
        gone = sum(each.transitions for each in dropped)
        self.counts = self.counts.plus(inserted=steps, dropped=gone + steps - new.transitions)
        self._admit(new)
        # After the round has been added: what an interrupted update has overwritten is dropped by then, and not lost.
        self._verify()

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
        have been dropped are ignored, and so are priorities NaN.
        """
        if self._priorities is not None:
            self._priorities.update(row, priority)

    def take(self, name: str, row: Rows) -> NDArray[np.generic]:
        """Gather a field of frames, e.g. "obs/0": [..., N, O] for rows [...]; see `marless.learning.data.frames` for
        all names.

        "alive/k" and "mask/k" are all true if the environment has no deaths or masks, "waits/k" all false if it has no
        turns. Raises KeyError for other names that are not stored.
        """
        array = self._file.arrays.get(name)
        if array is not None:
            return array.take(row, axis=0)
        kind, _, k = name.partition("/")
        if kind not in ("alive", "mask", "waits"):
            raise KeyError(f"a replay of {sorted(self._file.arrays)} has no {name}")
        agents = self._schema.spaces.classes[int(k)]
        shape = (len(agents.agents), agents.action.n) if kind == "mask" else (len(agents.agents),)
        return np.broadcast_to(np.bool_(kind != "waits"), (*row.shape, *shape))

    def take_each(self, name: str, row: Rows) -> NDArray[np.generic]:
        """Gather a field of frames that differ between the agents, rows [..., N]: e.g. "obs/0" as [..., N, O].

        For fields that are stored.
        """
        return self._file.arrays[name][row, np.arange(row.shape[-1])]

    def arrays(self) -> Arrays:
        """The arrays to publish beside the file, at the end of an update; also releases the file's write lock."""
        self._file.release()
        table = [each.entry() for each in self._stored.ring.rounds]
        arrays: dict[str, NDArray[np.generic]] = {
            "ring": np.array([self._schema.fingerprint(self._stored.ring.capacity), self._stored.ring.head], np.int64),
            # Reshaped, because of no rounds the array would have one axis only.
            "rounds": np.array(table, np.int64).reshape(-1, 7),
            "counts": np.array(list(asdict(self.counts).values()), np.int64),
        }
        if self._priorities is not None:
            arrays |= self._priorities.arrays(self._stored.ring.rounds)
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
            rounds = [RingRound(*entry) for entry in arrays["rounds"].tolist()]
            alike = fingerprint == self._schema.fingerprint(self._stored.ring.capacity)
            if alike and not all(each.fits(self._stored.ring.capacity) for each in rounds):
                raise ValueError("rounds that lie beyond its end")
            if self._priorities is not None:
                self._priorities.restore(arrays, rounds, self._stored.ring.capacity)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise CorruptError(f"no state of a replay: {error}") from None
        self._file.look()
        self.counts, self._index = ReplayCounts(inserted, dropped, lost, drawn), None
        self._stored.ring = Ring(self._stored.ring.capacity, head, rounds)
        if not alike:  # the capacity or the spaces have changed
            self._stored.ring = Ring(self._stored.ring.capacity)
            self.counts = self.counts.plus(lost=sum(each.transitions for each in rounds))

    def _verify(self) -> None:
        """Verify the rounds that have not been verified yet; those that the file does not hold are lost."""
        held, lost = self._stored.verify()
        for each in held:
            self._admit(each)
        if lost:
            self.counts, self._index = self.counts.plus(lost=sum(each.transitions for each in lost)), None

    def _admit(self, each: RingRound) -> None:
        """Let the samples of a verified round be drawn."""
        self._length[each.firsts] = each.lengths
        if self._priorities is not None:
            self._priorities.add(each)
        self._index = None

    def _drawn(self, unit: Unit, rng: np.random.Generator, count: int, beta: float) -> tuple[Rows, FloatArray]:
        self._verify()
        if self._index is None:
            rounds = self._stored.ring.rounds
            self._index = {
                "transitions": np.concatenate([NOTHING, *(each.samples("transitions") for each in rounds)]),
                "episodes": np.concatenate([NOTHING, *(each.samples("episodes") for each in rounds)]),
            }
        among = self._index[unit]
        if not len(among):
            raise SpecError("nothing can be drawn from an empty replay")
        self.counts = self.counts.plus(drawn=count)
        if self._priorities is not None and unit == self._priorities.unit:
            return self._priorities.draw(len(among), rng, count, beta)
        if unit == "episodes" and count <= len(among):
            index = rng.choice(len(among), count, replace=False)
        else:
            index = rng.integers(len(among), size=count)
        return among.take(index), np.ones(count, np.float32)


def byte_ranges(schema: ReplaySchema, capacity: int, arrays: Arrays, number: int | None = None) -> list[slice]:
    """The bytes of a replay's file that hold the rounds of its published arrays, or only round `number`.

    Raises CorruptError for arrays that no replay of this schema and capacity has published.
    """
    try:
        rounds = [RingRound(*entry) for entry in arrays["rounds"].tolist()]
        if int(arrays["ring"][0]) != schema.fingerprint(capacity):
            return []  # the spaces or the capacity have changed: all is lost, see `ReplayBuffer.restore`
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptError(f"no state of a replay: {error}") from None
    wanted = [each for each in rounds if number in (None, each.number)]
    if not all(each.fits(capacity) for each in wanted):
        raise CorruptError("no state of a replay: rounds that lie beyond its end")
    return schema.byte_ranges((piece for each in wanted for piece in each.pieces), capacity)
