"""What agents observe of landmarks and other agents: all of them in order, or the nearest ones only."""

from __future__ import annotations

import numpy as np

from marless.learning.envs.mpe.engine import FloatArray64, Rows, length, planes
from marless.learning.envs.mpe.options import SightOptions


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
