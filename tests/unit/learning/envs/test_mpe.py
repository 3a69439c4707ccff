"""The particle games against mpe2, step by step in float64, and against rewards worked out by hand."""

import importlib

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.data.rollout import play
from marless.learning.envs import registry
from marless.learning.envs.base import Discrete, random_actions
from marless.learning.envs.mpe import hunting, moving, speaking
from marless.learning.envs.mpe.moving import SimpleSpread, SpreadOptions
from marless.learning.envs.mpe.options import ParticleOptions

TOLERANCE = 1e-12
THEIR_NAMES = {"agents": "N"}
"""mpe2's names of options that have another name here."""


def pair(game, **options):
    """mpe2's environment and ours, with float64 observations."""
    module, env, options_type = {
        "simple": ("simple_v3", moving.Simple, ParticleOptions),
        "adversary": ("simple_adversary_v3", moving.SimpleAdversary, moving.AdversaryOptions),
        "crypto": ("simple_crypto_v3", speaking.SimpleCrypto, ParticleOptions),
        "push": ("simple_push_v3", moving.SimplePush, ParticleOptions),
        "reference": ("simple_reference_v3", speaking.SimpleReference, speaking.ReferenceOptions),
        "speaker_listener": (
            "simple_speaker_listener_v4",
            speaking.SimpleSpeakerListener,
            ParticleOptions,
        ),
        "spread": ("simple_spread_v3", moving.SimpleSpread, moving.SpreadOptions),
        "tag": ("simple_tag_v3", hunting.SimpleTag, hunting.TagOptions),
        "world_comm": ("simple_world_comm_v3", hunting.SimpleWorldComm, hunting.WorldCommOptions),
    }[game]
    renamed = {THEIR_NAMES.get(name, name): value for name, value in options.items()}
    if "prey_speed" in options:
        # mpe2 1.1.1 stays at this stage: `BaseScenario.curriculum_stage` is a property whose setter does nothing.
        assert renamed.pop("prey_speed") == 0.5
        renamed["curriculum"] = True
    theirs = importlib.import_module(f"mpe2.{module}").parallel_env(**renamed)
    return theirs, env(options_type(**options), 1, np.float64)


def random_action(ours, obs, rng):
    """Out of range now and then, if continuous: both sides clip."""
    spaces = [c.action for c in ours.spaces.classes for _ in c.agents]
    if isinstance(spaces[0], Discrete):
        return [int(rng.integers(space.n)) for space in spaces]
    return [rng.uniform(-0.2, 1.2, space.n).astype(np.float32) for space in spaces]


def huddle(ours, obs, rng):
    """Every agent walks towards the mean of the entities it can touch, mostly along the axis of greatest distance."""
    actions = []
    for rel_M2B, vel_2B, reach_M1 in zip(ours._rel_NM2B, ours._vel_N2B, ours._reach_NM1, strict=True):
        away = rel_M2B[reach_M1[:, 0] > 0, :, 0].mean(axis=0) - 0.5 * vel_2B[:, 0]
        axis = int(abs(away[1]) > abs(away[0]))
        actions.append(1 + 2 * axis + int(away[axis] > 0) if rng.random() < 0.9 else int(rng.integers(5)))
    return actions


def overlaps(world):
    """How many pairs of entities that can push one another overlap."""
    firm = [entity for entity in world.entities if entity.collide]
    return sum(
        np.linalg.norm(a.state.p_pos - b.state.p_pos) < a.size + b.size
        for i, a in enumerate(firm)
        for b in firm[:i]
        if a.movable or b.movable
    )


def by_class(spaces, rows):
    rows, split = iter(rows), []
    for c in spaces.classes:
        split.append(np.stack([np.asarray(next(rows)) for _ in c.agents])[:, None])
    return tuple(split)


