"""Sides of a competitive game against chance: who is measured, who plays by chance, and from which starts."""

import numpy as np
import pytest
import yaml

from marless import load_policy
from marless.learning.envs import registry
from marless.learning.envs.base import Discrete
from marless.learning.policies.evaluation import Chance, against_chance, competitive
from tests.unit.learning.policies.saved import save, state

GAME = {"env": "mpe/simple_adversary", "options": {"agents": 2, "max_cycles": 5}}


@pytest.fixture
def team(tmp_path):
    spaces = registry.spaces(GAME["env"], GAME["options"])
    sizes = {agent: agents.obs_size for agents in spaces.classes for agent in agents.agents}
    states = {agent: state(size, Discrete(5), seed=i) for i, (agent, size) in enumerate(sizes.items())}
    save(tmp_path / "job", states, {agent: (agent,) for agent in states})
    document = {"algorithm": {"name": "ippo"}, "env": {"name": GAME["env"], "options": GAME["options"]}}
    (tmp_path / "job" / "spec.yaml").write_text(yaml.safe_dump(document))
    return load_policy(tmp_path / "job")


def test_each_side_plays_alone_against_chance(team):
    found = against_chance(team, episodes=40, seed=3)
    assert found == against_chance(team, episodes=40, seed=3)
    assert set(found) == {"adversary", "agent"}
    for side in found.values():
        assert np.isfinite([side.greedy, side.chance]).all()
        assert side.greedy != side.chance


def test_chance_in_everyones_place_scores_what_chance_scores(team, monkeypatch):
    """With policies that do nothing but chance, a side differs from chance by noise alone."""
    monkeypatch.setattr("marless.learning.policies.evaluation.Team.acting", lambda self, spaces: _all_by_chance(spaces))
    found = against_chance(team, episodes=2000, seed=3)
    for side in found.values():
        assert side.greedy == pytest.approx(side.chance, abs=0.15)


def test_a_team_with_one_interest_has_no_sides():
    assert not competitive(registry.spaces("mpe/simple_spread", {}))
    assert competitive(registry.spaces("mpe/simple_adversary", {}))


def _all_by_chance(spaces):
    return tuple(Chance(agents, 100 + i) for i, agents in enumerate(spaces.classes))
