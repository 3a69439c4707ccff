"""Sizes of SMAC's class for all maps, and layouts worked out by hand from units that a test has placed."""

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless_smac.kinds import Kind
from marless_smac.maps import MAPS, find
from marless_smac.observing import Observer
from marless_smac.options import SmacOptions
from marless_smac.rewards import Scorer
from tests.plugins.smac.placing import row, scene, team

SIZES = """
3m 3 3 60 9 30 48 365
8m 8 8 120 14 80 168 640
25m 25 25 150 31 250 950 1575
5m_vs_6m 5 6 70 12 55 98 530
8m_vs_9m 8 9 120 15 85 179 695
10m_vs_11m 10 11 150 17 105 243 805
27m_vs_30m 27 30 180 36 285 1170 1850
MMM 10 10 150 16 160 290 1015
MMM2 10 12 180 18 176 322 1205
2s3z 5 5 120 11 80 120 1020
3s5z 8 8 150 14 128 216 1510
3s5z_vs_3s6z 8 9 170 15 136 230 1670
1c3s5z 9 9 180 15 162 270 1870
3s_vs_3z 3 3 150 9 36 54 680
3s_vs_4z 3 4 200 10 42 61 840
3s_vs_5z 3 5 250 11 48 68 1000
2m_vs_1z 2 1 150 7 16 26 360
bane_vs_bane 24 24 200 30 336 984 1260
corridor 6 24 400 30 156 282 1280
so_many_baneling 7 32 100 38 202 397 1480
6h_vs_8z 6 8 150 14 78 140 1480
2s_vs_1sc 2 1 300 7 17 27 510
2c_vs_64zg 2 64 400 70 332 342 3080
"""  # agents, enemies, limit, actions, observation, state, maximal reward of SMAC's own class


def seen(name, units, *, last=-1, steps=0, **options):
    observer, batch = Observer(find(name), SmacOptions(**options)), units.allies.x.shape[1]
    rows = observer.rows(batch)
    last_NB = np.broadcast_to(np.array(last, np.int32).reshape(-1, 1), (observer.agents, batch))
    observer.write(rows, units, find(name).walkable(), last_NB, np.full(batch, steps))
    return rows


@pytest.mark.parametrize("line", SIZES.split("\n")[1:-1])
def test_sizes_are_those_of_smac(line):
    name, *numbers = line.split()
    each = find(name)
    observer, scorer = Observer(each, SmacOptions()), Scorer(each, SmacOptions(), 1)
    found = [observer.agents, observer.enemies, each.limit, each.n_actions, observer.obs_size, observer.state_size]
    assert [*found, int(scorer.max_reward)] == [int(number) for number in numbers]


def test_all_maps_are_listed():
    assert list(MAPS) == [line.split()[0] for line in SIZES.split("\n")[1:-1]]


def test_marines_see_what_is_nearer_than_nine_and_may_shoot_what_is_not_beyond_six():
    units = scene(
        "3m",
        [(10, 16), (13, 20), (19, 16)],
        [(16, 16), (18.5, 16), (10, 22.5)],
        allies={"health": [45, 9, 0], "cooldown": [3, 0, 5]},
        enemies={"health": [45, 30, 45]},
    )
    rows = seen("3m", units)
    first = rows.obs[0, :, 0]
    assert first[:4].tolist() == [1, 1, 1, 1]
    assert first[4:9] == pytest.approx([1, 6 / 9, 6 / 9, 0, 1])  # at exactly 6: may be attacked
    assert first[9:14] == pytest.approx([0, 8.5 / 9, 8.5 / 9, 0, 30 / 45])
    assert first[14:19] == pytest.approx([0, 6.5 / 9, 0, 6.5 / 9, 1])
    assert first[19:24] == pytest.approx([1, 5 / 9, 3 / 9, 4 / 9, 0.2])
    assert first[24:29].tolist() == [0] * 5  # exactly 9 away, and dead
    assert first[29] == 1
    assert rows.mask[0, :, 0].tolist() == [False, *[True] * 5, True, False, False]
    assert not rows.obs[2].any()
    assert rows.mask[2, :, 0].tolist() == [True, *[False] * 8]


