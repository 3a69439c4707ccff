"""SMAC's battles in the real game: one process of StarCraft II for each environment copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.maps import SmacMap
from marless_smac.starcraft.connection import GameError
from marless_smac.starcraft.game import StarcraftGame
from marless_smac.starcraft.installation import Installation
from marless_smac.starcraft.process import Limits
from marless_smac.units import IntArray, Units, UnitTeam

T = TypeVar("T")
_MOST_FAULTS = 3
"""Faults of one copy in a row, without a whole battle between them, after which the environment fails."""


class GameBattles:
    """A backend of `marless_smac`; see `marless_smac.units.Battles`. All games work at the
    same time.
    """

    def __init__(self, smac_map: SmacMap, batch: int, installation: Installation, limits: Limits | None = None) -> None:
        """Raises SpecError for a missing map; processes start with the first reset."""
        self.batch = batch
        self.units = Units(_nobody(len(smac_map.ally_kinds), batch), _nobody(len(smac_map.enemy_kinds), batch))
        self.walkable = smac_map.walkable()
        self._map, self._installation, self._limits = smac_map, installation, limits or Limits()
        self._map_data = installation.map_data(smac_map.name)
        self._games: list[StarcraftGame | None] = [None] * batch
        self._seeds = np.random.SeedSequence(0).spawn(batch)
        self._faults = np.zeros(batch, np.int64)
        self._threads = ThreadPoolExecutor(batch, "starcraft")

    @property
    def version(self) -> str:
        """The game's own name of its version; "" before the first reset."""
        return next((game.version for game in self._games if game is not None), "")

    def reset(self, seed: int) -> None:
        """See `Battles`; raises GameError if a game does not start."""
        self._seeds = np.random.SeedSequence(seed).spawn(self.batch)
        self._for_each(range(self.batch), self._begin)
        if (first := self._games[0]) is not None:
            self.walkable = first.walkable()

    def start(self, fresh_B: BoolArray) -> None:
        """See `Battles`. Copies whose game has failed get a new process; raises GameError if that fails too."""
        self._for_each(np.flatnonzero(fresh_B).tolist(), self._renew)

    def advance(self, action_NB: IntArray) -> BoolArray:
        """See `Battles`; raises GameError if one copy fails time and again."""
        broken_B = np.zeros(self.batch, np.bool_)
        faults = self._for_each(range(self.batch), lambda copy: self._advance(copy, action_NB[:, copy]))
        for copy, fault in enumerate(faults):
            if fault is not None:
                self._failed(copy, fault)
                broken_B[copy] = True
        return broken_B

    def save_replay(self, path: Path) -> None:
        """Write the replay of copy 0's game so far to a file that the game can open."""
        game = self._games[0]
        if game is None:
            raise GameError("no game is running; reset the environment first")
        path.write_bytes(game.replay())

    def close(self) -> None:
        if any(self._games):
            self._for_each(range(self.batch), self._end)
        self._threads.shutdown()

    def _for_each(self, copies: Sequence[int], work: Callable[[int], T]) -> list[T]:
        return list(self._threads.map(work, copies))

    def _begin(self, copy: int) -> None:
        """Begin a game with the copy's seed, in its process if that can, else in a new one."""
        seed = int(self._seeds[copy].generate_state(1)[0])
        if (game := self._games[copy]) is not None:
            try:
                game.begin(seed)
            except GameError as error:
                self._failed(copy, error)
                game = None
        if game is None:
            game = self._games[copy] = StarcraftGame(self._installation, self._map, self._map_data, self._limits)
            game.begin(seed)
        game.write(self.units, copy)

    def _renew(self, copy: int) -> None:
        """Begin the next battle of this copy, in a new process if its last one has failed or fails now."""
        game = self._games[copy]
        if game is not None:
            try:
                game.again()
                game.write(self.units, copy)
                self._faults[copy] = 0
            except GameError as error:
                self._failed(copy, error)
            else:
                return
        # With the old seed, the new process would play the copy's first battle again.
        self._seeds[copy] = self._seeds[copy].spawn(1)[0]
        self._begin(copy)

    def _advance(self, copy: int, action_N: IntArray) -> GameError | None:
        game = self._games[copy]
        try:
            if game is None:
                raise GameError("the game of this copy has ended")
            game.advance(action_N)
        except GameError as error:
            return error
        game.write(self.units, copy)
        return None

    def _failed(self, copy: int, error: GameError) -> None:
        """End the copy's process; raises GameError if it was not the first to fail."""
        self._end(copy)
        self._faults[copy] += 1
        if self._faults[copy] >= _MOST_FAULTS:
            raise GameError(f"copy {copy}: {self._faults[copy]} processes have failed in a row; the last one: {error}")

    def _end(self, copy: int) -> None:
        game, self._games[copy] = self._games[copy], None
        if game is not None:
            game.close()


def _nobody(units: int, batch: int) -> UnitTeam:
    """Arrays of a team before its first battle: all dead."""

    def numbers(value: float = 0.0) -> FloatArray:
        return np.full((units, batch), value, np.float32)

    return UnitTeam(
        kind=np.zeros((units, batch), np.int8),
        x=numbers(),
        y=numbers(),
        health=numbers(),
        shield=numbers(),
        cooldown=numbers(),
        energy=numbers(),
        health_max=numbers(1.0),
    )
