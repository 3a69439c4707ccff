"""What several games share: their options, checks that raise SpecError with one sentence, and what agents observe."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from marless.core.errors import SpecError, shown
from marless.core.limits import MAX_AGENTS
from marless.learning.envs.base import Entities
from marless.learning.envs.mpe.engine import FloatArray64, Rows, length, planes

MAX_CYCLES = 1_000_000
MAY_BE_0 = ("num_obstacles", "num_forests")
"""Counts of what a game can do without."""


@dataclass(frozen=True, kw_only=True)
class ParticleOptions:
    """Options of every game. By its type, an option is a count, true or false, or a ratio from 0 to 1.

    Raises SpecError, with one sentence, for anything else.
    """

    max_cycles: int = 25
    """Env steps after which an episode is truncated."""
    continuous_actions: bool = False
    """False: 5 moves (none, left, right, down, up), and words to say. True: a strength in [0, 1] for each of them."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "bool" and not isinstance(value, bool):
                raise SpecError(f"{each.name} must be true or false, got {shown(value)}")
            if each.type == "float" and not (
                isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
            ):
                raise SpecError(f"{each.name} must be a number from 0 to 1, got {shown(value)}")
            if each.type == "int" or (each.type == "int | None" and value is not None):
                most = MAX_CYCLES if each.name == "max_cycles" else MAX_AGENTS
                check_count(each.name, value, least=0 if each.name in MAY_BE_0 else 1, most=most)


@dataclass(frozen=True, kw_only=True)
class SightOptions(ParticleOptions):
    """Options of the games in which agents may observe their nearest neighbours only."""

    num_agent_neighbors: int | None = None
    """Number of other agents that an agent observes, nearest first; zeros if there are fewer. None: all, in order."""
    num_landmark_neighbors: int | None = None
    """The same of landmarks."""

    def places(self, landmarks: int, others: int) -> tuple[int, int]:
        """How many landmarks and other agents have a place in an observation, in a game that has this many."""
        agents, marks = self.num_agent_neighbors, self.num_landmark_neighbors
        return landmarks if marks is None else marks, others if agents is None else agents

    def entities(self, start: int, landmarks: int, others: int) -> tuple[Entities, ...]:
        """Where `Sight` writes landmarks and other agents from this feature on."""
        marks, agents = self.places(landmarks, others)
        return tuple(each for each in (Entities(start, marks, 2), Entities(start + 2 * marks, agents, 2)) if each.count)


@dataclass(frozen=True, kw_only=True)
class TeamOptions(SightOptions):
    """Options of the games for any number of (good) agents, mpe2's `N`."""

    agents: int
    """Number of (good) agents."""
    landmarks: int | None = None
    """Number of landmarks; None: as many as agents, which is the only choice in mpe2."""

    @property
    def marks(self) -> int:
        """The number of landmarks."""
        return self.agents if self.landmarks is None else self.landmarks


def check_count(name: str, value: object, *, least: int = 1, most: int = MAX_AGENTS) -> None:
    """Raise SpecError unless the option is a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {shown(value)}")
    if value > most:
        raise SpecError(f"{name} may be {most:,} at most, got {shown(value)}")


class Sight:
    """Writes the positions of landmarks and other agents, relative to the agents of one role, into observations."""

    def __init__(
        self, rows_NOB: Rows, start: int, agents: slice, counts: tuple[int, int], options: SightOptions
    ) -> None:
        """`start` is the first feature, `agents` the role's agents, `counts` those of landmarks and other agents."""
        marks, others = options.places(*counts)
        self._agents, self._marks, self._options = agents, counts[0], options
        self._rows = planes(rows_NOB, start, marks + others)
        self._mark_rows, self._other_rows = self._rows[:, :marks], self._rows[:, marks:]

    def write(self, rel_NM2B: FloatArray64) -> None:
        """Write what the agents see, given the relative positions of landmarks and then other agents."""
        rel_NM2B = rel_NM2B[self._agents]
        marks, others = self._options.num_landmark_neighbors, self._options.num_agent_neighbors
        if marks is None and others is None:
            self._rows[...] = rel_NM2B
            return
        marks_NL2B, others_NO2B = rel_NM2B[:, : self._marks], rel_NM2B[:, self._marks :]
        self._mark_rows[...] = nearest(marks_NL2B, marks_NL2B, marks)
        self._other_rows[...] = nearest(others_NO2B, others_NO2B, others)


def nearest(rel_NX2B: FloatArray64, vectors_NX2B: FloatArray64, places: int | None) -> FloatArray64:
    """The vectors of the nearest entities, nearest first, with zeros in place of missing ones; all if `places` is None.

    `rel_NX2B` are the positions of the X entities relative to each agent.
    """
    if places is None:
        return vectors_NX2B
    order_NX1B = np.argsort(length(rel_NX2B), axis=1, kind="stable")[:, :places, None]
    agents, _, _, batch = rel_NX2B.shape
    chosen = np.zeros((agents, places, 2, batch))
    chosen[:, : order_NX1B.shape[1]] = np.take_along_axis(vectors_NX2B, order_NX1B, axis=1)
    return chosen
