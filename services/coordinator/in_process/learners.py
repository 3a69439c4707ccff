"""The learners of one job, one for each scope, called directly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from marless.core.errors import CorruptError, SpecError, contained
from marless.core.group import FunctionRun, Group, Versions
from marless.core.log import structlog
from marless.core.settings import Measure
from marless.core.state import Arrays
from marless.core.stopwatch import Stopwatch
from marless.jobs.job import PreparedJob, replay_of
from marless.jobs.record import Distances, InvocationRecord
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput, Scope
from marless.learning.data.frame_file import allocate
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets.serial import check_update
from marless.rpc import gradients
from marless.services.coordinator.execution.pools import GradientResult, Update
from marless.services.coordinator.in_process.store import MemoryStore
from marless.services.coordinator.in_process.tasks import HERE, memory_bytes

_log = structlog.get_logger("learner")


@dataclass
class _Held:
    """The learner of one scope, and the versions of the states that it holds."""

    learner: Learner
    scope: Scope
    agents: frozenset[str]
    device: str
    computed_by: str
    versions: dict[str, int] = field(default_factory=dict)

    def groups(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """The groups of this scope."""
        return tuple(group for group in groups if group.agents[0] in self.agents)


@dataclass(frozen=True, kw_only=True)
class LearnInput:
    """What an update or a gradient is made from."""

    round: int
    """Of an update; of a gradient, the number of its learner."""
    env_steps: int
    groups: tuple[Group, ...]
    versions: Versions
    """The newest version of every policy and joint critic."""
    trajectories: Sequence[Trajectory]
    measure: Measure


class JobLearners:
    """Opens, updates and differentiates the policies of one job; publishes them to the store.

    Args:
        replay: Directory for the replay buffers of off-policy algorithms, so that they outlive this process.
    """

    def __init__(self, job_id: str, job: PreparedJob, store: MemoryStore, replay: Path) -> None:
        self._id = job_id
        self._job = job
        self._store = store
        config = job.spec.algorithm
        learned = scopes(registry.algorithm(config.name), config, job.spaces)
        self._held = [self._made(scope, replay) for scope in learned]
        self._computed_by = tuple(sorted({held.computed_by for held in self._held}))

    def _made(self, scope: Scope, replay: Path) -> _Held:
        # Here, because they import torch: see `serving`, which does so while the job is being prepared.
        from marless.learning.algos.training.devices import GradientLoad, compute_again_alike
        from marless.learning.algos.training.precision import found_device

        spec, spaces = self._job.spec, self._job.spaces
        settings = spec.learner
        load = GradientLoad(
            spec.nets, spaces, scope, spec.minibatch_samples, settings.precision, captured=spec.captures_steps
        )
        facts = found_device(settings.device, load)
        _log.info("job.device", job=self._id, scope=scope.name, **facts)
        compute_again_alike(facts["device"], wanted=settings.deterministic)
        file = None
        if wanted := replay_of(spec, spaces, scope):
            schema, capacity = wanted
            replay.mkdir(parents=True, exist_ok=True)
            file = replay / scope.name
            allocate(file, schema.file_bytes(capacity))
        device, carried = facts["device"], self._job.carried
        context = LearnerContext(
            spec.nets,
            spaces,
            scope,
            device,
            replay=file,
            carried=carried,
            precision=settings.precision,
            lags=self._job.schedule.ahead > 0,
            graphs=settings.graphs,
        )
        learner = registry.algorithm(spec.algorithm.name).learner(spec.algorithm, context)
        agents = frozenset(agent for each in scope.agent_classes(spaces) for agent in each.agents)
        return _Held(learner, scope, agents, device, facts["computed_by"])

    def open(self, groups: Sequence[Group]) -> Versions:
        """Load what the store has, initialise and publish the rest; returns the newest version of everything.

        Raises SpecError for stored states of another shape.
        """
        versions: dict[str, int] = {}
        for held in self._held:
            starts = [Group(group.start, group.agents) for group in held.groups(groups)]
            names = held.learner.names(starts)
            heads = self._store.heads()
            try:
                self._hold(held, {name: heads[name] for name in names if name in heads})
            except CorruptError as error:
                raise SpecError(f"the stored versions of job {self._id} do not fit its spec: {error}") from None
            fresh = [name for name in names if name not in heads]
            for name in fresh:
                held.learner.load(name, held.learner.initial(name, self._job.spec.seed))
            held.versions |= self._publish(held, fresh, 0, "init")
            versions |= {name: held.versions[name] for name in names}
        return versions

    def begin_epoch(self) -> None:
        """A new epoch begins: versions may come from a checkpoint again, with numbers that stood for other states."""
        for held in self._held:
            held.versions.clear()

    def update(self, given: LearnInput) -> Update:
        """Update every policy once."""
        versions: dict[str, int] = {}
        metrics: dict[str, Mapping[str, float]] = {}
        invocations: list[InvocationRecord] = []
        distances: list[Distances] = []
        for held in self._held:
            inputs, names = self._inputs(held, given)
            held.versions.clear()  # the learner's states have no version until they are published
            running, cpu_s = Stopwatch.start(), time.process_time()
            output = contained(partial(held.learner.update, inputs))
            invocations += self._invocations(held, f"{given.round}", inputs.groups, output.runs, running, cpu_s)
            metrics |= output.metrics
            distances += self._distances(output.distances)
            held.versions = self._publish(held, names, given.round, given.round)
            versions |= held.versions
        return Update(versions, metrics, tuple(invocations), tuple(distances), computed_by=self._computed_by)

    def gradient(self, given: LearnInput, peers: Sequence[Versions]) -> GradientResult:
        """Compute one gradient of every policy, and keep it in the store; the policies stay as they are."""
        parts: dict[str, int] = {}
        metrics: dict[str, Mapping[str, float]] = {}
        invocations: list[InvocationRecord] = []
        distances: list[Distances] = []
        for held in self._held:
            inputs, _ = self._inputs(held, given)
            inputs = replace(inputs, peers=tuple(self._peers(peers, inputs.groups)))
            running, cpu_s = Stopwatch.start(), time.process_time()
            output = contained(partial(held.learner.gradients, inputs))
            what = f"gradient-{given.round}"
            invocations += self._invocations(held, what, inputs.groups, output.runs, running, cpu_s)
            metrics |= output.metrics
            distances += self._distances(output.distances)
            name = gradients.name_of(given.round, held.scope.index)
            parts[name] = self._store.put_gradient(name, output.gradients)
        return GradientResult(parts, metrics, tuple(invocations), tuple(distances), computed_by=self._computed_by)

    def _inputs(self, held: _Held, given: LearnInput) -> tuple[RoundInput, tuple[str, ...]]:
        """The input of one scope's learner, which then holds what it starts from; and the names that it publishes."""
        groups = held.groups(given.groups)
        names = held.learner.names(groups)
        starts = {group.start for group in groups}
        policies = {group.policy for group in groups}
        wanted = starts | {name for name in names if name not in policies}
        self._hold(held, {name: given.versions[name] for name in wanted})
        inputs = RoundInput(
            round=given.round,
            env_steps=given.env_steps,
            seed=self._job.spec.seed,
            groups=groups,
            trajectories=given.trajectories,
            pooling=self._job.spec.sharing.samples,
            measure=given.measure,
        )
        return inputs, names

    def _hold(self, held: _Held, wanted: Mapping[str, int]) -> None:
        """Make a learner hold these versions; raises CorruptError if a state does not fit."""
        missing = {name: version for name, version in wanted.items() if held.versions.get(name) != version}
        for name, state in self._store.states(missing).items():
            held.learner.load(name, state)
        held.versions |= missing

    def _publish(self, held: _Held, names: Sequence[str], round_: int, what: int | str) -> dict[str, int]:
        states = {name: held.learner.state(name) for name in names}
        for name, state in states.items():
            check_update(name, state)
        return self._store.put(self._id, round_, what, states)

    def _peers(self, peers: Sequence[Versions], groups: Sequence[Group]) -> Iterator[Mapping[str, Arrays]]:
        """The acting weights of each other learner, if the algorithm truncates ratios over them; equal ones once."""
        if getattr(self._job.spec.algorithm, "truncation", "none") == "none":
            return
        starts = {group.start for group in groups}
        for each in dict.fromkeys(tuple(sorted(peer.items())) for peer in peers):
            wanted = {name: version for name, version in each if name in starts and self._store.has(name, version)}
            if wanted:
                yield {name: self._store.acting(name, version).acting for name, version in wanted.items()}

    def _distances(self, measured: Mapping[str, NDArray[np.float64]]) -> Iterator[Distances]:
        agents = {each.name: each.agents for each in self._job.spaces.classes}
        for name, values in measured.items():
            yield Distances(agents=agents[name], values=tuple(map(tuple, values.tolist())))

    def _invocations(
        self,
        held: _Held,
        what: str,
        groups: Sequence[Group],
        runs: Sequence[FunctionRun],
        running: Stopwatch,
        cpu_s: float,
    ) -> Iterator[InvocationRecord]:
        """The learner's execution as a whole, and that of each function inside it."""
        config, index = self._job.spec.algorithm, held.scope.index
        graph = registry.algorithm(config.name).functions(config, held.scope, groups, self._job.spaces)
        after = {node.id: node.after for node in graph}
        yield InvocationRecord(
            id=f"{self._id}/{what}/update/{index}",
            function="learner",
            name="",
            index=index,
            attempt=1,
            worker=HERE,
            queued_s=running.started_s,
            start_s=running.started_s,
            end_s=running.now_s,
            vcpu_s=time.process_time() - cpu_s,
            memory_bytes=memory_bytes(),
            cold=False,
        )
        for run in runs:
            yield InvocationRecord(
                id=f"{self._id}/{what}/{run.function}/{run.name}",
                function=run.function,
                name=run.name,
                index=index,
                attempt=0,
                worker="",
                queued_s=0.0,
                start_s=run.start_s,
                end_s=run.end_s,
                vcpu_s=run.vcpu_s,
                pass_cpu_s=run.cpu_s if held.device == "cpu" else run.vcpu_s,
                memory_bytes=0,
                cold=False,
                after=after.get(f"{run.function}/{run.name}", ()),
            )
