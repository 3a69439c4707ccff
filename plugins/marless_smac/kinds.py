"""The ten kinds of units of SMAC's battles, with the numbers of the maps' unit data and of the game's data.

Times are in game loops: a second of the game data has 16, and an env step is 8. Distances are in cells of the map.
Source of each number: the unit data of the map files, and a dump of the game's API of January 2021 for weapons.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

LOOPS = 8
"""Game loops of an env step."""
LOOPS_PER_SECOND = 16


class Kind(IntEnum):
    """A kind of unit; arrays of kinds are int8 of these numbers."""

    COLOSSUS = 0
    STALKER = 1
    ZEALOT = 2
    MARAUDER = 3
    MARINE = 4
    MEDIVAC = 5
    BANELING = 6
    ZERGLING = 7
    HYDRALISK = 8
    SPINE_CRAWLER = 9


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """What all units of a kind have in common."""

    type_id: int
    """The game's number of the kind. Units of allies have numbers of their own, which the map assigns."""
    health: int
    shield: int = 0
    armour: int = 0
    """Subtracted from each hit on health; shields have none."""
    light: bool = False
    armoured: bool = False
    biological: bool = False
    flies: bool = False
    damage: float = 0.0
    """Of one hit."""
    bonus_light: float = 0.0
    bonus_armoured: float = 0.0
    hits: int = 1
    """Hits of one attack."""
    period: float = 0.0
    """Loops between attacks; 0: has no weapon that can be used again."""
    reach: float = 0.0
    """Range of the weapon, from edge to edge."""
    hits_air: bool = False
    speed: float
    """Cells per second of the game data."""
    radius: float
    """Distances of attacks are measured from here."""
    inner: float
    """Two units overlap if their centres are closer than the sum of their inner radii."""
    cooldown_scale: float = 15.0
    """Loops by which SMAC's state divides the weapon cooldown; a medivac's energy is divided by this too."""


FACTS: dict[Kind, UnitFacts] = {
    Kind.COLOSSUS: UnitFacts(
        type_id=4,
        health=200,
        shield=150,
        armour=1,
        armoured=True,
        damage=10,
        bonus_light=5,
        hits=2,
        period=24,
        reach=7,
        speed=2.25,
        radius=1,
        inner=0.5625,
        cooldown_scale=24,
    ),
    Kind.STALKER: UnitFacts(
        type_id=74,
        health=80,
        shield=80,
        armour=1,
        armoured=True,
        damage=13,
        bonus_armoured=5,
        period=29.9216,
        reach=6,
        hits_air=True,
        speed=2.953,
        radius=0.625,
        inner=0.5,
        cooldown_scale=35,
    ),
    Kind.ZEALOT: UnitFacts(
        type_id=73,
        health=100,
        shield=50,
        armour=1,
        light=True,
        biological=True,
        damage=8,
        hits=2,
        period=19.2,
        reach=0.1,
        speed=2.25,
        radius=0.5,
        inner=0.375,
        cooldown_scale=22,
    ),
    Kind.MARAUDER: UnitFacts(
        type_id=51,
        health=125,
        armour=1,
        armoured=True,
        biological=True,
        damage=10,
        bonus_armoured=10,
        period=24,
        reach=6,
        speed=2.25,
        radius=0.5625,
        inner=0.375,
        cooldown_scale=25,
    ),
    Kind.MARINE: UnitFacts(
        type_id=48,
        health=45,
        light=True,
        biological=True,
        damage=6,
        period=13.7728,
        reach=5,
        hits_air=True,
        speed=2.25,
        radius=0.375,
        inner=0.375,
        cooldown_scale=15,
    ),
    Kind.MEDIVAC: UnitFacts(
        type_id=54,
        health=150,
        armour=1,
        armoured=True,
        flies=True,
        reach=4,
        speed=2.5,
        radius=0.75,
        inner=0.75,
        cooldown_scale=200,
    ),
    Kind.BANELING: UnitFacts(
        type_id=9,
        health=30,
        biological=True,
        damage=16,
        bonus_light=19,
        reach=0.25,
        speed=2.5,
        radius=0.375,
        inner=0.375,
        cooldown_scale=1,
    ),
    Kind.ZERGLING: UnitFacts(
        type_id=105,
        health=35,
        light=True,
        biological=True,
        damage=5,
        period=11.136,
        reach=0.1,
        speed=2.953,
        radius=0.375,
        inner=0.375,
        cooldown_scale=11,
    ),
    Kind.HYDRALISK: UnitFacts(
        type_id=107,
        health=80,
        light=True,
        biological=True,
        damage=12,
        period=13.2,
        reach=5,
        hits_air=True,
        speed=2.25,
        radius=0.625,
        inner=0.375,
        cooldown_scale=10,
    ),
    Kind.SPINE_CRAWLER: UnitFacts(
        type_id=98,
        health=300,
        armour=2,
        armoured=True,
        biological=True,
        damage=25,
        bonus_armoured=5,
        period=29.6,
        reach=7,
        speed=0,
        radius=1.125,
        inner=1.125,
    ),
}
