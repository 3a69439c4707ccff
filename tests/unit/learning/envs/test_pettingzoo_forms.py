"""Environments in the forms that people write them: what is harmless is taken, all else is refused in one sentence."""

import os
import subprocess
import sys

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Text
from pettingzoo import ParallelEnv

from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.learning.data.player import EnvKey, _made
from marless.learning.envs import registry
from marless.learning.envs.base import agents_checksum, random_actions


@pytest.fixture(autouse=True)
def _allowed(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "tests.unit.learning.envs.test_pettingzoo_forms")


class Plain(ParallelEnv):
    """Two agents, three steps, reward 1 a step; subclasses change one thing each."""

    metadata = {"name": "plain"}
    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return Box(-1, 1, (4,))

    def action_space(self, agent):
        return Discrete(4)

    def seen(self, agent):
        return np.zeros(4)

    def paid(self, agent):
        return 1.0

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return {a: self.seen(a) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        acted, over = list(self.agents), self.t == 3
        flags = dict.fromkeys(acted, over)
        result = (
            {a: self.seen(a) for a in acted},
            {a: self.paid(a) for a in acted},
            flags,
            dict.fromkeys(acted, False),
            {},
        )
        self.agents = [] if over else self.agents
        return result

    def close(self): ...


class FromSet(Plain):
    """Its agents are in the order of a set, which differs between processes; agent_10 sorts after agent_9."""

    possible_agents = list({f"agent_{i}" for i in range(12)} | {"zebra", "ant"})


class OldReset(Plain):
    def reset(self):
        return super().reset()


class OnlyObservations(Plain):
    def reset(self, seed=None, options=None):
        return super().reset()[0]


class NoInfos(Plain):
    def reset(self, seed=None, options=None):
        return super().reset()[0], None

    def step(self, actions):
        return (*super().step(actions)[:4], None)


class FourResults(Plain):
    def step(self, actions):
        return super().step(actions)[:4]


class ListOfRewards(Plain):
    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        return (seen, list(rewards.values()), *rest)


class ResetRaises(Plain):
    def reset(self, seed=None, options=None):
        raise KeyError("level")


class StepRaises(Plain):
    def step(self, actions):
        raise ZeroDivisionError("no mass")


class CloseRaises(Plain):
    def close(self):
        self.window.close()


class NoReward(Plain):
    def paid(self, agent):
        return None


class TwoRewards(Plain):
    def paid(self, agent):
        return np.ones(2)


class RewardOfOne(Plain):
    def paid(self, agent):
        return np.array([2.0], np.float32)


class HugeReward(Plain):
    def paid(self, agent):
        return 1e39


class ExtraNames(Plain):
    """Tells of more than its agents, as RLlib's environments do."""

    def step(self, actions):
        seen, paid, ends, cuts, _ = super().step(actions)
        return seen, paid | {"c": 1.0}, ends | {"__all__": self.t == 3}, cuts, {"__common__": {}}


class OtherNames(Plain):
    """Pays agents by other names than its own."""

    def step(self, actions):
        seen, paid, *rest = super().step(actions)
        return seen, {a.upper(): reward for a, reward in paid.items()}, *rest


class LostMasks(Plain):
    """Masks, of which the infos of other names tell."""

    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], {"A": {"action_mask": np.ones(4, np.int8)}}


class SpacesByAttributes(Plain):
    """Declares its spaces as PettingZoo warns of."""

    observation_spaces = dict.fromkeys("ab", Box(-1, 1, (4,)))
    action_spaces = dict.fromkeys("ab", Discrete(4))
    observation_space, action_space = ParallelEnv.observation_space, ParallelEnv.action_space


class EndsByAll(Plain):
    def step(self, actions):
        seen, paid, _, cuts, infos = super().step(actions)
        return seen, paid, {"__all__": self.t == 3}, cuts, infos


class SeenByOtherNames(Plain):
    def reset(self, seed=None, options=None):
        seen, infos = super().reset(seed, options)
        return {a.upper(): each for a, each in seen.items()}, infos


class MoreActions(Plain):
    def action_space(self, agent):
        return Discrete(4 + getattr(self, "t", 0))


class Letters(Plain):
    def observation_space(self, agent):
        return Text(4)

    def seen(self, agent):
        return "four"


class OneForFour(Plain):
    def seen(self, agent):
        return np.array([0.5])


class OneForFourLater(Plain):
    def seen(self, agent):
        return np.zeros(1 if self.t == 2 else 4)


class LateMask(Plain):
    def step(self, actions):
        return (*super().step(actions)[:4], {"a": {"action_mask": np.ones(4, np.int8)}})


class ShortMask(Plain):
    def observation_space(self, agent):
        return Dict(observation=Box(-1, 1, (4,)), action_mask=MultiBinary(4))

    def seen(self, agent):
        return {"observation": np.zeros(4), "action_mask": np.ones(1 if self.t == 2 else 4, np.int8)}


class Inverted(Plain):
    """Bits that forbid; only action 2 is possible."""

    def observation_space(self, agent):
        return Dict(state=Box(-1, 1, (4,)), unavailable=MultiBinary(4))

    def seen(self, agent):
        return {"state": np.zeros(4), "unavailable": np.array([1, 1, 0, 1], np.int8)}


def path(env):
    return f"pettingzoo/{__name__}:{env.__name__}"


