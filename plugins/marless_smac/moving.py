"""How units move in one game loop: towards targets and goals, apart from each other, and not through walls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.fighting import Aim
from marless_smac.ground import Ground
from marless_smac.rules import Rules
from marless_smac.state import BattleState
from marless_smac.tables import Tables

_TINY = np.float32(1e-6)


class Mover:
    """Moves all units of a map, in place."""

    def __init__(self, tables: Tables, ground: Ground, rules: Rules) -> None:
        self._tables, self._ground, self._rules = tables, ground, rules
        self._square_UU1 = tables.apart**2
        self._room = np.empty((2, *tables.apart.shape[:2], 0), np.float32)

    def move(self, state: BattleState, aimed: Aim, reached_UB: BoolArray) -> None:
        """One loop of movement; units with a target in reach stand."""
        old_x, old_y = state.x.copy(), state.y.copy()
        to_goal = ~aimed.aims
        dx = np.where(to_goal, state.goal_x - state.x, aimed.dx)
        dy = np.where(to_goal, state.goal_y - state.y, aimed.dy)
        dist = np.sqrt(dx * dx + dy * dy)
        travel = np.where(to_goal, dist, aimed.gap - self._tables.reach)
        goes = (aimed.aims | state.marching) & (travel > 0) & (state.health > 0)
        ways = self._ground.directed(state.x, state.y, dx, dy)
        if ways is not None:
            dx, dy = ways
            dist = np.sqrt(dx * dx + dy * dy)
        part = np.minimum(self._tables.step, travel) / np.maximum(dist, _TINY) * goes
        moves = dx * part, dy * part
        np.add(state.x, moves[0], out=state.x)
        np.add(state.y, moves[1], out=state.y)
        self._push(state.x, state.y, reached_UB if self._rules.planted else None, moves if self._rules.steer else None)
        self._ground.settle(state.x, state.y, old_x, old_y, state.health > 0)

    def _push(
        self,
        x: FloatArray,
        y: FloatArray,
        planted_UB: BoolArray | None = None,
        moves: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Move overlapping units apart, each by half of the overlap; of a planted and another one, only the other.

        What a blocker takes of the moves of a unit is added sideways, so that it goes round.
        """
        one, other, copy = self._overlapping(x, y)
        if not one.size:
            return
        off_x, off_y = x[one, copy] - x[other, copy], y[one, copy] - y[other, copy]
        # Units at the very same place have no direction to be pushed in: they stay, where 0/0 would make them NaN.
        dist = np.maximum(np.sqrt(off_x * off_x + off_y * off_y), _TINY)
        off_x, off_y = off_x / dist, off_y / dist
        share = np.full(dist.shape, 0.5, np.float32)
        if planted_UB is not None:
            stays = planted_UB.astype(np.float32)
            share += np.float32(0.5) * (stays[other, copy] - stays[one, copy])
        share *= self._tables.apart[one, other, 0] - dist
        push_x, push_y = share * off_x, share * off_y
        if moves is not None:
            aside = _aside(moves[0][one, copy], moves[1][one, copy], off_x, off_y)
            push_x, push_y = push_x - aside * off_y, push_y + aside * off_x
        # np.add.at adds pair by pair, in the same order in every battle, whatever the batch.
        np.add.at(x, (one, copy), push_x)
        np.add.at(y, (one, copy), push_y)

    def _overlapping(self, x: FloatArray, y: FloatArray) -> tuple[NDArray[np.intp], ...]:
        """All pairs (one, other, battle) of units that overlap, in both orders."""
        units, batch = x.shape
        if self._room.shape[-1] != batch:
            self._room = np.empty((2, units, units, batch), np.float32)  # kept, because new memory costs time
        square, more = self._room
        np.subtract(x[:, None], x, out=square)
        np.subtract(y[:, None], y, out=more)
        square *= square
        more *= more
        square += more
        pair, copy = np.divmod(np.flatnonzero(square < self._square_UU1), batch)
        one, other = np.divmod(pair, units)
        return one, other, copy

    def spread(self, state: BattleState) -> None:
        """Push new units apart once."""
        old_x, old_y = state.x.copy(), state.y.copy()
        self._push(state.x, state.y)
        self._ground.settle(state.x, state.y, old_x, old_y, state.health > 0)


def _aside(move_x: FloatArray, move_y: FloatArray, off_x: FloatArray, off_y: FloatArray) -> FloatArray:
    """How far to go round blockers: what they take of the moves, to the left (above 0) or right of the way from them.

    `off` are unit vectors from the blockers to the units that move.
    """
    blocked = np.maximum(-(move_x * off_x + move_y * off_y), 0)
    left: FloatArray = np.where(move_y * off_x >= move_x * off_y, blocked, -blocked)
    return left
