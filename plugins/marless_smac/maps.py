"""SMAC's 23 maps: who fights whom, for how long, on which ground. All maps have 32 × 32 cells.

Compositions, start points, orders and blocked cells are those of the map files; sizes equal those of SMAC's class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from marless.core.errors import SpecError, unknown_name
from marless.learning.envs.base import BoolArray
from marless_smac.kinds import FACTS, Kind

SIZE = 32
"""Cells of a map in both directions."""
FIXED_ACTIONS = 6
"""No-op, stop, and four moves; the actions after them are one per enemy."""

Team = tuple[tuple[Kind, int], ...]
Point = tuple[float, float]
Bands = tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
"""Walkable cells: (first y, end of y, ranges of x), all half-open."""

_ALL = ((0, SIZE),)
OPEN: Bands = ((0, SIZE, _ALL),)
STRIP: Bands = ((8, 24, _ALL),)
OCTAGON: Bands = (
    (6, 8, ((10, 22),)),
    (8, 10, ((8, 24),)),
    (10, 22, ((6, 26),)),
    (22, 24, ((8, 24),)),
    (24, 26, ((10, 22),)),
)
CORRIDOR: Bands = (
    (2, 12, ((2, 12),)),
    (12, 14, ((12, 14),)),
    (14, 16, ((14, 26),)),
    (16, 18, ((14, 28),)),
    (18, 22, ((12, 30),)),
    (22, 24, ((14, 30),)),
    (24, 26, ((16, 30),)),
    (26, 28, ((18, 30),)),
    (28, 30, ((20, 30),)),
)
BANELINGS: Bands = (
    (2, 4, ((2, 8),)),
    (4, 8, ((2, 12),)),
    (8, 12, ((4, 16),)),
    (12, 16, ((8, 20),)),
    (16, 18, ((10, 20),)),
    (18, 22, ((14, 26),)),
    (22, 24, ((16, 30),)),
    (24, 28, ((20, 30),)),
    (28, 30, ((22, 30),)),
)
CLIFF: Bands = (
    (6, 8, ((4, 28),)),
    (8, 10, ((2, 30),)),
    (10, 12, _ALL),
    (12, 14, ((0, 4), (28, 32))),
    (14, 16, _ALL),
    (16, 18, ((2, 30),)),
    (18, 20, ((8, 24),)),
)
CRAWLER: Bands = ((8, 20, ((8, 20),)), (20, 22, ((10, 18),)), (22, 24, ((12, 16),)))
RING: Bands = ((8, 10, ((10, 20),)), (10, 18, ((8, 22),)), (18, 20, ((10, 20),)))


@dataclass(frozen=True, kw_only=True)
class SmacMap:
    """One map. Ids of allies follow `ally_types`; ids of enemies follow the order of `enemies`."""

    name: str
    allies: Team
    enemies: Team
    """In order of creation."""
    limit: int
    """Env steps after which a battle is cut."""
    ally_race: str
    enemy_race: str
    types: tuple[Kind, ...] = ()
    """Kinds in the order of the type bits; empty: there are none. Ids of allies are sorted by it."""
    enemy_types: tuple[Kind, ...] = ()
    """The order of the enemies' type bits, which differs on maps of stalkers and zealots."""
    ground: Bands = STRIP
    ally_starts: tuple[Point, ...] = ((9.0, 16.0),)
    """Where allies are created: one point per kind, or one per unit, or one for all."""
    enemy_starts: tuple[Point, ...] = ((23.0, 16.0),)
    enemy_goal: Point | None = (9.0, 16.0)
    """Where enemies go, attacking on their way; None: nowhere."""
    goal_between: bool = False
    """True: the goal is drawn between the two start points of the allies."""
    hunts: bool = False
    """True: enemies go for the allies wherever they are."""

    @property
    def ally_kinds(self) -> tuple[Kind, ...]:
        """The kind of each ally, by id."""
        order = self.types or tuple(kind for kind, _ in self.allies)
        return tuple(sorted((kind for kind, count in self.allies for _ in range(count)), key=order.index))

    @property
    def enemy_kinds(self) -> tuple[Kind, ...]:
        """The kind of each enemy, by id."""
        return tuple(kind for kind, count in self.enemies for _ in range(count))

    @property
    def n_actions(self) -> int:
        """Actions of each agent."""
        return FIXED_ACTIONS + len(self.enemy_kinds)

    @property
    def ally_shields(self) -> bool:
        """True if observations and states have the shields of allies."""
        return self.ally_race == "P"

    @property
    def enemy_shields(self) -> bool:
        """True if observations and states have the shields of enemies."""
        return self.enemy_race == "P"

    @property
    def enemy_total(self) -> int:
        """Health and shields of all enemies at the start."""
        return sum(FACTS[kind].health + FACTS[kind].shield for kind in self.enemy_kinds)

    def walkable(self) -> BoolArray:
        """bool [x, y]: units can stand in this cell."""
        cells_XY = np.zeros((SIZE, SIZE), np.bool_)
        for first, end, ranges in self.ground:
            for left, right in ranges:
                cells_XY[left:right, first:end] = True
        return cells_XY


