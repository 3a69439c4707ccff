"""The embedded engine: duels against loop counts worked out by hand, walls, and what holds in every battle."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.core.errors import CorruptError, SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import random_actions
from marless_smac import EmbeddedSmac, SmacOptions
from marless_smac.engine import EmbeddedBattles
from marless_smac.kinds import FACTS, Kind
from marless_smac.maps import MAPS, SmacMap, find
from marless_smac.rules import Rules
from marless_smac.units import in_order

CALM = Rules(jitter=(0.0, 0.0), scatter=0.0)


def duel(ours, theirs, *, gap=1.0, rules=CALM, ground="3m", **changes):
    """A battle of one against one, `gap` from edge to edge, on the strip; returns the engine."""
    apart = gap + FACTS[ours].radius + FACTS[theirs].radius
    smac_map = SmacMap(
        name=ground,
        allies=((ours, 1),),
        enemies=((theirs, 1),),
        limit=100,
        ally_race="P",
        enemy_race="P",
        ally_starts=((10.0, 16.0),),
        enemy_starts=((10.0 + apart, 16.0),),
        enemy_goal=None,
        **changes,
    )
    battles = EmbeddedBattles(smac_map, 1, rules)
    battles.reset(0)
    return battles


def loop_by_loop(battles, action, loops):
    """Health and shield of both units after each loop, with one order at the start of each eight."""
    seen = []
    for i in range(loops):
        if i % 8 == 0:
            battles._order(np.array([[action]], np.int32))
        battles._loop(battles._tables.period)
        ours, theirs = battles.units.allies, battles.units.enemies
        seen.append((ours.health[0, 0], ours.shield[0, 0], theirs.health[0, 0], theirs.shield[0, 0]))
    return np.array(seen)


def falls(start, column):
    """The loops, from 1, in which a number falls."""
    return [int(i) + 1 for i in np.flatnonzero(np.diff(np.r_[start, column]) < 0)]


def test_marines_shoot_every_fourteenth_loop():
    seen = loop_by_loop(duel(Kind.MARINE, Kind.MARINE, gap=4.5), 6, 100)
    # 13.77 loops of cooldown are over in the 14th; 45 health take eight hits of 6, from the first loop on.
    assert falls(45, seen[:, 2]) == [1 + 14 * i for i in range(8)]
    assert seen[1 + 14 * 7 - 1, [0, 2]].tolist() == [0, 0]  # both have fired as often: they kill each other


def test_passive_allies_do_not_fight_back():
    seen = loop_by_loop(duel(Kind.MARINE, Kind.MARINE, gap=4.0), 1, 90)
    assert seen[-1, 2] == 45 and seen[-1, 0] == 45 - 6 * 7


def test_zealots_hit_twice_shields_first_and_armour_last():
    battles = duel(Kind.ZEALOT, Kind.ZEALOT, gap=0.05)
    seen = loop_by_loop(battles, 6, 90)
    shield, health = np.r_[50, seen[:, 3]], np.r_[100, seen[:, 2]]
    hits = falls(150, seen[:, 2] + seen[:, 3])
    assert hits == [1, 21, 41, 61, 81]  # 19.2 loops are over in the 20th
    assert [float(shield[h]) for h in hits] == [34, 18, 2, 0, 0]
    # The fourth attack: the first hit breaks the shield of 2 and 6 − 1 go through, the second makes 8 − 1.
    assert [float(health[h]) for h in hits] == [100, 100, 100, 100 - 5 - 7, 100 - 12 - 14]


def test_a_stalker_deals_its_bonus_to_armoured_units_only():
    for theirs, wanted in ((Kind.STALKER, 18), (Kind.ZEALOT, 13)):
        seen = loop_by_loop(duel(Kind.STALKER, theirs, gap=5.9), 6, 1)
        assert FACTS[theirs].shield - seen[0, 3] == wanted


def test_shields_recover_after_ten_seconds_without_damage():
    battles = duel(Kind.STALKER, Kind.STALKER, gap=20.0)
    battles._state.shield[0] = 40
    seen = loop_by_loop(battles, 1, 200)
    assert seen[159, 1] == 40 and seen[160, 1] == pytest.approx(40.125)
    assert seen[199, 1] == pytest.approx(40 + 40 / 8)


def test_zerg_life_grows():
    battles = duel(Kind.ZERGLING, Kind.ZERGLING, gap=20.0)
    battles._state.health[0] = 10
    assert loop_by_loop(battles, 1, 160)[-1, 0] == pytest.approx(10 + 2.734, abs=1e-3)


@pytest.mark.parametrize(("kind", "step"), [(Kind.MARINE, 1.125), (Kind.STALKER, 1.4765), (Kind.BANELING, 1.25)])
@pytest.mark.parametrize(("action", "dx", "dy"), [(2, 0, 1), (3, 0, -1), (4, 1, 0), (5, -1, 0)])
def test_moves_are_as_far_as_the_speed_of_the_kind(kind, step, action, dx, dy):
    battles = duel(kind, Kind.ZEALOT, gap=12.0)
    battles.advance(np.array([[action]], np.int32))
    allies = battles.units.allies
    assert (allies.x[0, 0] - 10, allies.y[0, 0] - 16) == (pytest.approx(step * dx), pytest.approx(step * dy))


def test_the_order_to_attack_walks_in_and_stops_in_reach():
    battles = duel(Kind.MARINE, Kind.MARINE, gap=9.0, rules=Rules(jitter=(0.0, 0.0), scatter=0.0, scan=0.0))
    for _ in range(6):
        battles.advance(np.array([[6]], np.int32))
    allies, enemies = battles.units.allies, battles.units.enemies
    assert enemies.x[0, 0] - allies.x[0, 0] == pytest.approx(5.75, abs=1e-4)
    assert enemies.health[0, 0] < 45


def test_a_unit_stands_when_its_target_is_dead():
    battles = duel(Kind.MARINE, Kind.MARINE, gap=4.0)
    battles._state.health[1] = 6
    seen = loop_by_loop(battles, 6, 8)
    assert seen[0, 2] == 0 and battles.units.allies.x[0, 0] == pytest.approx(10)
    assert battles._state.target[0, 0] == -1


def test_walls_stop_units():
    battles = duel(Kind.STALKER, Kind.ZEALOT, gap=20.0)
    for _ in range(8):
        battles.advance(np.array([[2]], np.int32))
    assert battles.units.allies.y[0, 0] == pytest.approx(24, abs=2e-3)
    battles = duel(Kind.STALKER, Kind.ZEALOT, gap=20.0, ground="6h_vs_8z")
    for _ in range(12):
        battles.advance(np.array([[5]], np.int32))
    assert battles.units.allies.x[0, 0] >= 8


def test_enemies_go_where_the_map_sends_them():
    battles = EmbeddedBattles(find("3m"), 2, Rules())
    battles.reset(0)
    battles._state.y[:3] = 8.5  # out of sight
    stop = np.ones((3, 2), np.int32)
    for _ in range(40):
        battles._state.x[:3] = 31
        battles.advance(stop)
    assert np.hypot(battles.units.enemies.x - 9, battles.units.enemies.y - 16).max() < 1.6


def test_enemies_find_their_way_through_the_corridor():
    battles = EmbeddedBattles(find("corridor"), 1, Rules(scan=0.0))
    battles.reset(0)
    for _ in range(60):
        battles._state.x[:6], battles._state.y[:6] = 29, 21
        battles.advance(np.ones((6, 1), np.int32))
    assert np.hypot(battles.units.enemies.x - 4.47, battles.units.enemies.y - 4.33).mean() < 4


def test_a_baneling_dies_of_its_attack_and_hurts_all_around():
    battles = EmbeddedBattles(find("so_many_baneling"), 1, CALM)
    battles.reset(0)
    state = battles._state
    state.x[:7, 0], state.y[:7, 0] = [10, 11, 12, 13, 14, 15, 16], 10
    state.x[7:, 0], state.y[7:, 0] = 25, 26
    state.x[7], state.y[7] = 10, 10.9
    state.marching[7:] = False
    before = state.shield[:7, 0] + state.health[:7, 0]
    battles._loop(battles._tables.period)
    lost = before - state.shield[:7, 0] - state.health[:7, 0]
    assert lost.tolist() == [35, 35, 35 if np.hypot(2, 0.9) <= 2.2 else 0, 0, 0, 0, 0]
    assert state.health[7, 0] == 0 and (state.health[8:, 0] > 0).all()


def test_banelings_that_are_killed_go_off_one_after_another():
    battles = EmbeddedBattles(find("bane_vs_bane"), 1, CALM)
    battles.reset(0)
    state = battles._state
    state.x[:, 0], state.y[:, 0] = np.linspace(8, 24, 48), 12
    allied = np.flatnonzero(battles._tables.kind[:24] == Kind.BANELING)
    state.x[allied[0], 0], state.y[allied[0], 0] = 12, 20
    state.health[allied[0], 0] = 0
    state.x[24 + 20, 0], state.y[24 + 20, 0] = 12, 21  # an enemy baneling, which the first one hurts by 16
    state.health[24 + 20, 0] = 10
    state.x[allied[1], 0], state.y[allied[1], 0] = 12, 22.5  # which the second one hurts
    none = np.zeros((4, 1), np.bool_)
    view = battles._view()
    battles._burst((view, view.turned()), [none, none])
    assert state.health[44, 0] == 0 and state.health[allied[1], 0] == 14


def test_a_medivac_heals_and_pays_with_energy():
    battles = EmbeddedBattles(find("MMM"), 1, CALM)
    battles.reset(0)
    state = battles._state
    state.health[3, 0] = 20
    action = np.ones((10, 1), np.int32)
    action[9] = 6 + 3
    battles.advance(action)
    assert state.health[3, 0] == pytest.approx(24.5) and state.energy[9, 0] == pytest.approx(50 - 1.5 + 8 * 0.5625 / 16)
    state.health[3, 0] = 44.9
    battles.advance(action)
    assert state.health[3, 0] == 45


def test_the_enemys_medivac_heals_by_itself():
    battles = EmbeddedBattles(find("MMM2"), 1, CALM)
    battles.reset(0)
    battles._state.health[10 + 10, 0] = 50
    battles.advance(np.ones((10, 1), np.int32))
    assert battles._state.health[10 + 10, 0] > 53 and battles._state.energy[21, 0] < 50


def test_a_colossus_burns_a_line_across_its_fire():
    battles = EmbeddedBattles(find("2c_vs_64zg"), 1, CALM)
    battles.reset(0)
    state = battles._state
    state.x[:2, 0], state.y[:2, 0] = [6, 20], [15, 15]
    state.x[2:, 0], state.y[2:, 0] = np.linspace(3, 27, 64), 9
    state.x[2:6, 0], state.y[2:6, 0] = [11, 11, 11, 13], [15, 16.2, 16.6, 15]
    action = np.array([[6], [1]], np.int32)
    battles._order(action)
    battles._loop(battles._tables.period)
    assert state.health[2:6, 0].tolist() == pytest.approx([5, 5, 35, 35], abs=0.1)


def in_every_copy(name, batch, seed, steps, check):
    env = EmbeddedSmac(find(name), SmacOptions(), batch)
    frame, rng = env.reset(seed), np.random.default_rng(seed)
    check(env, frame, None)
    for _ in range(steps):
        moved = env.step(random_actions(env.spaces, frame, rng))
        frame = moved.frame
        check(env, frame, moved)


@settings(max_examples=8, deadline=None)
@given(name=st.sampled_from(list(MAPS)), seed=st.integers(0, 2**32))
def test_what_holds_in_every_battle(name, seed):
    smac_map, walkable = find(name), find(name).walkable()
    grounded = np.array([kind not in (Kind.MEDIVAC, Kind.COLOSSUS) for kind in smac_map.ally_kinds])

    def check(env, frame, moved):
        for team in (env._battles.units.allies, env._battles.units.enemies):
            facts = [FACTS[Kind(kind)] for kind in team.kind[:, 0]]
            most = np.array([[each.health, each.shield] for each in facts]).T[:, :, None]
            held = np.stack([team.health, team.shield])
            assert ((held >= 0) & (held <= most)).all()
            assert (team.cooldown >= 0).all() and np.isfinite(team.x).all()
        allies = env._battles.units.allies
        stands = allies.alive & grounded[:, None]
        assert walkable[allies.x[stands].astype(int), allies.y[stands].astype(int)].all()
        dead = ~allies.alive
        assert not frame.obs[0][dead].any()
        assert frame.masks[0][dead].argmax(axis=-1).sum() == 0 and frame.masks[0][dead].sum() == dead.sum()
        if moved is not None:
            assert (moved.team_reward >= 0).all() and (moved.team_reward <= 20).all()

    in_every_copy(name, 3, seed, 12, check)


@settings(max_examples=4, deadline=None)
@given(name=st.sampled_from(["3m", "2s3z", "MMM", "3s5z"]), seed=st.integers(0, 2**32))
def test_a_battle_is_the_same_in_every_place_of_a_batch(name, seed):
    whole, alone = (EmbeddedSmac(find(name), SmacOptions(), batch) for batch in (6, 1))
    frame, rng, place = whole.reset(seed), np.random.default_rng(seed), 4
    alone.reset(0)
    begun = alone.load({key: array[..., place : place + 1] for key, array in whole.save().items()})
    for _ in range(14):
        assert np.array_equal(begun.obs[0][:, 0], frame.obs[0][:, place])
        assert np.array_equal(begun.state[0], frame.state[place])
        action = random_actions(whole.spaces, frame, rng)[0]
        moved, single = whole.step((action,)), alone.step((action[:, place : place + 1],))
        assert moved.team_reward[place] == single.team_reward[0]
        frame, begun = moved.frame, single.frame


def test_sums_do_not_depend_on_the_batch():
    parts = np.random.default_rng(0).random((24, 50), np.float32)
    whole = in_order(parts, axis=0)
    assert all(in_order(parts[:, i : i + 1].copy(), axis=0)[0] == whole[i] for i in range(50))
    assert whole == pytest.approx(parts.sum(axis=0), rel=1e-5)


def test_a_battle_does_not_depend_on_the_size_of_the_batch():
    first, second = (EmbeddedBattles(find("8m"), batch, Rules()) for batch in (1, 5))
    first.reset(7), second.reset(7)
    assert np.array_equal(first.units.allies.x[:, 0], second.units.allies.x[:, 0])
    assert not np.array_equal(second.units.allies.x[:, 0], second.units.allies.x[:, 1])


def test_new_units_stand_apart_and_are_sorted():
    battles = EmbeddedBattles(find("2s3z"), 50, Rules())
    battles.reset(1)
    allies = battles.units.allies
    dist = np.hypot(allies.x[:, None] - allies.x, allies.y[:, None] - allies.y)
    dist[np.arange(5), np.arange(5)] = 9
    assert dist.min() > 0.6
    assert (np.diff(allies.x[:2], axis=0) >= 0).all() and (np.diff(allies.x[2:], axis=0) >= 0).all()
    assert np.abs(allies.x - 9).max() < 2 and np.abs(battles.units.enemies.x - 23).max() < 2


@settings(max_examples=6, deadline=None)
@given(name=st.sampled_from(["3m", "3s5z"]), seed=st.integers(0, 2**32), gap=st.floats(2, 9))
def test_a_mirrored_battle_with_mirrored_orders_is_fair(name, seed, gap):
    battles, rng = EmbeddedBattles(find(name), 1, replace(CALM, chase=99.0)), np.random.default_rng(seed)
    battles.reset(0)
    state, n = battles._state, len(find(name).ally_kinds)
    part = rng.uniform(0.2, 1.0, n)
    for team, side in ((slice(0, n), -1), (slice(n, None), 1)):
        state.x[team, 0], state.y[team, 0] = 16 + side * gap / 2, 10 + 1.5 * np.arange(n)
        state.health[team, 0] = np.floor(battles._tables.health[team, 0] * part)
    battles._order(np.arange(6, 6 + n, dtype=np.int32)[:, None])
    for _ in range(80):
        alive = state.health[:n, 0] > 0
        state.target[n:, 0] = np.where(alive, np.arange(n), -1)
        battles._loop(battles._tables.period)
        for ours, theirs in ((state.health[:n], state.health[n:]), (state.shield[:n], state.shield[n:])):
            assert ours == pytest.approx(theirs)
        both = state.health[:n] > 0
        assert (state.x[:n] - 16)[both] == pytest.approx(-(state.x[n:] - 16)[both], abs=1e-3)
    assert (state.health[:n] < battles._tables.health[:n]).all()


def test_dead_units_are_inert():
    env = EmbeddedSmac(find("3m"), SmacOptions(), 1)
    env.reset(0)
    arrays = {key: array.copy() for key, array in env.save().items()}
    arrays["health"][[0, 3]] = 0
    arrays["x"][[0, 3], 0] = env._engine._tables.grave[[0, 3], 0]
    env.load(arrays)
    for _ in range(10):
        moved = env.step((np.array([[0], [1], [1]], np.int32),))
        assert moved.frame.masks[0][0, 0].tolist() == [True, *[False] * 8]
        assert not moved.frame.state[0, :4].any() and not moved.frame.state[0, 12:15].any()
        assert not moved.frame.masks[0][:, 0, 6].any()


def test_a_broken_save_changes_nothing():
    env = EmbeddedSmac(find("3m"), SmacOptions(), 2)
    env.reset(0)
    good = env.save()
    for name, value, message in (
        ("health", 46.0, "health holds numbers outside"),
        ("target", 3, "target names units"),
        ("steps", 60, "steps holds numbers outside 0 to 59"),
        ("last_action", 9, "last_action"),
        ("x", 1e6, "x is outside the map"),
    ):
        with pytest.raises(CorruptError, match=message):
            env.load({**good, name: np.full_like(good[name], value)})
    assert all(np.array_equal(array, good[name]) for name, array in env.save().items())


def test_names_and_options_of_jobs():
    env = registry.make("smac/8m", {"reward_sparse": True}, 2)
    assert (env.spaces.classes[0].obs_size, env.spaces.state_size, env.spaces.classes[0].action.n) == (80, 168, 14)
    assert (env.spaces.max_steps, env.spaces.wins, env.spaces.team_reward, env.spaces.masks) == (120, True, True, True)
    with pytest.raises(SpecError, match="unknown environment 'smac/8n'; did you mean 'smac/"):
        registry.make("smac/8n", {}, 1)
    with pytest.raises(SpecError, match="environment smac/8m: reward_win must be a number"):
        registry.make("smac/8m", {"reward_win": "much"}, 1)
    with pytest.raises(SpecError, match="obs_own_health must be true or false, got 3"):
        registry.make("smac/8m", {"obs_own_health": 3}, 1)
