"""Every environment we ship, and the check itself: it must pass what is right and fail each thing that is wrong."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marless.jobs.spec import load
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.envs.contract import check_env
from marless.learning.envs.synthetic import SyntheticEnv
from tests.scripted_env import ScriptedEnv


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mpe/simple_spread", {}),
        ("mpe/simple_spread", {"agents": 1}),
        ("mpe/simple_spread", {"continuous_actions": True}),
        ("mpe/simple_adversary", {"agents": 4, "landmarks": 2}),
        ("mpe/simple", {}),
        ("mpe/simple_crypto", {"continuous_actions": True}),
        ("mpe/simple_push", {}),
        ("mpe/simple_reference", {}),
        ("mpe/simple_reference", {"continuous_actions": True}),
        ("mpe/simple_speaker_listener", {}),
        ("mpe/simple_speaker_listener", {"continuous_actions": True}),
        ("mpe/simple_tag", {"num_good": 2}),
        ("mpe/simple_tag", {"terminate_on_success": True, "num_adversaries": 9}),
        ("mpe/simple_spread", {"agents": 1, "terminate_on_success": True, "num_agent_neighbors": 2}),
        ("mpe/simple_world_comm", {}),
        ("mpe/simple_world_comm", {"num_adversaries": 1, "num_forests": 0, "continuous_actions": True}),
        ("game/cartpole", {}),
        ("game/cartpole", {"agents": 3}),
        ("game/matrix", {}),
        ("game/matrix", {"payoff": [[1, 0], [0, 2]]}),
        ("game/two_step", {}),
        ("game/target", {"targets": [0.1, 0.2, -0.3]}),
        ("gymnasium/CartPole-v1", {"max_episode_steps": 11}),
        ("gymnasium/Pendulum-v1", {"max_episode_steps": 11}),
        ("pettingzoo/mpe2.simple_spread_v3", {}),
        ("pettingzoo/mpe2.simple_spread_v3", {"terminate_on_success": True, "N": 1}),
        ("pettingzoo/mpe2.simple_speaker_listener_v4", {"continuous_actions": True}),
        ("pettingzoo/pettingzoo.classic.tictactoe_v3", {}),
    ],
)
def test_environment_keeps_the_contract(name, options):
    short = {} if name.startswith(("game/", "gymnasium/", "pettingzoo/pettingzoo.classic")) else {"max_cycles": 7}
    check_env(lambda batch: registry.make(name, options | short, batch), steps=20)


@pytest.mark.parametrize("name", ["multiwalker_v9", "rps_v2", "connect_four_v3", "simple_tag_v3"])
def test_environments_of_pettingzoo_keep_the_contract(name):
    check_env(lambda batch: registry.make(f"pettingzoo/{name}", {}, batch, with_state=False), steps=6)


def test_a_third_partys_environment_keeps_the_contract(monkeypatch):
    monkeypatch.setenv("MARLESS_ENV_MODULES", "cogrid")
    spec = load(Path(__file__).parents[2] / "examples/overcooked.yaml")
    check_env(lambda batch: registry.make(spec.env.name, spec.env.options, batch), steps=8)


@pytest.mark.parametrize("deaths", [True, False])
def test_synthetic_images_keep_the_contract(deaths):
    image = AgentClass("walker", ("a", "b"), 6, Discrete(3), (1, 2, 3))
    check_env(lambda batch: SyntheticEnv(EnvSpaces((image,), 0, 5, deaths=deaths), batch))


def test_images_of_another_size_or_dtype_break_the_contract():
    class Floats(SyntheticEnv):
        def reset(self, seed):
            frame = super().reset(seed)
            return replace(frame, obs=(frame.obs[0].astype(np.float32),))

    image = AgentClass("walker", ("a", "b"), 6, Discrete(3), (1, 2, 3))
    with pytest.raises(AssertionError, match=r"obs of walker is float32\[2, 1, 6\], must be uint8\[2, 1, 6\]"):
        check_env(lambda batch: Floats(EnvSpaces((image,), 0, 5), batch))
    with pytest.raises(AssertionError, match=r"walker: obs_size is 6, an image \(1, 2, 2\) has 4"):
        check_env(lambda batch: SyntheticEnv(EnvSpaces((replace(image, image=(1, 2, 2)),), 0, 5), batch))


def test_the_scripted_environment_keeps_the_contract():
    check_env(ScriptedEnv)


def step_with(**changes):
    """An environment that misreports: each change maps the honest transition to one field's false value."""

    class Broken(ScriptedEnv):
        def step(self, actions):
            honest = super().step(actions)
            return replace(honest, **{field: change(honest) for field, change in changes.items()})

    return Broken


def spaces_with(**changes):
    class Broken(ScriptedEnv):
        def __init__(self, batch):
            super().__init__(batch)
            self.spaces = replace(self.spaces, **changes)

    return Broken


def winning(**changes):
    class Won(step_with(**changes)):
        def __init__(self, batch):
            super().__init__(batch)
            self.spaces = replace(self.spaces, wins=True)

    return Won


class Unseeded(ScriptedEnv):
    draws = np.random.default_rng(0)

    def step(self, actions):
        honest = super().step(actions)
        return replace(honest, rewards=(honest.rewards[0] * self.draws.random(dtype=np.float32),))