def test_a_unit_at_exactly_nine_is_not_seen():
    units = scene("3m", [(10, 16), (10, 7), (0, 16)], [(19, 16), (18.99, 16), (1, 16)])
    first = seen("3m", units).obs[0, :, 0]
    assert not first[4:9].any() and first[9:14].any() and not first[14:19].any() and not first[19:24].any()


def test_the_state_of_marines():
    units = scene(
        "3m",
        [(8, 16), (16, 24), (1, 1)],
        [(24, 8), (16, 16), (5, 5)],
        allies={"health": [45, 9, 0], "cooldown": [3, 7.5, 9]},
        enemies={"health": [15, 45, 0]},
    )
    state = seen("3m", units, last=[6, 2, 0]).state[:, 0]
    assert state[:4] == pytest.approx([1, 3 / 15, -8 / 32, 0])
    assert state[4:8] == pytest.approx([0.2, 0.5, 0, 8 / 32])
    assert state[8:12].tolist() == [0] * 4
    assert state[12:21] == pytest.approx([1 / 3, 8 / 32, -8 / 32, 1, 0, 0, 0, 0, 0])
    assert np.flatnonzero(state[21:]).tolist() == [6, 9 + 2, 18]
    assert not seen("3m", units).state[21:].any()  # nobody has acted yet


def test_stalkers_and_zealots_have_other_type_bits_as_enemies():
    units = scene(
        "2s3z",
        row(5, 8, 14, 1),
        row(5, 12, 14, 1),
        allies={"shield": [40, 80, 25, 50, 50]},
        enemies={"shield": [20, 80, 0, 50, 50]},
    )
    assert find("2s3z").ally_kinds == (*[Kind.STALKER] * 2, *[Kind.ZEALOT] * 3) == find("2s3z").enemy_kinds
    rows = seen("2s3z", units)
    obs, state = rows.obs[0, :, 0], rows.state[:, 0]
    assert obs[4:12] == pytest.approx([1, 4 / 9, 4 / 9, 0, 1, 0.25, 0, 1])  # an enemy stalker
    assert obs[20:28] == pytest.approx([1, np.sqrt(20) / 9, 4 / 9, 2 / 9, 1, 0, 1, 0])  # an enemy zealot
    assert obs[44:52] == pytest.approx([1, 1 / 9, 0, 1 / 9, 1, 1, 1, 0])  # an allied stalker
    assert obs[52:60] == pytest.approx([1, 2 / 9, 0, 2 / 9, 1, 0.5, 0, 1])  # an allied zealot
    assert obs[76:] == pytest.approx([1, 0.5, 1, 0])
    assert state[:7] == pytest.approx([1, 0, -8 / 32, -2 / 32, 0.5, 1, 0])
    assert state[35:41] == pytest.approx([1, -4 / 32, -2 / 32, 0.25, 0, 1])
    assert state[47:53] == pytest.approx([1, -4 / 32, 0, 0, 1, 0])


def test_colossi_come_first_in_both_teams():
    units = scene("1c3s5z", row(9, 8, 12, 1), row(9, 12, 12, 1))
    obs = seen("1c3s5z", units).obs[0, :, 0]
    assert find("1c3s5z").ally_kinds[0] == find("1c3s5z").enemy_kinds[0] == Kind.COLOSSUS
    assert obs[4 + 6 : 4 + 9].tolist() == [1, 0, 0] and obs[13 + 6 : 13 + 9].tolist() == [0, 1, 0]
    assert obs[-3:].tolist() == [1, 0, 0]


