"""What the engine needs to know about the units of one map, as arrays by unit.

Shape suffixes: N allies, E enemies, U all units (allies first), A attackers, T targets; 1 stands for the battles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from marless.learning.envs.base import BoolArray, FloatArray
from marless_smac.kinds import FACTS, LOOPS_PER_SECOND, Kind, UnitFacts
from marless_smac.maps import SmacMap
from marless_smac.rules import Rules

BEYOND = np.float32(1e6)
"""A distance that nothing reaches."""
ALLIED_MEDIVAC_SPEED = 2.75
ZERG_LIFE = 0.2734
"""Health per second that Zerg units regain."""
_MISSILES = (Kind.STALKER, Kind.MARAUDER, Kind.HYDRALISK)
_ZERG = (Kind.BANELING, Kind.ZERGLING, Kind.HYDRALISK, Kind.SPINE_CRAWLER)


@dataclass(frozen=True)
class Weapons:
    """What each unit of one team does to each of the other."""

    damage: FloatArray
    """[A, T, 1], of one hit, before armour; 0: cannot hit it."""
    hits: NDArray[np.int8]
    """[A, 1, 1]."""
    most_hits: int
    armour: FloatArray
    """[T, 1]."""
    radius: FloatArray
    """[A, 1]."""
    target_radius: FloatArray
    """[T, 1]."""
    contact: FloatArray
    """[A, T, 1], sum of both radii: weapons reach from edge to edge."""
    unfit: FloatArray
    """[A, T, 1], added to distances when targets are chosen: much for those that cannot be hit, something for the
    unarmed."""
    shields: bool
    """Some target has a shield."""
    colossi: NDArray[np.intp]
    banelings: NDArray[np.intp]
    healer: int | None
    """Index of the medivac; None if there is none."""


@dataclass(frozen=True)
class Tables:
    """All units of a map; [U, 1] unless stated."""

    kind: NDArray[np.int8]
    """[U]."""
    health: FloatArray
    shield: FloatArray
    reach: FloatArray
    period: FloatArray
    radius: FloatArray
    step: FloatArray
    """Cells per loop."""
    regrowth: FloatArray
    """Health per loop."""
    apart: FloatArray
    """[U, U, 1]: closer centres overlap; 0 for units that do not collide."""
    flies: BoolArray
    """[U]."""
    climbs: BoolArray
    """[U]: walks over cliffs."""
    armed: BoolArray
    """Has a weapon."""
    holds_fire: BoolArray
    """Does not attack a target that others have killed in this loop; those whose missiles fly do."""
    biological: BoolArray
    """[U]."""
    grave: FloatArray
    """x of a dead unit: far outside, and apart from all others, so that nothing reaches it."""


def tables(smac_map: SmacMap, rules: Rules) -> Tables:
    """The tables of a map."""
    kinds = (*smac_map.ally_kinds, *smac_map.enemy_kinds)
    facts = [FACTS[kind] for kind in kinds]
    speed = [each.speed for each in facts]
    for i, kind in enumerate(smac_map.ally_kinds):
        speed[i] = ALLIED_MEDIVAC_SPEED if kind == Kind.MEDIVAC else speed[i]
    return Tables(
        kind=np.array(kinds, np.int8),
        health=_column([each.health for each in facts]),
        shield=_column([each.shield for each in facts]),
        reach=_column([each.reach for each in facts]),
        period=_column([each.period for each in facts]),
        radius=_column([each.radius for each in facts]),
        step=_column(speed) / np.float32(LOOPS_PER_SECOND),
        regrowth=_column([ZERG_LIFE / LOOPS_PER_SECOND * (kind in _ZERG) for kind in kinds]),
        apart=_apart(kinds, rules),
        flies=np.array([each.flies for each in facts]),
        climbs=np.array([kind == Kind.COLOSSUS for kind in kinds]),
        armed=np.array([[each.damage > 0] for each in facts]),
        holds_fire=np.array([[kind not in _MISSILES and rules.holds_fire] for kind in kinds]),
        biological=np.array([each.biological for each in facts]),
        grave=_column([1000.0 + 50.0 * i for i in range(len(kinds))]),
    )


def weapons(attackers: tuple[Kind, ...], targets: tuple[Kind, ...]) -> Weapons:
    """What `attackers` do to `targets`."""
    ours, theirs = [FACTS[kind] for kind in attackers], [FACTS[kind] for kind in targets]
    damage_AT1 = np.array([[_damage(a, t) for t in theirs] for a in ours], np.float32)[:, :, None]
    # More than any distance on a map of 32 × 32 cells, so that armed targets come first, however far they are.
    unarmed_T1 = np.array([[50.0 * (kind == Kind.MEDIVAC)] for kind in targets], np.float32)
    radius_A1, radius_T1 = _column([each.radius for each in ours]), _column([each.radius for each in theirs])
    hits = [each.hits for each in ours]
    return Weapons(
        damage=damage_AT1,
        hits=np.array(hits, np.int8)[:, None, None],
        most_hits=max(hits),
        armour=_column([each.armour for each in theirs]),
        radius=radius_A1,
        target_radius=radius_T1,
        contact=radius_A1[:, None] + radius_T1,
        unfit=np.where(damage_AT1 > 0, unarmed_T1, BEYOND).astype(np.float32),
        shields=any(each.shield for each in theirs),
        colossi=np.flatnonzero([kind == Kind.COLOSSUS for kind in attackers]),
        banelings=np.flatnonzero([kind == Kind.BANELING for kind in attackers]),
        healer=attackers.index(Kind.MEDIVAC) if Kind.MEDIVAC in attackers else None,
    )


def _damage(attacker: UnitFacts, target: UnitFacts) -> float:
    """The damage of one hit, before armour. Colossi can be hit by weapons against ground and against air alike."""
    if target.flies and not attacker.hits_air:
        return 0.0
    bonus = attacker.bonus_light * target.light + attacker.bonus_armoured * target.armoured
    return attacker.damage + bonus if attacker.damage else 0.0


def _apart(kinds: tuple[Kind, ...], rules: Rules) -> FloatArray:
    """[U, U, 1]: colossi collide with colossi, structures and flyers; flyers with flyers and colossi; others alike."""
    flies = np.array([FACTS[kind].flies for kind in kinds])
    climbs = np.array([kind == Kind.COLOSSUS for kind in kinds])
    stands = np.array([kind == Kind.SPINE_CRAWLER for kind in kinds])
    inner = np.array([FACTS[kind].inner for kind in kinds], np.float32) * np.float32(rules.crowding)
    ground = ~flies & ~climbs
    meet = (ground[:, None] & ground) | (flies[:, None] & flies) | (climbs[:, None] & (climbs | flies | stands))
    meet |= meet.T
    np.fill_diagonal(meet, False)
    return np.where(meet, inner[:, None] + inner, np.float32(0))[:, :, None]


def _column(numbers: list[float] | list[int]) -> FloatArray:
    return np.array(numbers, np.float32)[:, None]