def compare(theirs, ours, seed, act):
    """Play an episode; returns the number of touches over all steps, and of steps."""
    rng = np.random.default_rng(seed)
    raw = theirs.aec_env.unwrapped
    theirs.reset(seed=seed)
    frame = ours.reset(seed)
    contacts, steps, done = 0, 0, False
    while not done:
        seen = [raw.scenario.observation(agent, raw.world) for agent in raw.world.agents]
        mine = [row[0] for obs in frame.obs for row in obs]
        assert max(np.abs(a - b).max() for a, b in zip(seen, mine, strict=True)) <= TOLERANCE
        assert np.array_equal(np.concatenate(mine), frame.state[0])
        actions = act(ours, mine, rng)
        _, rewards, terminated, truncated, _ = theirs.step(dict(zip(raw.possible_agents, actions, strict=True)))
        step = ours.step(by_class(ours.spaces, actions))
        gained = [reward for rows in step.rewards for reward in rows[:, 0]]
        assert np.abs(np.array(gained) - list(rewards.values())).max() <= TOLERANCE
        assert [t for rows in step.terminated for t in rows[:, 0]] == list(terminated.values())
        assert step.truncated.tolist() == [all(truncated.values())]
        done = not theirs.agents
        assert step.ended.tolist() == [done]
        final = [raw.scenario.observation(agent, raw.world) for agent in raw.world.agents]
        last = [row[0] for obs in step.final.obs for row in obs]
        assert max(np.abs(a - b).max() for a, b in zip(final, last, strict=True)) <= TOLERANCE
        contacts += overlaps(raw.world)
        frame, steps = step.frame, steps + 1
    # The next episode draws on from the same generator, on both sides.
    theirs.aec_env.reset()
    fresh = [raw.scenario.observation(agent, raw.world) for agent in raw.world.agents]
    assert all(np.array_equal(a, row[0]) for a, row in zip(fresh, [r for o in frame.obs for r in o], strict=True))
    return contacts, steps


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("simple", {}),
        ("adversary", {}),
        ("adversary", {"agents": 5}),
        ("crypto", {}),
        ("push", {}),
        ("reference", {}),
        ("reference", {"local_ratio": 0.2}),
        ("speaker_listener", {}),
        ("spread", {"local_ratio": 0.0}),
        ("spread", {"agents": 1}),
        ("spread", {"curriculum": True, "local_ratio": 0.8}),
        ("spread", {"agents": 6, "local_ratio": 0.3, "max_cycles": 9}),
        ("tag", {}),
        ("tag", {"num_good": 3, "num_adversaries": 2, "num_obstacles": 4}),
        ("tag", {"num_good": 2, "num_adversaries": 1, "num_obstacles": 0}),
        ("adversary", {"agents": 3, "num_agent_neighbors": 2, "num_landmark_neighbors": 4}),
        ("spread", {"agents": 4, "num_agent_neighbors": 2}),
        ("spread", {"agents": 2, "num_agent_neighbors": 3, "num_landmark_neighbors": 1}),
        ("tag", {"num_good": 2, "num_agent_neighbors": 2, "num_landmark_neighbors": 1}),
        ("tag", {"num_obstacles": 0, "num_adversaries": 1, "num_agent_neighbors": 3, "num_landmark_neighbors": 1}),
        ("world_comm", {}),
        ("world_comm", {"num_good": 1, "num_adversaries": 3, "num_obstacles": 2, "num_food": 3, "num_forests": 5}),
        ("world_comm", {"num_good": 3, "num_adversaries": 1, "num_food": 1, "num_forests": 0, "num_obstacles": 0}),
    ],
)
def test_equals_mpe2(game, options, continuous):
    theirs, ours = pair(game, continuous_actions=continuous, **options)
    for seed in range(2):
        assert compare(theirs, ours, seed, random_action)[1] == options.get("max_cycles", 25)
    assert list(ours.spaces.agents) == theirs.possible_agents
    assert {a: ours.spaces.class_of(a).action.n for a in ours.spaces.agents} == {
        a: (space.shape[0] if continuous else space.n) for a, space in theirs.aec_env.unwrapped.action_spaces.items()
    }


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("spread", {"agents": 2, "local_ratio": 1.0}),
        ("spread", {"agents": 6, "local_ratio": 1.0}),
        ("spread", {"agents": 4, "curriculum": True}),
        ("push", {}),
        ("tag", {"num_good": 2, "num_obstacles": 1}),
        ("world_comm", {}),
    ],
)
def test_equals_mpe2_in_close_contact(game, options):
    theirs, ours = pair(game, max_cycles=60, **options)
    assert sum(compare(theirs, ours, seed, huddle)[0] for seed in range(3)) > 30


@pytest.mark.parametrize("good", [1, 2])
def test_tag_with_slow_prey_ends_when_all_are_caught_as_in_mpe2(good):
    many = {"num_good": good, "num_adversaries": 4, "num_obstacles": 0}
    theirs, ours = pair("tag", prey_speed=0.5, terminate_on_success=True, max_cycles=60, **many)
    assert [compare(theirs, ours, seed, huddle)[1] < 60 for seed in range(3)] == [True] * 3


