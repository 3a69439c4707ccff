"""Training in this process: real rollouts, real learners, weights carried over as states; and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.data.episodes import EpisodeStats
from marless.learning.data.rollout import play, rollout
from marless.learning.envs import registry
from marless.learning.envs.base import BatchedEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec

MODEL = ModelSpec.model_validate({"hidden": (16,)})


class Trained:
    """A team that has been trained: one learner a scope, a policy an agent unless `groups` says otherwise."""

    def __init__(
        self,
        env: BatchedEnv,
        algorithm: Mapping[str, object],
        *,
        seed: int,
        model: ModelSpec = MODEL,
        groups: Sequence[Group] | None = None,
    ) -> None:
        entry = algorithms.algorithm(str(algorithm["name"]))
        config = entry.config_type.model_validate(dict(algorithm))
        self._env, self._seed = env, seed
        self._with_state = entry.needs_state(config)
        self._groups = tuple(groups or (Group(agent, (agent,)) for agent in env.spaces.agents))
        self.metrics: dict[str, dict[str, float]] = {}
        """Of the last round, by published name."""
        self._learners: list[tuple[Learner, tuple[Group, ...]]] = []
        for scope in scopes(entry, config, env.spaces):
            members = {agent for each in scope.agent_classes(env.spaces) for agent in each.agents}
            own = tuple(group for group in self._groups if members.issuperset(group.agents))
            learner = entry.learner(config, LearnerContext(model, env.spaces, scope, "cpu"))
            for name in learner.names(own):
                learner.load(name, learner.initial(name, seed))
            self._learners.append((learner, own))

    def state(self, agent: str) -> PolicyState:
        """What an agent acts with."""
        return next(
            learner.state(group.policy)
            for learner, groups in self._learners
            for group in groups
            if agent in group.agents
        )

    def train(self, rounds: int, steps: int) -> None:
        """Sample and update, `rounds` times; episodes begin anew in each."""
        for i in range(rounds):
            sampled, _ = rollout(
                self._env, self._acting(), steps=steps, seed=1000 * self._seed + i, with_state=self._with_state
            )
            for learner, groups in self._learners:
                inputs = RoundInput(i, i * steps * self._env.batch, self._seed, groups, [sampled])
                self.metrics |= {name: dict(found) for name, found in learner.update(inputs).metrics.items()}

    def greedy(self, episodes: int = 1, env: BatchedEnv | None = None) -> EpisodeStats:
        """Play without exploring, in the environment of the training or another."""
        return play(env or self._env, self._acting(), episodes=episodes, seed=99)

    def _acting(self) -> list[ActingPolicies]:
        return [
            ActingPolicies.from_states(each, [self.state(agent) for agent in each.agents])
            for each in self._env.spaces.classes
        ]


def trained(
    game: tuple[str, Mapping[str, object]],
    algorithm: Mapping[str, object],
    *,
    rounds: int,
    copies: int = 64,
    seed: int = 0,
    model: ModelSpec = MODEL,
) -> Trained:
    """Train a team in a game, given by name and options; a round is one episode of every copy."""
    env = registry.make(*game, copies)
    assert env.spaces.max_steps
    team = Trained(env, algorithm, seed=seed, model=model)
    team.train(rounds, env.spaces.max_steps)
    return team


def episode_return(stats: EpisodeStats) -> float:
    """Per agent and episode."""
    return sum(stats.return_sum.values()) / len(stats.return_sum) / stats.episodes