def find(name: object) -> SmacMap:
    """The map of this name; raises SpecError, with the nearest match, for an unknown one."""
    if isinstance(name, str) and name in MAPS:
        return MAPS[name]
    raise SpecError(unknown_name("map", str(name), MAPS))


def _marines(name: str, allies: int, enemies: int, limit: int) -> SmacMap:
    ours, theirs = ((Kind.MARINE, allies),), ((Kind.MARINE, enemies),)
    return SmacMap(name=name, allies=ours, enemies=theirs, limit=limit, ally_race="T", enemy_race="T")


def _terrans(name: str, limit: int, enemies: tuple[int, int, int]) -> SmacMap:
    order = (Kind.MARINE, Kind.MARAUDER, Kind.MEDIVAC)
    types = (Kind.MARAUDER, Kind.MARINE, Kind.MEDIVAC)
    return SmacMap(
        name=name,
        allies=tuple(zip(order, (7, 2, 1), strict=True)),
        enemies=tuple(zip(order, enemies, strict=True)),
        limit=limit,
        ally_race="T",
        enemy_race="T",
        types=types,
        enemy_types=types,
    )


def _protoss(name: str, limit: int, allies: tuple[int, int], enemies: tuple[int, int], colossi: int = 0) -> SmacMap:
    first = ((Kind.COLOSSUS, colossi),) if colossi else ()
    types = (*((Kind.COLOSSUS,) if colossi else ()), Kind.STALKER, Kind.ZEALOT)
    return SmacMap(
        name=name,
        allies=(*first, (Kind.STALKER, allies[0]), (Kind.ZEALOT, allies[1])),
        enemies=(*first, (Kind.STALKER, enemies[0]), (Kind.ZEALOT, enemies[1])),
        limit=limit,
        ally_race="P",
        enemy_race="P",
        types=types,
        enemy_types=types if colossi else (Kind.ZEALOT, Kind.STALKER),
    )


def _stalkers(enemies: int, limit: int) -> SmacMap:
    return SmacMap(
        name=f"3s_vs_{enemies}z",
        allies=((Kind.STALKER, 3),),
        enemies=((Kind.ZEALOT, enemies),),
        limit=limit,
        ally_race="P",
        enemy_race="P",
        ground=OPEN,
    )