def played(env, options=None):
    """Returns of an episode of random legal actions, agent by agent, and the actions of the first step."""
    made = registry.make(path(env), options or {}, 1)
    rng, frame, total, first = np.random.default_rng(0), made.reset(0), 0.0, None
    for _ in range(3):
        actions = random_actions(made.spaces, frame, rng)
        first = actions if first is None else first
        transition = made.step(actions)
        total, frame = total + transition.rewards[0][:, 0], transition.frame
    assert transition.ended.all()
    return total.tolist(), first[0][:, 0].tolist()


@pytest.mark.parametrize(
    ("env", "returns"), [(Plain, 3), (NoInfos, 3), (RewardOfOne, 6), (ExtraNames, 3), (SpacesByAttributes, 3)]
)
def test_harmless_forms_are_taken_without_a_word(env, returns, recwarn):
    assert played(env)[0] == [returns] * 2
    assert not [each for each in recwarn if "action_space" in str(each.message)]


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (OldReset, r"its reset\(\) takes no seed, as in an old API; expected is reset\(seed=None, options=None\)"),
        (OnlyObservations, r"its reset\(\) answers one dictionary; expected are two dictionaries"),
        (ResetRaises, r"its reset\(\) raises KeyError: 'level'"),
        (StepRaises, r"its step\(\) of copy 0 at step 1 of its episode raises ZeroDivisionError: no mass"),
        (FourResults, r"its step\(\) of copy 0 at step 1 of its episode answers 4 values; expected are five"),
        (ListOfRewards, r"its step\(\) of copy 0 at step 1 of its episode answers \[1.0, 1.0\] as rewards; expected"),
        (CloseRaises, r"its close\(\) raises AttributeError: .*'window'; correct it, or"),
        (NoReward, "agent 'a' of copy 0 at step 1 of its episode has reward None; expected is one number"),
        (TwoRewards, "agent 'a' of copy 0 at step 1 of its episode has reward .*; expected is one number"),
        (HugeReward, r"agent 'a' of copy 0 at step 1 of its episode has reward 1e\+39, beyond ±3.4e38, the largest of"),
        (
            LostMasks,
            r"its reset\(\) answers 'action_mask' in the infos for 'A', which is not among .*, and none for 'a'",
        ),
        (
            OtherNames,
            r"its step\(\) of copy 0 at step 1 of its episode answers rewards for 'A', which is not among .* 'a'",
        ),
        (
            EndsByAll,
            r"its step\(\) of copy 0 at step 1 of its episode answers terminations for '__all__', which is not",
        ),
        (
            SeenByOtherNames,
            r"its reset\(\) answers observations for 'A', which is not among its possible_agents, and none",
        ),
        (MoreActions, r"agent 'a' of copy 0 at step 1 of its episode has action space Discrete\(5\), at first it was"),
        (Letters, r"agent 'a': observation space Text\(.*\) has no fixed size and is not supported"),
        (OneForFour, r"agent 'a' of copy 0 after a reset observes an array float64\[1\], its space is Box"),
        (OneForFourLater, r"agent 'a' of copy 0 at step 2 of its episode observes an array float64\[1\], its space is"),
        (LateMask, "agent 'a' of copy 0 at step 1 of its episode has 'action_mask' in its info, but no agent had one"),
        (ShortMask, "agent 'a' of copy 0 at step 2 of its episode has array.* as 'action_mask', which is not a mask"),
    ],
)
def test_every_other_form_is_refused_with_call_agent_and_step(env, sentence):
    with pytest.raises(SpecError, match=sentence) as caught:
        registry.examined(path(env), {})
        played(env)
    assert "\n" not in str(caught.value)


def test_observations_that_do_not_fit_are_refused_before_a_job_starts():
    with pytest.raises(SpecError, match="observes an array"):
        registry.examined(path(OneForFour), {})


def test_rows_follow_from_names_in_every_process():
    code = f"from marless.learning.envs import registry; print(registry.spaces({path(FromSet)!r}, {{}}).agents)"
    shown = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert shown == {f"{('agent_0', *(f'agent_{i}' for i in range(1, 12)), 'ant', 'zebra')}\n"}


def test_a_worker_refuses_an_environment_whose_agents_are_in_another_order():
    spaces = registry.spaces(path(Plain), {})
    key = EnvKey(path(Plain), "{}", with_state=False, envs=1, agents_crc32=agents_checksum(spaces))
    _made(registry.make, key).close()
    others = key._replace(agents_crc32=agents_checksum(registry.spaces("game/matrix", {})))
    with pytest.raises(SpecError, match=r"has other agents here than .* in another order: \['a', 'b'\]"):
        _made(registry.make, others)


@pytest.mark.parametrize("mask", [{"key": "unavailable", "inverted": True}])
def test_a_mask_whose_ones_forbid(mask):
    assert played(Inverted, {"env.mask": mask})[1] == [2, 2]
    made = registry.spaces(path(Inverted), {"env.mask": mask})
    assert made.masked_by == "'unavailable' of observations (a number per action, ones forbid)"
    assert made.classes[0].obs_size == 4
    unread = registry.spaces(path(Inverted), {})
    assert (unread.masks, unread.classes[0].obs_size) == (False, 8)
    assert "set env.mask: unavailable" in unread.notes[0]


def test_a_mask_that_is_nowhere_is_refused():
    with pytest.raises(SpecError, match=r"env\.mask: 'legal' is an entry of no agent's observations, nor of its info"):
        registry.spaces(path(Plain), {"env.mask": "legal"})
    with pytest.raises(SpecError, match=r"environment game/matrix: its masks are part of its spaces, so env.mask has"):
        registry.make("game/matrix", {"env.mask": "none"}, 1)
