"""Evaluating is playing whole episodes: the numbers are those of the rollouts that training reports."""

from __future__ import annotations

import numpy as np
import pytest

import marless
from marless.core.errors import SpecError
from marless.learning.data.returns import returns_of
from marless.learning.data.rollout import play
from marless.learning.envs import registry
from marless.learning.envs.base import Discrete
from marless.learning.policies.evaluation import evaluate
from marless.learning.policies.policy import Origin
from marless.storage.saved_policies import reported
from tests.unit.jobs.test_record import EARLIER, RETURNS, WON, record
from tests.unit.learning.policies.saved import save, state

OPTIONS = {"agents": 2, "max_cycles": 5}


@pytest.fixture
def team(tmp_path):
    states = {"a": state(12, Discrete(5), seed=1), "b": state(12, Discrete(5), seed=2)}
    save(tmp_path / "job", states, {"a": ("agent_1",), "b": ("agent_0",)})
    return marless.load_policy(tmp_path / "job")


@pytest.mark.parametrize("explore", [False, True])
def test_returns_are_those_of_the_episodes_played(team, explore):
    found = evaluate(team, options={"max_cycles": 5}, episodes=70, seed=4, explore=explore)
    assert found.team.returns.episodes == found.chance.returns.episodes == 70
    # One episode at a time, added up by hand.
    env = registry.make("mpe/simple_spread", OPTIONS, 64)
    frame = env.reset(int(np.random.SeedSequence(4).spawn(2)[0].generate_state(1)[0]))
    policies, rng = team.acting(env.spaces), np.random.default_rng(np.random.SeedSequence(4).spawn(2)[1])
    episodes = []
    for _ in range(2):
        total = np.zeros((2, 64))
        for _ in range(5):
            seen = frame.obs[0]
            action = policies[0].sample(seen, None, rng)[0] if explore else policies[0].greedy(seen, None)
            transition = env.step((action,))
            frame, total = transition.frame, total + transition.rewards[0]
        episodes.append(total)
    each = np.concatenate((episodes[0], episodes[1][:, :6]), axis=1)
    for i, agent in enumerate(("agent_0", "agent_1")):
        assert found.team.returns.per_agent[agent] == pytest.approx(each[i].mean())
        assert found.team.standard_errors[agent] == pytest.approx(each[i].std(ddof=1) / np.sqrt(70))
    assert found.team.returns.mean == pytest.approx(each.mean())
    chance = play(registry.make("mpe/simple_spread", OPTIONS, 64), None, episodes=70, seed=4)
    assert found.chance.returns == returns_of([chance])


@pytest.mark.parametrize(("rounds", "found"), [(3, WON), (4, RETURNS), (2, None), (5, None)])
def test_the_reported_returns_are_of_these_policies(tmp_path, rounds, found):
    """Round 4 evaluates what round 3 has published, and itself."""
    records = [record(0), record(1), record(2), record(3, earlier_evaluation=EARLIER, evaluation=RETURNS), record(4)]
    (tmp_path / "rounds.jsonl").write_text("".join(each.to_json() + "\n" for each in records))
    assert reported(Origin(round=rounds, run_dir=tmp_path)) == found


def test_an_agent_plays_the_policy_of_its_group(team):
    spaces = registry.spaces("mpe/simple_spread", OPTIONS)
    seen = np.random.default_rng(0).normal(size=(2, 9, 12)).astype(np.float32)
    together = team.acting(spaces)[0].greedy(seen, None)
    alone = team.act({"agent_0": seen[0], "agent_1": seen[1]})
    np.testing.assert_array_equal(together, [alone["agent_0"], alone["agent_1"]])
    assert (together[0] != team.act({"agent_1": seen[0]})["agent_1"]).any()


def test_the_environment_is_that_of_training_unless_another_is_named(team, tmp_path):
    team.export("a", tmp_path / "a.safetensors")
    with pytest.raises(SpecError, match="no policy for agent_0 of this environment; there is one for agent_1"):
        evaluate(marless.load_policy(tmp_path / "a.safetensors"), episodes=1, seed=0)
    elsewhere = evaluate(team, "pettingzoo/mpe2.simple_spread_v3", {"N": 2, "max_cycles": 5}, episodes=3, seed=0)
    assert -40 < elsewhere.team.returns.mean < 0
    with pytest.raises(SpecError, match=r"policies do not fit this environment: .*float32\[8, 10\]"):
        evaluate(team, options={"landmarks": 1}, episodes=1, seed=0)
    (tmp_path / "job" / "spec.yaml").unlink()
    lone = marless.load_policy(tmp_path / "job" / "checkpoints" / "round-000001")
    with pytest.raises(SpecError, match="is not known; give one"):
        evaluate(lone, episodes=1, seed=0)
    assert reported(lone.origin) is None
