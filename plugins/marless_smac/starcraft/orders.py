"""Translates between SMAC's actions and units and the game's commands and units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from marless.core.errors import SpecError
from marless_smac.kinds import FACTS, Kind
from marless_smac.maps import FIXED_ACTIONS, SmacMap
from marless_smac.starcraft.packages import common_pb2, raw_pb2, sc2api_pb2

MOVE, ATTACK, STOP, HEAL = 16, 23, 4, 386
"""The game's numbers of abilities: move to a point, attack a unit, stop, heal a unit."""
ALLIED, HOSTILE = 1, 2
"""The game's numbers of the two owners."""
_STOP = 1
_STEPS = {2: (0.0, 2.0), 3: (0.0, -2.0), 4: (2.0, 0.0), 5: (-2.0, 0.0)}
_KINDS = {facts.type_id: kind for kind, facts in FACTS.items()}

Unit = Any
"""A unit of the game's protocol."""


def command(action: int, unit: Unit, *, heals: bool, allies: Sequence[int], enemies: Sequence[int]) -> Any | None:
    """The game's command for a unit's action, which is legal; None for the no-op. The others are tags, by id."""
    order = raw_pb2.ActionRawUnitCommand(unit_tags=[unit.tag], queue_command=False)
    if action == _STOP:
        order.ability_id = STOP
    elif action in _STEPS:
        dx, dy = _STEPS[action]
        order.ability_id = MOVE
        order.target_world_space_pos.CopyFrom(common_pb2.Point2D(x=unit.pos.x + dx, y=unit.pos.y + dy))
    elif action >= FIXED_ACTIONS:
        order.ability_id = HEAL if heals else ATTACK
        order.target_unit_tag = (allies if heals else enemies)[action - FIXED_ACTIONS]
    else:
        return None
    return sc2api_pb2.Action(action_raw=raw_pb2.ActionRaw(unit_command=order))


def by_id(units: Iterable[Unit], smac_map: SmacMap) -> tuple[list[Unit], list[Unit]] | None:
    """Allies and enemies in the order of their ids; None while some have not been created yet.

    Allies are sorted by type and place, enemies as they are observed. Raises SpecError if there are more units, or
    others, than on SMAC's map.
    """
    found = list(units)
    allies = sorted((each for each in found if each.owner == ALLIED), key=_order)
    enemies = [each for each in found if each.owner == HOSTILE]
    expected = len(smac_map.ally_kinds), len(smac_map.enemy_kinds)
    if len(allies) > expected[0] or len(enemies) > expected[1]:
        raise _foreign(
            smac_map, f"{len(allies)} allies and {len(enemies)} enemies, not {expected[0]} and {expected[1]}"
        )
    if (len(allies), len(enemies)) != expected:
        return None
    if _runs([each.unit_type for each in allies]) != _runs(smac_map.ally_kinds):
        raise _foreign(smac_map, "other allies")
    if sorted(enemy_kinds(enemies, smac_map)) != sorted(smac_map.enemy_kinds):
        raise _foreign(smac_map, "other enemies")
    return allies, enemies


def enemy_kinds(enemies: Iterable[Unit], smac_map: SmacMap) -> list[Kind]:
    """The kind of each enemy; raises SpecError for a unit that is on none of SMAC's maps."""
    try:
        return [_KINDS[each.unit_type] for each in enemies]
    except KeyError as error:
        raise _foreign(smac_map, f"an enemy of type {error.args[0]}") from None


def _order(unit: Unit) -> tuple[int, float, float]:
    return unit.unit_type, unit.pos.x, unit.pos.y


def _runs(kinds: Sequence[int]) -> list[int]:
    """Lengths of runs of equal numbers."""
    starts = [i for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    return [end - start for start, end in zip(starts, [*starts[1:], len(kinds)], strict=True)]


def _foreign(smac_map: SmacMap, found: str) -> SpecError:
    return SpecError(f"the file {smac_map.name}.SC2Map is not SMAC's map: it has {found}; unpack SMAC_Maps.zip again")
