"""A recorded asynchronous job by plain function calls in one process: what its services must come to, bit for bit.

The events and their order are those of the records, whatever was killed or lost meanwhile. Nothing here knows of
services, pools, stores or recovery.
"""

from __future__ import annotations

from collections.abc import Sequence

from marless.core.group import Group
from marless.core.settings import Measure
from marless.core.state import Arrays, PolicyState
from marless.jobs.job import PreparedJob, prepare
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import Learn, Publish, RollOut, Step, after
from marless.jobs.schedules.events import ScheduleEvent, read
from marless.jobs.schedules.overlapping import Overlapping, learner_of, makes_versions
from marless.learning.aggregation.applying import applied
from marless.learning.aggregation.queue import GradientBatch
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

States = dict[str, PolicyState]


class Asynchronous:
    """One job; `states` has those of each clock."""

    def __init__(self, job: PreparedJob) -> None:
        self._job = job
        self._groups: list[tuple[Group, ...]] = [job.sharing.decide(()).groups]
        """Of each clock, with what they start from."""
        algorithm = algorithms.algorithm(job.spec.algorithm.name)
        self._learners: list[Learner] = []
        first: States = {}
        for scope in scopes(algorithm, job.spec.algorithm, job.spaces):
            learner = algorithm.learner(
                job.spec.algorithm, LearnerContext(job.spec.nets, job.spaces, scope, "cpu", None, carried=False)
            )
            self._learners.append(learner)
            for name in learner.names(self._of(len(self._learners) - 1, 0)):
                first[name] = learner.initial(name, job.spec.seed)
        self.states: list[States] = [first]
        self._trajectories: dict[int, Trajectory] = {}
        self._gradients: dict[int, dict[str, Arrays]] = {}
        self._learns: dict[int, Learn] = {}
        self._makes_versions = makes_versions(job.spec.algorithm)
        self.aggregations: list[GradientBatch] = []

    def follow(self, records: Sequence[RoundRecord]) -> None:
        """Do what happened, in its order."""
        self._groups = [
            tuple(Group(each.policy, each.agents, each.source) for each in record.groups) for record in records
        ]
        self._groups.append(tuple(Group(each.policy, each.agents) for each in self._groups[-1]))
        step = self._job.schedule.begin(self._job.spec.actors.count)
        self._do(step)
        for record in records:
            assert record.aggregation is not None
            assert not step.published or len(self.states) == record.round + 1
            for event in read(record.aggregation.arrivals):
                step = self._job.schedule.step(step.state, event)
                self._do(step)
            assert step.published, f"round {record.round} ends before its version"
            assert record.env_steps == step.state.env_steps

    def _do(self, step: Step[Overlapping]) -> None:
        for command in step.commands:
            match command:
                case RollOut(rollout, clock):
                    self._trajectories[rollout] = self._play(rollout, clock)
                case Learn():
                    self._learns[command.learner] = command
                    if not self._makes_versions:
                        self._gradients[command.learner] = self._gradient(command)
                case Publish(aggregation, separate):
                    self.aggregations.append(aggregation)
                    if self._makes_versions:
                        self._update(aggregation)
                    else:
                        self._apply(aggregation, separate)

    def _of(self, scope: int, clock: int):
        agents = {
            agent
            for each in scopes(
                algorithms.algorithm(self._job.spec.algorithm.name), self._job.spec.algorithm, self._job.spaces
            )[scope].agent_classes(self._job.spaces)
            for agent in each.agents
        }
        return tuple(group for group in self._groups[clock] if group.agents[0] in agents)

    def _play(self, rollout: int, clock: int) -> Trajectory:
        spec, spaces = self._job.spec, self._job.spaces
        seed = actor_seed(spec.seed, actor_pool_pb2.ROLLOUT_MODE_TRAIN, rollout, 0)
        lane = Lane(registry.make(spec.env.name, spec.env.options, spec.actors.envs, with_state=self._job.with_state))
        lane.begin(seed)
        acting = self.states[clock]
        of_agent = {agent: acting[group.start] for group in self._groups[clock] for agent in group.agents}
        policies = [
            ActingPolicies.from_states(each, [of_agent[agent] for agent in each.agents]) for each in spaces.classes
        ]
        return lane.roll(policies, steps=spec.actors.steps, seed=seed, with_state=self._job.with_state, index=None)[0]

    def _gradient(self, learn: Learn) -> dict[str, Arrays]:
        found: dict[str, Arrays] = {}
        for scope, learner in enumerate(self._learners):
            groups = self._of(scope, learn.clock)
            self._load(learner, groups, self.states[learn.clock])
            peers = tuple(map(self._peer, learn.peers))
            found |= learner.gradients(self._inputs(learn.learner, learn, groups, peers)).gradients
        return found

    def _load(self, learner: Learner, groups: tuple[Group, ...], states: States) -> None:
        for name in learner.names([Group(group.start, group.agents) for group in groups]):
            learner.load(name, states[name])

    def _peer(self, clock: int) -> dict[str, Arrays]:
        """The policies of another clock, without those that start from another one there."""
        copied = {group.policy for group in self._groups[clock] if group.source}
        return {name: state.acting for name, state in self.states[clock].items() if name not in copied}

    def _inputs(
        self, number: int, learn: Learn, groups: tuple[Group, ...], peers: tuple[dict[str, Arrays], ...] = ()
    ) -> RoundInput:
        taken, spec = [self._trajectories[number] for number in learn.rollouts], self._job.spec
        asked = Measure(curvature=spec.curvature if self._job.curvature else None, noise=self._job.noise)
        return RoundInput(number, learn.after, spec.seed, groups, taken, spec.sharing.samples, asked, peers)

    def _update(self, aggregation: GradientBatch) -> None:
        """The usual update, only now: those of learners that were lost have changed nothing."""
        [weighted] = aggregation.gradients
        learn = self._learns[learner_of(weighted.gradient)]
        assert (learn.clock, weighted.staleness, weighted.weight) == (len(self.states) - 1, 0, 1.0)
        found: States = {}
        for scope, learner in enumerate(self._learners):
            groups = self._of(scope, learn.clock)
            self._load(learner, groups, self.states[-1])
            learner.update(self._inputs(learn.clock, learn, groups))
            found |= {name: learner.state(name) for name in learner.names(groups)}
        self.states.append(self.states[-1] | found)

    def _apply(self, aggregation: GradientBatch, separate: bool) -> None:
        gradients = [self._gradients[learner_of(each.gradient)] for each in aggregation.gradients]
        before = sum(each.gradient.env_steps for past in self.aggregations[:-1] for each in past.gradients)
        steps = self._job.spec.algorithm.net_steps(before)
        before_states = self.states[-1]
        starts = {group.policy: group.start for group in self._groups[len(self.states) - 1]}
        self.states.append(
            before_states
            | {
                name: applied(
                    before_states[starts.get(name, name)],
                    [each[name] for each in gradients],
                    aggregation.weights,
                    steps,
                    separate=separate,
                )
                for name in gradients[0]
            }
        )