class Forgetful(ScriptedEnv):
    def reset(self, seed):
        old = getattr(self, "_episode", 0)
        super().reset(seed)
        self._episode += old
        return self._show(self._frames[0])


class Meddling(ScriptedEnv):
    def step(self, actions):
        actions[0][...] = 0
        return super().step(actions)


def seen(frame, **changes):
    return replace(frame, **{field: (change(getattr(frame, field)[0]),) for field, change in changes.items()})


def both(**changes):
    return step_with(frame=lambda s: seen(s.frame, **changes), final=lambda s: seen(s.final, **changes))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Unseeded, "two environments with one seed part ways"),
        (Forgetful, "a second reset with the same seed"),
        (Meddling, "changed the actions"),
        (step_with(rewards=lambda s: (s.rewards[0] + 1,)), "absent walker was rewarded"),
        (step_with(rewards=lambda s: (s.rewards[0] / np.float32("inf") * np.float32("nan"),)), "NaN"),
        (step_with(rewards=lambda s: (s.rewards[0].astype(int),)), "reward of walker is int64"),
        (step_with(terminated=lambda s: (s.terminated[0] | True,)), "terminated"),
        (step_with(truncated=lambda s: s.truncated & False), "ended must mean truncated, or every agent gone"),
        (step_with(ended=lambda s: s.ended & False), "frame and final differ in a copy whose episode goes on"),
        (step_with(final=lambda s: s.frame), "an agent that terminated is still alive"),
        (both(obs=lambda o: o + 1), "an absent walker sees something"),
        (step_with(frame=lambda s: seen(s.frame, obs=lambda o: o * 2)), "frame and final differ"),
        (step_with(frame=lambda s: seen(s.frame, obs=lambda o: o.astype(float))), "must be float32"),
        (step_with(frame=lambda s: seen(s.frame, masks=lambda m: m & False)), "no legal action"),
        (both(alive=lambda a: a | True), "still alive"),
        (spaces_with(state_size=0), "state and state_size disagree"),
        (spaces_with(state_size=2), "must be float32.1, 2"),
        (spaces_with(masks=False), "masks and spaces.masks disagree"),
        (spaces_with(deaths=False), "alive and spaces.deaths disagree"),
        (spaces_with(wins=True), "won and spaces.wins disagree"),
        (step_with(won=lambda s: s.ended), "won and spaces.wins disagree"),
        (winning(won=lambda s: s.ended[:0]), "won is bool.0., must be bool"),
        (winning(won=lambda s: ~s.ended), "an episode was won that has not ended"),
        (spaces_with(max_steps=2), "longer than max_steps=2"),
        (spaces_with(max_steps=4), "truncated before max_steps=4"),
        (spaces_with(classes=ScriptedEnv().spaces.classes * 2), "distinct names"),
    ],
)
def test_a_broken_promise_is_found(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_env(broken)


def test_an_agent_must_not_terminate_early_where_deaths_are_not_declared():
    class Undeclared(ScriptedEnv):
        def __init__(self, batch):
            super().__init__(batch)
            self.spaces = EnvSpaces(self.spaces.classes, state_size=3, max_steps=3, masks=True)

        def reset(self, seed):
            return replace(super().reset(seed), alive=None)

        def step(self, actions):
            honest = super().step(actions)
            hidden = [replace(frame, alive=None) for frame in (honest.frame, honest.final)]
            ended = honest.truncated | honest.terminated[0].all(axis=0)
            return replace(honest, frame=hidden[0], final=hidden[1], ended=ended)

    with pytest.raises(AssertionError, match="terminated in mid-episode"):
        check_env(Undeclared)


class Kept(SyntheticEnv):
    """Keeps its episodes; subclasses do so wrongly."""

    def __init__(self, batch):
        super().__init__(EnvSpaces(ScriptedEnv().spaces.classes, 2, 9, masks=True, deaths=True), batch)


class Amnesiac(Kept):
    def load(self, arrays):
        super().load({**arrays, "steps": np.zeros_like(arrays["steps"])})
        return self._frame


class Reseeded(Kept):
    def load(self, arrays):
        frame = super().load(arrays)
        self._rng = np.random.default_rng(0)
        return frame


class Aliasing(Kept):
    def save(self):
        return {**super().save(), "steps": self._steps_B}


class Blurred(Kept):
    def load(self, arrays):
        frame = super().load(arrays)
        return replace(frame, state=frame.state + 1)


def test_an_environment_that_saves_itself_keeps_the_contract():
    check_env(Kept)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Amnesiac, "saved after step 1 and loaded: the next save is another"),
        (Reseeded, "saved after step 0 and loaded: the next save is another"),
        (Aliasing, "later steps changed the save"),
        (Blurred, "the frame is another"),
    ],
)
def test_a_save_that_does_not_load_is_found(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_env(broken)


def test_hidden_state_that_is_not_saved_is_found():
    class Hidden(Kept):
        """Rewards depend on the steps since its first reset, of which the save knows nothing."""

        total = 0

        def step(self, actions):
            self.total += 1
            honest = super().step(actions)
            return replace(honest, rewards=tuple(each * np.float32(self.total) for each in honest.rewards))

        def reset(self, seed):
            self.total = 0
            return super().reset(seed)

        def load(self, arrays):
            before = self.total
            frame = super().load(arrays)
            self.total = before
            return frame

    with pytest.raises(AssertionError, match="step 0 is another"):
        check_env(Hidden)