_EACH = (
    _marines("3m", 3, 3, 60),
    _marines("8m", 8, 8, 120),
    _marines("25m", 25, 25, 150),
    _marines("5m_vs_6m", 5, 6, 70),
    _marines("8m_vs_9m", 8, 9, 120),
    _marines("10m_vs_11m", 10, 11, 150),
    _marines("27m_vs_30m", 27, 30, 180),
    _terrans("MMM", 150, (7, 2, 1)),
    _terrans("MMM2", 180, (8, 3, 1)),
    _protoss("2s3z", 120, (2, 3), (2, 3)),
    _protoss("3s5z", 150, (3, 5), (3, 5)),
    _protoss("3s5z_vs_3s6z", 170, (3, 5), (3, 6)),
    _protoss("1c3s5z", 180, (3, 5), (3, 5), 1),
    _stalkers(3, 150),
    _stalkers(4, 200),
    _stalkers(5, 250),
    SmacMap(
        name="2m_vs_1z",
        allies=((Kind.MARINE, 2),),
        enemies=((Kind.ZEALOT, 1),),
        limit=150,
        ally_race="T",
        enemy_race="P",
        ground=OCTAGON,
        ally_starts=((13.0, 12.0), (19.0, 12.0)),
        enemy_starts=((16.0, 19.0),),
        goal_between=True,
    ),
    SmacMap(
        name="bane_vs_bane",
        allies=((Kind.ZERGLING, 20), (Kind.BANELING, 4)),
        enemies=((Kind.ZERGLING, 20), (Kind.BANELING, 4)),
        limit=200,
        ally_race="Z",
        enemy_race="Z",
        types=(Kind.BANELING, Kind.ZERGLING),
        enemy_types=(Kind.BANELING, Kind.ZERGLING),
        ground=OCTAGON,
        ally_starts=((16.0, 11.0), (16.0, 8.0)),
        enemy_starts=((16.0, 21.0), (16.0, 24.0)),
        enemy_goal=(16.0, 8.0),
    ),
    SmacMap(
        name="corridor",
        allies=((Kind.ZEALOT, 6),),
        enemies=((Kind.ZERGLING, 24),),
        limit=400,
        ally_race="P",
        enemy_race="Z",
        ground=CORRIDOR,
        ally_starts=((19.04, 19.12),),
        enemy_starts=((27.91, 28.24),),
        enemy_goal=(4.47, 4.33),
    ),
    SmacMap(
        name="so_many_baneling",
        allies=((Kind.ZEALOT, 7),),
        enemies=((Kind.BANELING, 32),),
        limit=100,
        ally_race="P",
        enemy_race="Z",
        ground=BANELINGS,
        ally_starts=((11.47, 12.02),),
        enemy_starts=((27.91, 28.24),),
        enemy_goal=(4.47, 4.33),
    ),
    SmacMap(
        name="6h_vs_8z",
        allies=((Kind.HYDRALISK, 6),),
        enemies=((Kind.ZEALOT, 8),),
        limit=150,
        ally_race="Z",
        enemy_race="P",
        ground=RING,
        ally_starts=((14.60, 9.49),),
        enemy_starts=((14.41, 16.76),),
        enemy_goal=(14.60, 9.49),
    ),
    SmacMap(
        name="2s_vs_1sc",
        allies=((Kind.STALKER, 2),),
        enemies=((Kind.SPINE_CRAWLER, 1),),
        limit=300,
        ally_race="P",
        enemy_race="Z",
        ground=CRAWLER,
        ally_starts=((11.12, 10.34), (16.98, 10.37)),
        enemy_starts=((13.92, 20.04),),
        enemy_goal=None,
    ),
    SmacMap(
        name="2c_vs_64zg",
        allies=((Kind.COLOSSUS, 2),),
        enemies=((Kind.ZERGLING, 64),),
        limit=400,
        ally_race="P",
        enemy_race="Z",
        ground=CLIFF,
        ally_starts=((16.0, 16.0),),
        enemy_starts=((16.0, 9.0),),
        enemy_goal=(16.0, 16.0),
        hunts=True,
    ),
)
MAPS: Mapping[str, SmacMap] = MappingProxyType({each.name: each for each in _EACH})
"""All maps by name."""