def check_same_weights(folder: RunFolder, alone: Asynchronous | None = None) -> Asynchronous:
    """Compare the last checkpoint of a job that has ended with what one process comes to, and its records.

    `alone` has followed nothing yet; by default it is a new one.
    """
    records = list(folder.records())
    alone = alone or Asynchronous(prepare(folder.load()[0]))
    alone.follow(records)
    for record, aggregation in zip(records, alone.aggregations, strict=True):
        assert record.aggregation is not None
        found = [(each.learner, each.staleness, each.env_steps) for each in record.aggregation.gradients]
        assert found == [
            (learner_of(each.gradient), each.staleness, each.gradient.env_steps) for each in aggregation.gradients
        ]
    saved = folder.checkpoints.load(len(records)).policies
    assert saved.keys() == alone.states[-1].keys()
    for name, state in alone.states[-1].items():
        assert tuple(map(bytes, saved[name].blobs.values())) == serial.encode(state), name
    return alone


def check_counts(job: PreparedJob, records: Sequence[RoundRecord]) -> None:
    """Raise AssertionError unless each record counts what its events and all earlier ones lead to."""
    events: list[ScheduleEvent] = []
    for record in records:
        found = record.aggregation
        assert found is not None
        events += read(found.arrivals)
        step = after(job.schedule, job.spec.actors.count, events)
        state, published = step.state, step.published
        assert published, f"round {record.round} ends with no version"
        assert record.env_steps == state.env_steps
        assert [each.staleness for each in found.gradients] == [each.staleness for each in published.gradients]
        lost = state.lost + state.queue.counts.lost
        under_way = (len(state.sampling), len(state.waiting), len(state.learning), state.dropped, lost)
        assert (found.sampling, found.waiting, found.learning, found.dropped, found.lost) == under_way
