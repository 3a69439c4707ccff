"""Battles on one map in one process of the game, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marless.core.errors import SpecError
from marless.learning.envs.base import BoolArray
from marless_smac.kinds import LOOPS, Kind
from marless_smac.maps import SIZE, SmacMap
from marless_smac.starcraft.connection import ENDED, LAUNCHED, GameError
from marless_smac.starcraft.installation import Installation
from marless_smac.starcraft.orders import by_id, command, enemy_kinds
from marless_smac.starcraft.packages import common_pb2, debug_pb2, raw_pb2, sc2api_pb2
from marless_smac.starcraft.process import GameProcess, Limits
from marless_smac.units import IntArray, Units, UnitTeam

_RACES = {"T": common_pb2.Terran, "P": common_pb2.Protoss, "Z": common_pb2.Zerg}
_CREATION_LOOPS = 400
"""Game loops within which all units of a new battle must have been created; a few are usual."""


class StarcraftGame:
    """One process of the game, in which SMAC's map is loaded. All its methods raise GameError if the game fails."""

    def __init__(self, installation: Installation, smac_map: SmacMap, map_data: bytes, limits: Limits) -> None:
        self._map, self._installation, self._map_data = smac_map, installation, map_data
        self._process = GameProcess(installation, limits)
        self._tags: tuple[list[int], list[int]] = ([], [])
        self._kinds: tuple[Sequence[Kind], Sequence[Kind]] = (smac_map.ally_kinds, smac_map.enemy_kinds)
        self._seen: dict[int, Any] = {}
        try:
            version = self._ask("ping", sc2api_pb2.RequestPing())
        except GameError:
            self._process.close()
            raise
        self.version = f"{version.game_version} (build {version.base_build})"

    def begin(self, seed: int) -> None:
        """Begin the first battle of a new game; what the game draws at random comes from `seed`."""
        if self._process.connection.status != LAUNCHED:
            self._ask("leave_game", sc2api_pb2.RequestLeaveGame())
        opponent = sc2api_pb2.PlayerSetup(
            type=sc2api_pb2.Computer, race=_RACES[self._map.enemy_race], difficulty=sc2api_pb2.VeryHard
        )
        path = str(self._installation.map_file(self._map.name))
        created = sc2api_pb2.RequestCreateGame(
            local_map=sc2api_pb2.LocalMap(map_path=path, map_data=self._map_data),
            player_setup=[sc2api_pb2.PlayerSetup(type=sc2api_pb2.Participant), opponent],
            realtime=False,
            random_seed=seed,
        )
        self._ask("create_game", created)
        joined = sc2api_pb2.RequestJoinGame(
            race=_RACES[self._map.ally_race], options=sc2api_pb2.InterfaceOptions(raw=True, score=False)
        )
        self._ask("join_game", joined)
        self._await_units(frozenset())

    def again(self) -> None:
        """Begin the next battle: kill every unit, whereupon the map creates them anew."""
        old = frozenset(self._seen)
        kill = debug_pb2.DebugCommand(kill_unit=debug_pb2.DebugKillUnit(tag=sorted(old)))
        self._ask("debug", sc2api_pb2.RequestDebug(debug=[kill]))
        self._step(2)
        self._await_units(old)

    def advance(self, action_N: IntArray) -> None:
        """Give every ally its order, and let an env step's game loops pass."""
        allies, enemies = self._tags
        orders = [
            command(int(action), self._seen[tag], heals=kind == Kind.MEDIVAC, allies=allies, enemies=enemies)
            for action, tag, kind in zip(action_N, allies, self._kinds[0], strict=True)
            if tag in self._seen
        ]
        if actions := [order for order in orders if order is not None]:
            self._ask("action", sc2api_pb2.RequestAction(actions=actions))
        self._step(LOOPS)
        self._observe()
        if self._process.connection.status == ENDED:
            raise GameError("StarCraft II ended the game in the middle of a battle")

    def write(self, units: Units, copy: int) -> None:
        """Write the units as observed last into the arrays of this environment copy."""
        for team, tags, kinds in zip((units.allies, units.enemies), self._tags, self._kinds, strict=True):
            team.kind[:, copy] = kinds
            for number, tag in enumerate(tags):
                _write_unit(team, number, copy, self._seen.get(tag))

    def walkable(self) -> BoolArray:
        """bool [32, 32] by x and y, the pathing grid of the game; raises SpecError for a map of another size."""
        return pathing(self._ask("game_info", sc2api_pb2.RequestGameInfo()).start_raw)

    def replay(self) -> bytes:
        """The replay of the game so far, as the game's own files have it."""
        data: bytes = self._ask("save_replay", sc2api_pb2.RequestSaveReplay()).data
        return data

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def _await_units(self, old: frozenset[int]) -> None:
        """Let loops pass until all units have been created that are not `old` ones."""
        self._observe()
        for _ in range(_CREATION_LOOPS):
            if found := by_id((each for tag, each in self._seen.items() if tag not in old), self._map):
                break
            self._step(1)
            self._observe()
        else:
            raise GameError(f"StarCraft II has not created the units of map {self._map.name}")
        allies, enemies = found
        self._tags = [each.tag for each in allies], [each.tag for each in enemies]
        self._kinds = self._map.ally_kinds, enemy_kinds(enemies, self._map)

    def _observe(self) -> None:
        raw = self._ask("observation", sc2api_pb2.RequestObservation()).observation.raw_data
        self._seen = {each.tag: each for each in raw.units}

    def _step(self, loops: int) -> None:
        self._ask("step", sc2api_pb2.RequestStep(count=loops))

    def _ask(self, kind: str, request: Any) -> Any:  # Any: messages of the game's protocol
        return self._process.connection.ask(kind, request)


def _write_unit(team: UnitTeam, number: int, copy: int, unit: Any | None) -> None:  # Any: as above
    """A unit that is not observed is dead; its other numbers stay."""
    if unit is None:
        team.health[number, copy] = 0
        return
    team.x[number, copy], team.y[number, copy] = unit.pos.x, unit.pos.y
    team.health[number, copy], team.health_max[number, copy] = unit.health, unit.health_max
    team.shield[number, copy], team.energy[number, copy] = unit.shield, unit.energy
    team.cooldown[number, copy] = max(unit.weapon_cooldown, 0.0)


def pathing(start: raw_pb2.StartRaw) -> BoolArray:
    """bool [32, 32] by x and y, from either encoding of the game: a bit a cell, set where units can stand; or a byte a
    cell, from the last row to the first, set where they cannot. Raises SpecError for a map of another size.
    """
    grid = start.pathing_grid
    width, height = grid.size.x, grid.size.y
    data = np.frombuffer(grid.data, np.uint8)
    cells = np.unpackbits(data) if grid.bits_per_pixel == 1 else data
    if (width, height) != (SIZE, SIZE) or cells.size != SIZE * SIZE:
        raise SpecError(f"the map has {width} × {height} cells; SMAC's maps have {SIZE} × {SIZE}")
    rows = cells.reshape(height, width).astype(np.bool_)
    walkable: BoolArray = (rows if grid.bits_per_pixel == 1 else ~rows[::-1]).T.copy()
    return walkable
