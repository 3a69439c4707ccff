"""The Gymnasium adapter: step for step what Gymnasium itself plays, and a sentence for each thing that is wrong."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gymnasium_spaces

from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs import registry
from marless.learning.envs.base import Box, Discrete, random_actions
from marless.learning.envs.contract import check_env
from marless.learning.envs.gymnasium.calls import pixels
from marless.learning.envs.replayed import EpisodeLog
from tests.unit.learning.envs.gymnasium_cases import NAME, Masked, Medley


@pytest.fixture(autouse=True)
def _allowed(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "tests")


def make(name, options=None, batch=1):
    return registry.make(f"gymnasium/{name}" if ":" not in name else name, options or {}, batch)


def played(env, steps, seed):
    """The transitions of random actions, as copies of their arrays, and the actions."""
    rng, frame, seen = np.random.default_rng(seed), env.reset(seed), []
    first = frame.obs[0].copy()
    for _ in range(steps):
        actions = random_actions(env.spaces, frame, rng)
        step = env.step(actions)
        arrays = (step.frame.obs[0], step.final.obs[0], step.rewards[0], step.terminated[0], step.truncated)
        seen.append((actions[0].copy(), *(array.copy() for array in arrays)))
        frame = step.frame
    return first, seen


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("CartPole-v1", {}, 60),
        ("CartPole-v1", {"max_episode_steps": 7}, 20),
        ("Acrobot-v1", {"max_episode_steps": 9}, 20),
        ("Pendulum-v1", {}, 210),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.01, "max_episode_steps": 5}, 12),
        ("FrozenLake-v1", {"is_slippery": False}, 40),
        ("Taxi-v4", {}, 30),
        ("Blackjack-v1", {}, 30),
        ("LunarLander-v3", {"enable_wind": True}, 200),
        ("Hopper-v5", {"frame_skip": 2}, 40),
    ],
)
def test_every_copy_plays_what_gymnasium_plays(name, options, steps):
    copies, seed = 2, 5
    env = make(name, options, copies)
    first, seen = played(env, steps, seed)
    log = EpisodeLog(env.spaces.classes, copies)
    log.begin(seed)
    own = [gymnasium.make(name, **options) for _ in range(copies)]
    shown = [own[b].reset(seed=log.seed(b))[0] for b in range(copies)]
    for b in range(copies):
        np.testing.assert_array_equal(first[0, b], flat(own[b], shown[b]))
    for action, obs, final, reward, terminated, truncated in seen:
        ended = np.zeros(copies, np.bool_)
        for b in range(copies):
            given = action[0, b] if isinstance(env.spaces.classes[0].action, Box) else int(action[0, b])
            expected, earned, over, cut, _ = own[b].step(given)
            np.testing.assert_array_equal(final[0, b], flat(own[b], expected))
            assert (reward[0, b], terminated[0, b], truncated[b]) == (earned, over, cut and not over)
            ended[b] = over or cut
        log.add((action,), ended)
        for b in np.flatnonzero(ended):
            expected, _ = own[b].reset(seed=log.seed(b))
            np.testing.assert_array_equal(obs[0, b], flat(own[b], expected))
        going_on = ~ended
        np.testing.assert_array_equal(obs[0, going_on], final[0, going_on])


def flat(env, observation):
    return gymnasium_spaces.flatten(env.observation_space, observation).astype(np.float32)


def test_parts_of_every_kind_are_written_in_the_order_of_their_space():
    env = make(f"{NAME}:Medley")
    assert (env.spaces.classes[0].obs_size, env.spaces.state_size, env.spaces.deaths) == (5 + 5 + 4 + 2, 0, False)
    env.reset(3)
    shown = env.step((np.array([[[0.5, 2.0]]], np.float32),)).frame.obs[0][0, 0]
    log = EpisodeLog(env.spaces.classes, 1)
    log.begin(3)
    rng = np.random.default_rng(log.seed(0))
    rng.normal(size=4)  # after the reset
    np.testing.assert_array_equal(shown[:4], (rng.normal(size=4) + 2.5).astype(np.float32))
    # whole [1, -1]; pair (0, [1, 1]), of which 0 is the second of three; dice [1, 1].
    np.testing.assert_array_equal(shown[4:], [1, -1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("action", "space", "given", "received"),
    [
        ("discrete", Discrete(3), 2, 7),
        ("dice", Discrete(6), 4, [1, 1]),
        ("bits", Discrete(4), 2, [1, 0]),
        ("box", Box((-1.0, 0.0), (1.0, np.inf)), [-7.0, 3.0], [-1.0, 3.0]),
    ],
)
def test_actions_arrive_in_their_space(action, space, given, received):
    env = make(f"{NAME}:Medley", {"action": action})
    assert env.spaces.classes[0].action == space
    env.reset(0)
    env.step((np.array([[given]], np.float32 if action == "box" else np.int32),))
    inner = env._envs[0].unwrapped
    np.testing.assert_array_equal(inner.received[-1], received)
    assert inner.action_space.contains(inner.received[-1])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("tuple", "action space Tuple(Discrete(2), Discrete(2)) is not supported; known: Discrete"),
        ("many", "has 4,913 combinations, each of which is an action; at most 4,096 are supported"),
    ],
)
def test_actions_that_no_policy_chooses_are_refused(action, message):
    with pytest.raises(SpecError) as refused:
        make(f"{NAME}:Medley", {"action": action})
    assert message in str(refused.value)


def test_a_time_limit_truncates_and_an_end_at_the_same_time_terminates():
    env = make(f"{NAME}:cases/Medley-v0")
    assert env.spaces.max_steps == 3  # while the environment terminates in step 4
    _, seen = played(env, 3, 0)
    assert [(step[4][0, 0], step[5][0]) for step in seen] == [(False, False), (False, False), (False, True)]
    both = make(f"{NAME}:Medley", {"ends": 3, "max_episode_steps": 3})
    _, seen = played(both, 3, 0)
    assert (seen[-1][4][0, 0], seen[-1][5][0]) == (True, False)
    assert (seen[-1][2] != seen[-1][1]).any()  # what is bootstrapped from is not the next episode


def test_a_mask_of_infos_is_taken_until_no_action_is_left():
    env = make(f"{NAME}:Masked")
    frame = env.reset(0)
    shown = [frame.masks[0][0, 0].tolist()]
    for _ in range(3):
        shown.append(env.step((np.zeros((1, 1), np.int32),)).frame.masks[0][0, 0].tolist())
    assert shown == [[True] * 3, [False, True, True], [False, False, True], [True, False, False]]
    assert env.without_choice == {"agent_0"}
    assert Masked.__name__ not in env.spaces.masked_by and "action_mask" in env.spaces.masked_by


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("CartPole-v1", {"max_episode_steps": 13}, 40),
        ("Pendulum-v1", {"max_episode_steps": 13}, 30),
        ("LunarLander-v3", {"max_episode_steps": 25}, 60),
        ("Taxi-v4", {"max_episode_steps": 9}, 20),
        (f"{NAME}:Medley", {"max_episode_steps": 3}, 12),
        (f"{NAME}:Masked", {}, 12),
        (
            "Pendulum-v1",
            {
                "max_episode_steps": 11,
                "wrappers": [
                    {"name": "RescaleAction", "min_action": -1, "max_action": [1]},
                    {"name": "StickyAction", "repeat_action_probability": 0.3},
                    {"name": "FrameStackObservation", "stack_size": 3},
                    "FlattenObservation",
                    {"name": "ClipReward", "min_reward": -1},
                ],
            },
            30,
        ),
        ("CartPole-v1", {"wrappers": [{"name": "RepeatAction", "num_repeats": 3}]}, 30),
    ],
)
def test_environments_keep_the_contract_and_go_on_where_they_were_saved(name, options, steps):
    check_env(lambda batch: make(name, options, batch), steps=steps)


def test_wrappers_are_applied_from_the_first_to_the_last():
    stack, time = {"name": "FrameStackObservation", "stack_size": 2}, "TimeAwareObservation"
    env = make("Pendulum-v1", {"wrappers": [{"name": "DiscretizeAction", "bins": 5}, stack, time]})
    # Two times the 3 numbers, and one of the time; the other way round, the time is in both.
    assert (env.spaces.classes[0].action, env.spaces.classes[0].obs_size) == (Discrete(5), 7)
    clipped = make("CartPole-v1", {"wrappers": [{"name": "ClipReward", "max_reward": 0.25}]})
    _, seen = played(clipped, 5, 0)
    assert {step[3][0, 0] for step in seen} == {0.25}
    skipping = make("Pendulum-v1", {"wrappers": [{"name": "RepeatAction", "num_repeats": 3}]})
    assert skipping.spaces.max_steps is None  # it takes a third of Pendulum's 200


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v7", "unknown environment of Gymnasium 'CartPole-v7'; the newest version is 'CartPole-v1'"),
        ("cartpole-v1", "did you mean 'CartPole-v1'?"),
        ("Hopper-v2", "Hopper-v2 is no longer part of Gymnasium; use Hopper-v5"),
        ("GymV26Environment-v0", "GymV26Environment-v0 is no longer part of Gymnasium"),
        ("os:system", "module 'os' is not allowed, because importing it runs its code"),
        ("testsuite:Env-v0", "module 'testsuite' is not allowed"),
        ("../x:y", "module '../x' is not allowed"),
        (f"{NAME}:cases/None-v0", "neither registers 'cases/None-v0' nor defines it"),
        (f"{NAME}:np", "gymnasium_cases:np builds no environment"),
        (f"{NAME}:__name__", "neither registers '__name__' nor defines it"),
        (f"{NAME}:not_an_env", "The environment must inherit from the gymnasium.Env class"),
        ("tests.nowhere:Env", "module 'tests.nowhere' cannot be imported: No module named 'tests.nowhere'"),
        (f"{NAME}:Unseeded", "its reset() takes no seed, as in an old API"),
    ],
)
def test_names_that_may_not_be_made_are_refused_in_a_sentence(name, message):
    with pytest.raises(SpecError) as refused:
        registry.make(name if name.startswith("gymnasium/") else f"gymnasium/{name}", {}, 1)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sutton": True}, "unknown option 'sutton'; known: max_episode_steps, sutton_barto_reward, wrappers"),
        ({"render_mode": "human"}, "render_mode is no option: films set it; leave it out"),
        ({"id": "Pendulum-v1"}, "id is no option: it is the environment's name"),
        ({"max_episode_steps": 0}, "max_episode_steps must be a whole number from 1 to 1,000,000, got 0"),
        ({"max_episode_steps": True}, "got True"),
        ({"wrappers": "ClipReward"}, "wrappers must be a list"),
        ({"wrappers": [{"min_reward": 1}]}, "a wrapper is a name, or a mapping with one and its arguments"),
        ({"wrappers": ["ClipReword"]}, "unknown wrapper 'ClipReword'; did you mean 'ClipReward'?"),
        ({"wrappers": ["RecordVideo"]}, "wrapper RecordVideo is not supported; films are made by"),
        ({"wrappers": ["TransformReward"]}, "unknown wrapper 'TransformReward'"),
        ({"wrappers": [{"name": "ClipReward", "min": 1}]}, "unknown argument of ClipReward 'min'"),
        ({"wrappers": [{"name": "StickyAction"}]}, "wrapper StickyAction needs repeat_action_probability"),
        ({"wrappers": ["ClipAction"]}, "wrapper ClipAction cannot be applied: TypeError: ClipAction requires a Box"),
    ],
)
def test_options_that_do_not_fit_are_refused_in_a_sentence(options, message):
    with pytest.raises(SpecError) as refused:
        make("CartPole-v1", options)
    assert message in str(refused.value)


@pytest.mark.parametrize("option", ["xml_file", "model_path"])
def test_an_option_that_names_a_file_is_refused_before_it_is_read(option):
    with pytest.raises(SpecError, match=f"option '{option}' is not allowed: it names a file"):
        make("Hopper-v5", {option: "/etc/passwd"})


def test_an_environment_of_another_package_needs_permission(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "")
    with pytest.raises(SpecError) as refused:
        make("cases/Medley-v0")
    assert "which is not allowed, because it runs that module's code" in str(refused.value)
    assert f"{ENV_MODULES}=tests" in str(refused.value)
    # One that replaces an id of Gymnasium's is another package's, too.
    mine = gymnasium.envs.registration.EnvSpec("CartPole-v1", entry_point=f"{Medley.__module__}:Medley")
    monkeypatch.setitem(gymnasium.registry, "CartPole-v1", mine)
    with pytest.raises(SpecError, match="CartPole-v1 is an environment of the module 'tests"):
        make("CartPole-v1")


def test_what_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(SpecError, match=r"needs 'jax', which is not installed: pip install 'gymnasium\[jax\]'"):
        make("phys2d/CartPole-v1")
    with pytest.raises(SpecError, match=r"need ale_py, which is not installed: pip install 'gymnasium\[atari\]'"):
        make("ALE/Pong-v5")


def test_old_versions_are_made_with_a_note():
    assert make("Pendulum-v1").spaces.notes == ()
    assert make("CartPole-v0").spaces.notes == ("CartPole-v0 is out of date; the newest version is CartPole-v1",)


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("nan", "copy 1 at step 3 of its episode observes NaN or infinite values"),
        ("huge", "copy 1 at step 3 of its episode observes numbers beyond ±3.4e38, the largest of float32"),
        ("size", "copy 1 at step 3 of its episode observes an array float64[3], its space is Box"),
        ("inf_reward", "copy 1 at step 3 of its episode has reward inf"),
        ("two_rewards", "copy 1 at step 3 of its episode has reward"),
        ("no_flag", "its step() of copy 1 at step 3 of its episode answers None as terminated"),
        ("four", "its step() of copy 1 at step 3 of its episode answers 4 values; expected are five"),
        ("raises", "its step() of copy 1 at step 3 of its episode raises IndexError"),
        ("mask", "copy 1 at step 3 of its episode has 'action_mask' in its info, but no agent had one"),
    ],
)
def test_what_a_step_answers_is_checked(way, message):
    env = make(f"{NAME}:Wrong", {"way": way}, batch=2)
    env._envs[0].unwrapped.at = 99
    env.reset(0)
    idle = (np.zeros((1, 2), np.int32),)
    env.step(idle)
    env.step(idle)
    with pytest.raises(SpecError) as refused:
        env.step(idle)
    assert message in str(refused.value)


def test_spaces_must_stay_the_same():
    env = make(f"{NAME}:Wrong", {"way": "other_space"})
    with pytest.raises(SpecError, match=r"its observation_space of copy 0 after a reset is .*, and was "):
        env.reset(0)


def test_a_reset_in_the_old_way_is_refused():
    with pytest.raises(SpecError, match=r"its reset\(\) answers .*; expected are two: \(observation, info\)"):
        make(f"{NAME}:Wrong", {"way": "reset_alone"})


def test_a_close_that_raises_is_told_once():
    env = make(f"{NAME}:Wrong", {"way": "close"}, batch=2)
    with pytest.raises(SpecError, match=r"its close\(\) raises OSError: no door"):
        env.close()
    env.close()


def test_an_episode_that_depends_on_those_before_it_is_not_carried():
    """BipedalWalker keeps its world: after a truncation, the same seed gives another episode."""
    assert make("BipedalWalker-v3").spaces.fresh_only == (
        "BipedalWalker-v3 cannot play an episode again: it keeps its physics over episodes"
    )
    assert make("LunarLander-v3").spaces.fresh_only == ""


def test_a_picture_that_cannot_be_drawn_is_explained():
    class Blind:
        def render(self):
            raise OSError("no display")

    with pytest.raises(SpecError, match=r"cannot draw itself: OSError: no display\. .* MUJOCO_GL=egl may help"):
        pixels(Blind())