def test_a_medivac_heals_allies_that_are_no_medivacs():
    energy = np.zeros(10)
    energy[9] = 50
    units = scene("MMM", row(10, 8, 12, 0.4), row(10, 12, 12, 0.4), allies={"energy": energy})
    kinds = find("MMM").ally_kinds
    assert kinds == (*[Kind.MARAUDER] * 2, *[Kind.MARINE] * 7, Kind.MEDIVAC)
    assert find("MMM").enemy_kinds == (*[Kind.MARINE] * 7, *[Kind.MARAUDER] * 2, Kind.MEDIVAC)
    rows = seen("MMM", units)
    assert rows.mask[9, 6:, 0].tolist() == [*[True] * 9, False]
    assert rows.mask[0, 6:, 0].all()
    assert rows.obs[9, 4 + 9 * 8, 0] == 0 and rows.obs[0, 4 + 9 * 8, 0] == 1
    assert rows.state[9 * 7 + 1, 0] == pytest.approx(50 / 200)
    assert rows.obs[0, 4 + 9 * 8 + 5 : 4 + 10 * 8, 0].tolist() == [0, 0, 1]


def test_moves_end_at_the_walls_of_the_strip_and_at_the_edge_of_the_map():
    places = [(0.5, 8.5), (31.5, 23.5), (16, 16)]
    rows = seen("3m", scene("3m", places, row(3, 16, 12)))
    assert rows.mask[0, 2:6, 0].tolist() == [True, False, True, True]  # x − 1 = −0.5 is cut to cell 0, as in SMAC
    assert rows.mask[1, 2:6, 0].tolist() == [False, True, False, True]
    assert rows.mask[2, 2:6, 0].all()
    assert rows.obs[0, :4, 0].tolist() == [1, 0, 1, 1]


def test_optional_parts_of_observations():
    units = scene("3m", [(10, 16), (11, 16), (12, 22)], row(3, 12, 16), allies={"health": [45, 30, 45]})
    whole = seen(
        "3m", units, obs_last_action=True, obs_timestep_number=True, obs_pathing_grid=True, last=[1, 8, 3], steps=15
    )
    obs = whole.obs[0, :, 0]
    assert len(obs) == 4 + 8 + 3 * 5 + 2 * (5 + 9) + 1 + 1
    assert obs[4:12].tolist() == [1, 1, 1, 1, 1, 1, 1, 1]
    assert whole.obs[2, 4:12, 0].tolist() == [0, 1, 1, 1, 0, 1, 1, 0]  # y = 22: cells 26 and 24 are walls
    assert np.flatnonzero(obs[27 + 5 : 27 + 14]).tolist() == [8] and np.flatnonzero(obs[41 + 5 : 41 + 14]).tolist() == [
        3
    ]
    assert obs[-1] == 15 / 60
    bare = seen("3m", units, obs_all_health=False, obs_own_health=False)
    assert bare.obs.shape[1] == 4 + 3 * 4 + 2 * 4
    joined = seen("3m", units, obs_instead_of_state=True)
    assert np.array_equal(joined.state[:, 0], joined.obs[:, :, 0].ravel())
    timed = seen("3m", units, state_timestep_number=True, state_last_action=False, steps=30)
    assert timed.state.shape[0] == 22 and timed.state[-1, 0] == 0.5


def test_each_battle_is_seen_alone():
    rng = np.random.default_rng(0)
    units = scene("3s5z", row(8), row(8), batch=5)
    for each in (units.allies, units.enemies):
        each.x[...], each.y[...] = rng.uniform(5, 25, (2, 8, 5))
        each.health[...] *= rng.random((8, 5)) > 0.3
    rows = seen("3s5z", units)
    for b in range(5):
        one = scene("3s5z", row(8), row(8))
        for whole, part in ((units.allies, one.allies), (units.enemies, one.enemies)):
            part.x[:, 0], part.y[:, 0], part.health[:, 0] = whole.x[:, b], whole.y[:, b], whole.health[:, b]
        alone = seen("3s5z", one)
        assert np.array_equal(alone.obs[..., 0], rows.obs[..., b])
        assert np.array_equal(alone.state[:, 0], rows.state[:, b])
        assert np.array_equal(alone.mask[..., 0], rows.mask[..., b])


def test_an_unknown_map_gets_the_nearest_match():
    with pytest.raises(SpecError, match="unknown map '8n'; did you mean '8m'"):
        find("8n")


def test_teams_of_the_helper_are_whole():
    assert team([Kind.ZEALOT], (1, 2)).shield.tolist() == [[50]]
