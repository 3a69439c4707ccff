"""How the places of units at the start of a battle decide who wins, with the scripted policy of SMAC's class.

    python -m bench.smac_layouts

The map scripts create all units of a team at one point, one after the other, and the game moves each to a free place
near it. How it chooses that place is not known. Here it is the nearest free one, and among equally near ones the first
from a given direction, counter-clockwise. So the first unit of a team is at its point, and the others are in rings
around it. Both teams are placed alike. In contrast to the engine's own random places, these are equal in all battles.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.smac_calibration import PUBLISHED, win_rate
from marless.learning.envs.base import FloatArray
from marless_smac.engine import EmbeddedBattles
from marless_smac.kinds import Kind
from marless_smac.maps import find
from marless_smac.rules import Rules
from marless_smac.tables import tables
from marless_smac.units import UnitTeam

DIRECTIONS: Mapping[str, float] = {
    name: eighth * math.pi / 4
    for eighth, name in enumerate(
        ("east", "north-east", "north", "north-west", "west", "south-west", "south", "south-east")
    )
}
"""Where the first unit of a ring is, by name: the angle from east, counter-clockwise, in radians."""
FINENESS = 0.1
"""Between places that are tried, in cells."""
FARTHEST = 8.0
"""From the point, in cells."""
Place = Callable[[EmbeddedBattles], None]


def rings(apart_UU: FloatArray, angle: float) -> FloatArray:
    """The places of a team's units beside their point, [U, 2] in cells, in the order in which they are created.

    Args:
        apart_UU: how far apart the centres of two units must be.
        angle: of the first place of each ring.
    """
    tried, found = _tried(angle), np.empty((len(apart_UU), 2), np.float32)
    for unit, apart_U in enumerate(apart_UU):
        away = np.linalg.norm(tried[:, None] - found[:unit], axis=-1)
        free = np.all(away >= apart_U[:unit] - 1e-3, axis=1)
        if not free.any():
            raise ValueError(f"there is no room for unit {unit} within {FARTHEST} cells of its point")
        found[unit] = tried[int(free.argmax())]
    return found


def _tried(angle: float) -> FloatArray:
    """Places from near to far, [P, 2]."""
    places = [np.zeros((1, 2))]
    for radius in np.arange(FINENESS, FARTHEST, FINENESS):
        turns = angle + np.linspace(0, 2 * math.pi, max(8, round(2 * math.pi * radius / FINENESS)), endpoint=False)
        places.append(radius * np.stack([np.cos(turns), np.sin(turns)], axis=1))
    return np.concatenate(places).astype(np.float32)


def placed(name: str, rules: Rules, angle: float) -> Place:
    """What places the units of a map, whose teams have one point each, in rings."""
    smac_map = find(name)
    apart_UU, count = tables(smac_map, rules).apart[:, :, 0], len(smac_map.ally_kinds)
    ours, theirs = rings(apart_UU[:count, :count], angle), rings(apart_UU[count:, count:], angle)
    ours = ours[_ids(ours, smac_map.ally_kinds)]
    (ally_point,), (enemy_point,) = smac_map.ally_starts, smac_map.enemy_starts

    def place(battles: EmbeddedBattles) -> None:
        _put(battles.units.allies, ours + np.array(ally_point, np.float32))
        _put(battles.units.enemies, theirs + np.array(enemy_point, np.float32))

    return place


def _ids(place_U2: FloatArray, kinds: Sequence[Kind]) -> NDArray[np.intp]:
    """Units in the order of their ids: those of one kind ascend with x, then y. Kinds keep their order."""
    order = np.lexsort((place_U2[:, 1], place_U2[:, 0]))
    ids = {kind: [int(unit) for unit in order if kinds[unit] == kind] for kind in kinds}
    return np.array([ids[kind].pop(0) for kind in kinds], np.intp)


def _put(team: UnitTeam, place_U2: FloatArray) -> None:
    team.x[...], team.y[...] = place_U2[:, 0, None], place_U2[:, 1, None]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--battles", type=int, default=100, help="battles per cell")
    parser.add_argument("--maps", nargs="+", default=list(PUBLISHED))
    args = parser.parse_args()
    rules = Rules()
    print("| won, % | " + " | ".join(args.maps) + " |\n|---|" + "---|" * len(args.maps))
    for what, angle in {"at random, as used": None, **DIRECTIONS}.items():
        shares = [
            win_rate(find(name), args.battles, rules, place=placed(name, rules, angle))[0]
            if angle is not None
            else win_rate(find(name), args.battles, rules)[0]
            for name in args.maps
        ]
        print(f"| {what} | " + " | ".join(f"{100 * share:.0f}" for share in shares) + " |", flush=True)
    quoted = [PUBLISHED[name] for name in args.maps]
    print("| published | " + " | ".join("" if share is None else f"{100 * share:.0f}" for share in quoted) + " |")


if __name__ == "__main__":
    main()