def test_spread_ends_when_all_landmarks_are_covered_as_in_mpe2():
    theirs, ours = pair("spread", agents=1, terminate_on_success=True, max_cycles=60)

    def walk(ours, obs, rng):
        away = ours._rel_NM2B[0, 0, :, 0] - 0.5 * ours._vel_N2B[0, :, 0]
        axis = int(abs(away[1]) > abs(away[0]))
        return [1 + 2 * axis + int(away[axis] > 0)]

    assert [compare(theirs, ours, seed, walk)[1] < 60 for seed in range(3)] == [True] * 3


def test_copies_that_end_early_start_again_and_leave_the_others_be():
    env = SimpleSpread(SpreadOptions(agents=1, terminate_on_success=True, max_cycles=5), 3)
    env.reset(0)
    env._agents_N2B[0, :, 1] = env._marks_M2B[0, :, 1]
    before = env._pos_E2B.copy()
    step = env.step((np.zeros((1, 3), np.int32),))
    assert step.ended.tolist() == step.terminated[0][0].tolist() == [False, True, False]
    assert not step.truncated.any()
    assert np.array_equal(before[:, :, [0, 2]], env._pos_E2B[:, :, [0, 2]])
    assert not np.isclose(before[:, :, 1], env._pos_E2B[:, :, 1]).any()
    assert np.array_equal(step.final.obs[0][0, 1, 4:], [0, 0])
    ends = [env.step((np.zeros((1, 3), np.int32),)).truncated.tolist() for _ in range(5)]
    assert ends == [[False] * 3] * 3 + [[True, False, True], [False, True, False]]


def test_copies_are_independent_and_differ():
    actions = np.random.default_rng(0).integers(5, size=(30, 3, 8)).astype(np.int32)
    env, again = SimpleSpread(SpreadOptions(), 8), SimpleSpread(SpreadOptions(), 8)
    first, same = env.reset(5), again.reset(5)
    assert len(np.unique(first.obs[0][0, :, 2])) == 8
    changed = actions.copy()
    changed[:, :, 3] = (changed[:, :, 3] + 1) % 5
    for t in range(30):
        first, same = env.step((actions[t],)).frame, again.step((changed[t],)).frame
        others = np.arange(8) != 3
        assert np.array_equal(first.obs[0][:, others], same.obs[0][:, others])
        assert not np.array_equal(first.obs[0][:, 3], same.obs[0][:, 3])
        if t == 20:
            break


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(
    ("game", "options"),
    [
        *((f"simple{end}", {}) for end in ("", "_adversary", "_crypto", "_push", "_reference", "_speaker_listener")),
        ("simple_spread", {"num_agent_neighbors": 1, "num_landmark_neighbors": 2}),
        ("simple_tag", {"num_good": 2, "num_agent_neighbors": 2}),
        ("simple_tag", {"num_good": 2}),
        ("simple_world_comm", {}),
    ],
)
def test_a_copy_among_others_equals_a_copy_alone(game, options, continuous):
    options = {**options, "continuous_actions": continuous}
    env, alone = registry.make(f"mpe/{game}", options, 4), registry.make(f"mpe/{game}", options, 1)
    for k in range(4):
        rng = np.random.default_rng(k)
        frame = env.step(random_actions(env.spaces, env.reset(8), rng)).frame  # so that something has been said
        start = env.save()
        loaded = alone.load({name: a if name == "random" else a[..., k : k + 1] for name, a in start.items()})
        for together, single in zip(frame.obs, loaded.obs, strict=True):
            np.testing.assert_array_equal(together[:, k], single[:, 0])
        for _ in range(6):
            actions = random_actions(env.spaces, frame, rng)
            step, mine = env.step(actions), alone.step(tuple(action[:, k : k + 1] for action in actions))
            frame = step.frame
            for together, single in zip((*frame.obs, *step.rewards), (*mine.frame.obs, *mine.rewards), strict=True):
                np.testing.assert_array_equal(together[:, k], single[:, 0])


