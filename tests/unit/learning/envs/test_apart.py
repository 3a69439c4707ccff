"""Environments that cannot save themselves, kept apart copy by copy: equal to single copies, and saved by actions."""

from dataclasses import fields, replace

import numpy as np
import pytest

from marless.core.errors import SpecError
from marless.learning.data.carry import decode, encode
from marless.learning.data.rollout import Lane
from marless.learning.envs import registry
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces, Frame, Saved, Transition, random_actions
from marless.learning.envs.contract import check_env
from marless.learning.envs.replayed import Apart
from marless.learning.envs.synthetic import SyntheticEnv
from tests.scripted_env import ScriptedEnv
from tests.unit.learning.envs.test_replayed import Chance

WALKERS, SPEAKER = AgentClass("w", ("w_0", "w_1"), 3, Discrete(3)), AgentClass("s", ("s_0",), 2, Box((0.0,), (1.0,)))
BARE = EnvSpaces(classes=(WALKERS, SPEAKER), state_size=0, max_steps=None)
RICH = EnvSpaces((WALKERS, SPEAKER), state_size=2, max_steps=6, masks=True, deaths=True, team_reward=True)


class Unsaved(SyntheticEnv):
    """All that batched environments may have, but no save."""

    save = load = truncate = None


def apart(batch, spaces=RICH, kind=Unsaved):
    return Apart(lambda: kind(spaces, 1), batch)


@pytest.mark.parametrize("spaces", [BARE, RICH])
def test_copies_apart_keep_the_contract(spaces):
    check_env(lambda batch: apart(batch, spaces), steps=25)


def test_copies_apart_have_wins_and_lend_no_arrays():
    check_env(lambda batch: Apart(lambda: registry.make("game/target", {}, 1), batch), steps=6)
    check_env(lambda batch: Apart(lambda: ScriptedEnv(1), batch), steps=9)  # it writes into one array again and again


def test_each_copy_is_an_environment_of_one_copy_with_its_own_seeds():
    together, rng = apart(3), np.random.default_rng(1)
    alone, episodes = [Unsaved(RICH, 1) for _ in range(3)], [0, 0, 0]

    def begun(b):
        seed = int(np.random.SeedSequence((8, b, episodes[b])).generate_state(1)[0] >> 1)
        return alone[b].reset(seed)

    frame, single = together.reset(8), [begun(b) for b in range(3)]
    for _ in range(30):
        actions = random_actions(RICH, frame, rng)
        step = together.step(actions)
        for b, env in enumerate(alone):
            other = env.step(tuple(each[:, [b]] for each in actions))
            for k in range(2):
                assert np.array_equal(step.rewards[k][:, [b]], other.rewards[k])
                assert np.array_equal(step.terminated[k][:, [b]], other.terminated[k])
                assert np.array_equal(step.final.obs[k][:, [b]], other.final.obs[k])
            assert (step.ended[b], step.truncated[b], step.team_reward[b]) == (
                other.ended[0],
                other.truncated[0],
                other.team_reward[0],
            )
            single[b] = other.frame
            if other.ended[0]:
                episodes[b] += 1
                single[b] = begun(b)
            assert np.array_equal(step.frame.masks[0][:, [b]], single[b].masks[0])
            assert np.array_equal(step.frame.alive[1][:, [b]], single[b].alive[1])
            assert np.array_equal(step.frame.state[[b]], single[b].state)
        frame = step.frame
    assert min(episodes) > 2


class Full(Unsaved):
    """Fills in each field of a transition that is optional: won, broken, and the game goes on."""

    def step(self, actions):
        yes = np.ones(self.batch, np.bool_)
        return replace(super().step(actions), won=yes, broken=yes, unfinished=yes)


def test_every_field_of_a_transition_is_that_of_all_copies():
    together = apart(3, kind=Full)
    step = together.step(random_actions(RICH, together.reset(1), np.random.default_rng(1)))
    found = {field.name: getattr(step, field.name) for field in fields(Transition)}
    assert all(value is not None for value in found.values())
    assert all(value.shape == (3,) for name, value in found.items() if isinstance(value, np.ndarray)), found


