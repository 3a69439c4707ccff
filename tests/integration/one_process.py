"""The rounds of a recorded job by plain function calls in one process: what its services must come to, bit for bit.

An independent oracle of schedules: it knows which round's policies act in which round, and nothing of services, pools,
stores, retries or recovery. Groups and actors are those of the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import RoundRecord
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.data.player import actor_seed
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs import registry
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.rpc.v1 import actor_pool_pb2
from marless.services.coordinator.state.run_folder import RunFolder

Policies = Mapping[str, PolicyState]
"""The state that acts for each agent."""


class OneProcess:
    """One job. With `staleness` 1, a round is acted by what acts in the round before with staleness 0."""

    def __init__(self, job: PreparedJob, records: Sequence[RoundRecord], staleness: int) -> None:
        self._job, self._records, self._staleness = job, records, staleness
        config = job.spec.algorithm
        algorithm = algorithms.algorithm(config.name)
        self._learners: list[tuple[tuple[str, ...], Learner]] = []
        for scope in scopes(algorithm, config, job.spaces):
            context = LearnerContext(
                job.spec.nets, job.spaces, scope, "cpu", carried=job.carried, lags=job.schedule.ahead > 0
            )
            agents = tuple(agent for each in scope.agent_classes(job.spaces) for agent in each.agents)
            self._learners.append((agents, algorithm.learner(config, context)))
        self._lanes: dict[int, Lane] = {}

    def states(self) -> dict[str, tuple[bytes, ...]]:
        """All states after the last round, encoded as they are published."""
        self._begin()
        acts: list[Policies] = []
        found: dict[str, tuple[bytes, ...]] = {}
        env_steps = 0
        for record in self._records:
            groups = [Group(each.policy, each.agents, each.source) for each in record.groups]
            acts.append(self._acting(groups))
            acted = acts[max(record.round - self._staleness, 0)]
            played = [self._play(record, index, acted) for index in range(record.actors)]
            for agents, learner in self._learners:
                own = _of(agents, groups)
                learner.update(RoundInput(record.round, env_steps, self._job.spec.seed, own, played))
                found |= {name: serial.encode(learner.state(name)) for name in learner.names(own)}
            env_steps = record.env_steps
        return found

    def _begin(self) -> None:
        for agents, learner in self._learners:
            for name in learner.names(_of(agents, self._job.sharing.decide(()).groups)):
                learner.load(name, learner.initial(name, self._job.spec.seed))

    def _acting(self, groups: Sequence[Group]) -> Policies:
        return {
            agent: learner.state(group.start)
            for agents, learner in self._learners
            for group in _of(agents, groups)
            for agent in group.agents
        }

    def _play(self, record: RoundRecord, index: int, acting: Policies) -> Trajectory:
        spec, spaces = self._job.spec, self._job.spaces
        seed = actor_seed(spec.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, record.round, index)
        if index not in self._lanes or not self._job.carried:
            self._lanes[index] = Lane(
                registry.make(spec.env.name, spec.env.options, spec.actors.envs, with_state=self._job.with_state)
            )
            self._lanes[index].begin(seed)
        policies = [
            ActingPolicies.from_states(each, [acting[agent] for agent in each.agents]) for each in spaces.classes
        ]
        lane = index if self._job.carried else None
        rolled = {"steps": spec.actors.steps, "seed": seed, "with_state": self._job.with_state, "index": lane}
        return self._lanes[index].roll(policies, **rolled)[0]


def _of(agents: Sequence[str], groups: Sequence[Group]) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.agents[0] in agents)


def check_same_weights(folder: RunFolder, staleness: int = 0) -> None:
    """Compare the last checkpoint of a job that has ended with what one process comes to."""
    given, _ = folder.load()
    records = list(folder.records())
    computed = OneProcess(prepare(given), records, staleness).states()
    saved = folder.checkpoints.load(len(records)).policies
    trained = {group.policy for group in records[-1].groups}
    assert trained <= computed.keys() <= saved.keys()
    for name, blobs in computed.items():
        assert tuple(map(bytes, saved[name].blobs.values())) == blobs, name
