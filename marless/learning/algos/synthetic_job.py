"""Synthetic jobs for contract tests of algorithms: a few rounds in which groups merge and split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.core.state import PolicyState
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.learner import RoundInput, Scope
from marless.learning.data.rollout import play, rollout
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.learning.similarity.measures import PolicyDistanceConfig

SEED = 3
ACTORS, COPIES, STEPS = 2, 4, 6
"""A round has 48 env steps. Episodes end after at most 4 steps, and the last ones are cut at the end of the round."""
_WALKERS = ("walker_0", "walker_1", "walker_2")
_TEAM = EnvSpaces(
    (AgentClass("scout", ("scout_0",), 3, Discrete(2)), AgentClass("walker", _WALKERS, 4, Discrete(3))),
    state_size=5,
    max_steps=4,
    masks=True,
    deaths=True,
    rewards="cooperative",
)
_SMOOTH = EnvSpaces(
    (AgentClass("walker", _WALKERS, 4, Box((-1.0, 0.0), (1.0, 2.0))),), state_size=5, max_steps=4, rewards="cooperative"
)
_PLAIN = ModelSpec.model_validate({"hidden": (8, 6), "activation": "relu"})
_MEMORY = ModelSpec.model_validate({"hidden": (8, 6), "recurrent": "gru"})

_APART = tuple(Group(agent, (agent,)) for agent in _WALKERS)
_TOGETHER = (Group("walker_1", _WALKERS),)
_SPLIT = tuple(Group(agent, (agent,), "" if agent == "walker_1" else "walker_1") for agent in _WALKERS)
_MEASURED = Measure(
    curvature=CurvatureSpec.model_validate({"samples": 32, "steps": 3}),
    noise=True,
    similarity=PolicyDistanceConfig.model_validate({"samples": 8}),
)


@dataclass(frozen=True)
class SyntheticRound:
    """The settings of one round."""

    walkers: tuple[Group, ...]
    """The groups of class `walker`, which merge and split."""
    drawn: bool = False
    """Groups train on as many samples as one agent has (`pooling` "drawn")."""
    measure: Measure = field(default_factory=Measure)


ROUNDS: tuple[SyntheticRound, ...] = (
    SyntheticRound(_APART, measure=_MEASURED),
    SyntheticRound(_TOGETHER),
    SyntheticRound(_TOGETHER, drawn=True),
    SyntheticRound(_SPLIT),
)
"""The rounds of a job: agents train separately, share a policy for two rounds, and split, each with a copy of it."""


@dataclass(frozen=True)
class SyntheticJob:
    """A synthetic job: its environment and nets, without an algorithm."""

    spaces: EnvSpaces
    model: ModelSpec

    @property
    def setting(self) -> Setting:
        """The `Setting` of this job, for `Algorithm.check`."""
        samples = ACTORS * COPIES * STEPS
        return Setting(spaces=self.spaces, model=self.model, samples=samples, steps=STEPS, memory_bytes=2**30)

    def groups(self, round_: SyntheticRound) -> tuple[Group, ...]:
        """The groups of all classes in a round."""
        others = (agent for c in self.spaces.classes for agent in c.agents if agent not in _WALKERS)
        return (*(Group(agent, (agent,)) for agent in others), *round_.walkers)

    def served(self, scope: Scope, groups: Iterable[Group]) -> tuple[Group, ...]:
        """The groups that belong to a scope."""
        agents = {agent for c in scope.agent_classes(self.spaces) for agent in c.agents}
        return tuple(group for group in groups if group.agents[0] in agents)

    def inputs(
        self, number: int, scope: Scope, round_: SyntheticRound, trajectories: Sequence[Trajectory]
    ) -> RoundInput:
        """The inputs of a scope's update."""
        return RoundInput(
            round=number,
            env_steps=number * ACTORS * COPIES * STEPS,
            seed=SEED,
            groups=self.served(scope, self.groups(round_)),
            trajectories=trajectories,
            pooling="drawn" if round_.drawn else "pooled",
            measure=round_.measure,
        )

    def sample(
        self, round_: SyntheticRound, number: int, states: Mapping[str, PolicyState], state: bool
    ) -> list[Trajectory]:
        """The trajectories of a round's actors; raises CorruptError or ValueError for invalid states or actions."""
        schema = TrajectorySchema(self.spaces, STEPS, COPIES, state)
        sampled = []
        for actor in range(ACTORS):
            env, policies = SyntheticEnv(self.spaces, COPIES), self._policies(round_, states, trained=False)
            trajectory, _ = rollout(env, policies, steps=STEPS, seed=100 * number + actor, with_state=state)
            schema.check(trajectory)
            sampled.append(trajectory)
        return sampled

    def play(self, round_: SyntheticRound, states: Mapping[str, PolicyState]) -> None:
        """Run the policies of a round's update greedily; raises as `sample` does."""
        play(
            SyntheticEnv(self.spaces, COPIES),
            self._policies(round_, states, trained=True),
            episodes=COPIES,
            seed=SEED,
        )

    def _policies(
        self, round_: SyntheticRound, states: Mapping[str, PolicyState], *, trained: bool
    ) -> list[ActingPolicies]:
        """The policies that the round's update starts from or, if `trained`, has made."""
        owners = {
            agent: states[group.policy if trained else group.start]
            for group in self.groups(round_)
            for agent in group.agents
        }
        return [ActingPolicies.from_states(c, [owners[agent] for agent in c.agents]) for c in self.spaces.classes]


CASES: Mapping[str, SyntheticJob] = {
    "discrete": SyntheticJob(_TEAM, _PLAIN),
    "discrete with memory": SyntheticJob(_TEAM, _MEMORY),
    "in turns": SyntheticJob(replace(_TEAM, turns=True), _PLAIN),
    "continuous": SyntheticJob(_SMOOTH, _PLAIN),
    "continuous with memory": SyntheticJob(_SMOOTH, _MEMORY),
}
"""Synthetic jobs by name. Discrete: two classes with deaths and action masks; in turns: the same agents, each of which
waits now and then while others act; continuous: one class without any of this.
"""
