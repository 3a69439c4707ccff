"""Units in rings around the points of their teams, for measuring how much the places at the start matter."""

import numpy as np
import pytest

from bench.smac_layouts import placed, rings
from marless_smac.engine import EmbeddedBattles
from marless_smac.maps import find
from marless_smac.rules import Rules
from marless_smac.tables import tables


def test_units_are_as_near_to_their_point_as_the_earlier_ones_allow():
    apart_UU = np.ones((4, 4)) - np.eye(4)
    found = rings(apart_UU, angle=np.pi / 2)
    assert found[0] == pytest.approx([0, 0])
    assert found[1] == pytest.approx([0, 1], abs=1e-3)  # the first of the ring, north
    assert np.linalg.norm(found[1:], axis=1) == pytest.approx([1, 1, 1], abs=1e-3)
    assert found[2][0] < 0 < found[2][1]  # counter-clockwise: to the west
    distances = np.linalg.norm(found[:, None] - found, axis=-1) + 9 * np.eye(4)
    assert distances.min() >= 1 - 2e-3


def test_without_room_the_unit_is_named():
    with pytest.raises(ValueError, match="unit 1"):
        rings(np.full((2, 2), 99.0), angle=0.0)


@pytest.mark.parametrize("name", ["2s3z", "1c3s5z", "5m_vs_6m"])
def test_all_battles_begin_alike_with_units_that_do_not_overlap_and_ids_that_ascend(name):
    smac_map, rules = find(name), Rules()
    battles = EmbeddedBattles(smac_map, 3, rules)
    battles.reset(0)
    placed(name, rules, 0.7)(battles)
    allies, enemies = battles.units.allies, battles.units.enemies
    x, y = np.concatenate([allies.x, enemies.x]), np.concatenate([allies.y, enemies.y])
    assert np.ptp(x, axis=1).max() == np.ptp(y, axis=1).max() == 0
    apart = np.hypot(x[:, None, 0] - x[:, 0], y[:, None, 0] - y[:, 0])
    assert np.all(apart >= tables(smac_map, rules).apart[:, :, 0] - 2e-3)
    for kind in set(smac_map.ally_kinds):
        which = [unit for unit, each in enumerate(smac_map.ally_kinds) if each == kind]
        assert np.all(np.diff(allies.x[which, 0]) >= 0)