class Line:
    """One agent that counts its steps, for ever; its generator is `seeded` or not."""

    spaces = EnvSpaces((AgentClass("a", ("a_0",), 1, Discrete(3)),), state_size=1, max_steps=None)

    def __init__(self, batch, seeded=True):
        self.batch, self._seeded = batch, seeded

    def reset(self, seed):
        self._rng = np.random.default_rng(seed if self._seeded else None)
        return self._view()

    def step(self, actions):
        over = np.zeros(self.batch, np.bool_)
        zero = np.zeros((1, self.batch))
        frame = self._view()
        return Transition(frame, frame, (zero + actions[0],), (over[None],), over, over)

    def close(self):
        pass

    def _view(self):
        seen = self._rng.random((self.batch, 1), np.float32)
        return Frame(obs=(seen[None],), state=seen)


class Lives(Line):
    """A game of three lives of two steps each; it shows the steps of the game so far."""

    def reset(self, seed):
        self._steps = 0
        return self._view()

    def step(self, actions):
        self._steps += 1
        over = np.array([self._steps % 2 == 0])
        frame = self._view()
        zero, no = np.zeros((1, 1)), np.zeros(1, np.bool_)
        return Transition(frame, frame, (zero + 1,), (over[None],), no, over, unfinished=over & (self._steps < 6))

    def _view(self):
        seen = np.full((1, 1), self._steps, np.float32)
        return Frame(obs=(seen[None],), state=seen)


def test_a_game_goes_on_after_a_life():
    lane = Lane(Apart(lambda: Lives(1), 2))
    lane.begin(0)
    seen, returns = [], []
    for seed in range(3):
        trajectory, stats = lane.roll([Chance()], steps=5, seed=seed, with_state=True, index=0)
        seen += trajectory["obs/0"][:, 0, 0, 0].tolist()
        returns.append((stats.episodes, stats.return_sum["a_0"]))
        there = Lane(Apart(lambda: Lives(1), 2))  # the game is played again in mid-game, lives and all
        there.load(decode(encode(lane.save())))
        lane = there
    assert seen == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert returns == [(0, 0.0), (2, 12.0), (2, 12.0)]


def rolled(lane, seed):
    trajectory, _ = lane.roll([Chance()], steps=5, seed=seed, with_state=True, index=0)
    return {name: array.copy() for name, array in trajectory.arrays.items()}


def test_an_episode_without_an_end_goes_on_elsewhere():
    here, there = (Lane(Apart(lambda: Line(1), 4)) for _ in range(2))
    here.begin(3)
    rolled(here, 0)
    data = encode(here.save())
    there.load(decode(data))
    assert encode(there.save()) == data
    for seed in (1, 2):
        ours, theirs = rolled(here, seed), rolled(there, seed)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_an_environment_without_seeds_is_found():
    with pytest.raises(AssertionError, match="not deterministic under its seed"):
        check_env(lambda batch: Apart(lambda: Line(1, seeded=False), batch))
    lane = Lane(Apart(lambda: Line(1, seeded=False), 2))
    lane.begin(1)
    rolled(lane, 1)
    with pytest.raises(SpecError, match=r"not deterministic .* set actors.episodes: fresh"):
        Lane(Apart(lambda: Line(1, seeded=False), 2)).load(lane.save())


def test_only_environments_without_a_save_are_kept_apart(monkeypatch):
    assert isinstance(
        registry.make_carried("mpe/simple_spread", {}, 2), type(registry.make("mpe/simple_spread", {}, 2))
    )
    made = []
    monkeypatch.setattr(
        registry, "make", lambda *given, with_state: made.append((*given, with_state)) or Line(given[2])
    )
    env = registry.make_carried("line", {"a": 1}, 3, with_state=False)
    assert isinstance(env, Apart)
    assert isinstance(env, Saved)
    assert made == [("line", {"a": 1}, 3, False), *[("line", {"a": 1}, 1, False)] * 3]