def test_agents_in_one_place_are_left_be():
    env = SimpleSpread(SpreadOptions(), 1)
    env.reset(0)
    env._agents_N2B[...] = 0.25
    env._look()
    step = env.step((np.zeros((3, 1), np.int32),))
    assert np.isfinite(step.final.obs[0]).all()
    assert step.final.obs[0][:, 0, :4].tolist() == [[0, 0, 0.25, 0.25]] * 3


def test_landmarks_need_not_be_as_many_as_agents():
    for options, sizes in [
        ({"agents": 4, "landmarks": 2}, [4 + 2 * 2 + 4 * 3]),
        ({"agents": 2, "landmarks": 3}, [4 + 6 + 4]),
    ]:
        env = registry.make("mpe/simple_spread", options, 2)
        assert [c.obs_size for c in env.spaces.classes] == sizes
        env.reset(0)
        reward = env.step((np.zeros((options["agents"], 2), np.int32),)).rewards[0]
        assert (reward < 0).all()
    good = registry.spaces("mpe/simple_adversary", {"agents": 3, "landmarks": 2}).classes[1]
    assert good.obs_size == 2 + 2 * 2 + 2 * 3


# Measured with mpe2, 700 to 2,500 episodes each; `error` is three standard errors of that.
@pytest.mark.parametrize(
    ("name", "options", "expected", "error"),
    [
        ("simple_spread", {}, {"agent_0": -26.4}, 0.5),
        ("simple_spread", {"agents": 6}, {"agent_0": -38.7}, 0.9),
        ("simple_adversary", {}, {"adversary_0": -27.6, "agent_1": 7.0}, 1.0),
        ("simple_adversary", {"agents": 5}, {"adversary_0": -28.2, "agent_4": 14.8}, 1.0),
    ],
)
def test_random_play_scores_what_it_scores_in_mpe2(name, options, expected, error):
    stats = play(registry.make(f"mpe/{name}", options, 250), None, episodes=10_000, seed=0)
    for agent, mean in expected.items():
        assert abs(stats.return_sum[agent] / stats.episodes - mean) < error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": 3}, "did you mean 'agents'"),
        ({"agents": 0}, "agents must be a whole number of at least 1, got 0"),
        ({"agents": True}, "agents must be a whole number"),
        ({"agents": 2.0}, "agents must be a whole number"),
        ({"landmarks": 0}, "landmarks must be"),
        ({"max_cycles": None}, "max_cycles must be"),
        ({"local_ratio": 1.5}, "local_ratio must be a number from 0 to 1, got 1.5"),
        ({"local_ratio": "half"}, "local_ratio must be"),
        ({"continuous_actions": 1}, "continuous_actions must be true or false"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(SpecError, match=message) as caught:
        registry.make("mpe/simple_spread", options, 1)
    assert str(caught.value).startswith("environment mpe/simple_spread: ")


@pytest.mark.parametrize(
    ("game", "options", "message"),
    [
        ("simple", {"agents": 2}, "unknown option 'agents'"),
        ("simple_reference", {"local_ratio": -0.1}, "local_ratio must be a number from 0 to 1"),
        ("simple_tag", {"num_good": 0}, "num_good must be a whole number of at least 1, got 0"),
        ("simple_tag", {"num_obstacles": -1}, "num_obstacles must be a whole number of at least 0, got -1"),
        ("simple_tag", {"num_good": 600, "num_adversaries": 600}, r"num_good \+ num_adversaries may be 1,024 at most"),
        ("simple_tag", {"num_agent_neighbors": 0}, "num_agent_neighbors must be a whole number of at least 1, got 0"),
        ("simple_spread", {"num_landmark_neighbors": 1.0}, "num_landmark_neighbors must be a whole number"),
        ("simple_tag", {"prey_speed": 2}, "prey_speed must be a number from 0 to 1"),
        ("simple_spread", {"curriculum": 0}, "curriculum must be true or false"),
        ("simple_tag", {"terminate_on_success": "yes"}, "terminate_on_success must be true or false"),
        ("simple_world_comm", {"num_food": 0}, "num_food must be a whole number of at least 1, got 0"),
        ("simple_world_comm", {"num_forests": 1.5}, "num_forests must be a whole number of at least 0, got 1.5"),
        ("simple_tag_v3", {}, "did you mean 'mpe/simple_tag'"),
    ],
)
def test_options_of_the_other_games_that_cannot_work_are_refused(game, options, message):
    with pytest.raises(SpecError, match=message):
        registry.make(f"mpe/{game}", options, 1)
