"""Algorithms learn to win battles, which random and frozen policies lose, on the embedded engine."""

import pytest

from marless.core.group import Group
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.data.rollout import play, rollout
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless_smac import EmbeddedSmac, SmacOptions
from marless_smac.kinds import Kind
from marless_smac.maps import SmacMap

SUPERIOR = SmacMap(
    name="3m",  # gives the walls
    allies=((Kind.MARINE, 3),),
    enemies=((Kind.MARINE, 2),),
    limit=60,
    ally_race="T",
    enemy_race="T",
    ally_starts=((12.0, 16.0),),
    enemy_starts=((20.0, 16.0),),
    enemy_goal=(12.0, 16.0),
)
"""Three marines against two, which come to them: those who shoot win, those who stand or walk about are shot."""
MODEL = ModelSpec.model_validate({"hidden": (64,), "agent_id": True})


class Trainee:
    """A policy that all allies share, and its learner."""

    def __init__(self, name: str, batch: int, **settings: object) -> None:
        self._env = EmbeddedSmac(SUPERIOR, SmacOptions(), batch)
        self._agents = self._env.spaces.classes[0]
        self._groups = (Group("marine", self._agents.agents),)
        algorithm = registry.algorithm(name)
        config = algorithm.config_type.model_validate({"name": name, **settings})
        (scope,) = scopes(algorithm, config, self._env.spaces)
        context = LearnerContext(MODEL, self._env.spaces, scope, "cpu")
        self._with_state = algorithm.needs_state(config)
        self._learner: Learner = algorithm.learner(config, context)
        for each in self._learner.names(self._groups):
            self._learner.load(each, self._learner.initial(each, seed=1))

    def wins(self) -> float:
        """Fraction of greedy battles that are won."""
        played = play(self._env, self._policies(), episodes=200, seed=999)
        return played.wins / played.episodes

    def train(self, number: int) -> None:
        """Sample and update `number` times."""
        for i in range(number):
            sampled, _ = rollout(self._env, self._policies(), steps=40, seed=i, with_state=self._with_state)
            self._learner.update(RoundInput(i, 0, 1, self._groups, [sampled]))

    def _policies(self) -> list[ActingPolicies]:
        state = self._learner.state("marine")
        return [ActingPolicies.from_states(self._agents, [state] * len(self._agents.agents))]


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_a_superior_team_learns_to_win(name: str) -> None:
    trainee = Trainee(name, 64, lr=2e-3, minibatches=8)
    assert trainee.wins() < 0.2  # frozen at its start
    trainee.train(6)
    assert trainee.wins() > 0.95


def test_chance_does_not_win() -> None:
    env = EmbeddedSmac(SUPERIOR, SmacOptions(), 64)
    played = play(env, None, episodes=200, seed=999)
    assert played.wins / played.episodes < 0.2
