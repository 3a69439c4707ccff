"""The learner function: updates the policies of one scope from a round's trajectories, and publishes their versions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from marless.core.errors import ConflictError, CorruptError, SpecError, UnavailableError
from marless.core.failpoint import failpoint
from marless.core.group import FunctionRun, Group
from marless.core.log import structlog
from marless.core.private_files import Claim
from marless.core.settings import Measure, SimilarityConfig
from marless.core.state import REPLAY
from marless.jobs.job import replay_of
from marless.jobs.schedules.base import made
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.jobs.spec import JobSpec, from_json, spaces_from_json
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import (
    MINIBATCH_PARTS,
    GradientOutput,
    Learner,
    LearnerContext,
    RoundInput,
    Scope,
    UpdateOutput,
)
from marless.learning.algos.training.devices import (
    DeviceMemory,
    GradientLoad,
    compute_again_alike,
    computed_by,
    lacked_memory,
    memory_needed,
)
from marless.learning.algos.training.precision import found_device
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets import serial
from marless.learning.similarity.measures import make_similarity
from marless.rpc import param_store
from marless.rpc.concurrency import gather, stoppable, to_the_end
from marless.rpc.param_store import ParamStore, PolicyWrite
from marless.rpc.refs import Borrowed, Ref, is_seen
from marless.rpc.v1 import common_pb2
from marless.rpc.v1 import learner_pool_pb2 as pb
from marless.services.learner_pool import spool, stored_results
from marless.services.learner_pool.content import check_checksum, views
from marless.services.learner_pool.spool import Mirror
from marless.storage.checkpoint import PARTS

_HELD_LEARNERS = 16
_Key = tuple[str, int, str, int]
"""Job, epoch, spec and scope."""
_log = structlog.get_logger("learner")


@dataclass
class _Held:
    """A cached learner, and the versions of the policy states that it holds."""

    learner: Learner
    spec: JobSpec
    spaces: EnvSpaces
    scope: Scope
    device: str
    replay: Path | None
    mirror: Mirror | None
    """If this worker does not see the pool's replay file: its copy, at `replay`."""
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def replay_name(self) -> str:
        """The name under which the state of the replay is published."""
        return f"{REPLAY}.{self.scope.name}"

    def update(self, inputs: RoundInput) -> UpdateOutput:
        """Update the learner; raises SpecError if its GPU has too little memory."""
        with memory_needed(self.device):
            output = self.learner.update(inputs)
        if parts := [name for name, found in output.metrics.items() if MINIBATCH_PARTS in found]:
            advice = "more algorithm.minibatches, or fewer workers on the GPU, spare a failed attempt each round"
            _log.warning("learner.out_of_memory", round=inputs.round, in_parts=parts, advice=advice)
        return output

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """Compute gradients; raises SpecError if its GPU has too little memory."""
        with memory_needed(self.device):
            return self.learner.gradients(inputs)

    def after(self, groups: Sequence[Group]) -> dict[str, tuple[str, ...]]:
        """The dependencies of each function in an update of these groups, by ids of the algorithm's function graph."""
        config = self.spec.algorithm
        graph = registry.algorithm(config.name).functions(config, self.scope, groups, self.spaces)
        return {node.id: node.after for node in graph}


class Learning:
    """Runs learn tasks; caches learners between them, whose states can be loaded from the store again.

    Args:
        store: Of all states.
        borrowed: Files of the pool.
        place: Directory for copies of replay files that this worker does not see.
        memory: Of this worker on its GPU.
    """

    def __init__(self, store: ParamStore, borrowed: Borrowed, place: Path, memory: DeviceMemory) -> None:
        self._store = store
        self._borrowed = borrowed
        self._place = place
        self._memory = memory
        self._claim: Claim | None = None
        self._held: OrderedDict[_Key, _Held] = OrderedDict()

    async def run(self, payload: bytes) -> bytes:
        """Run one serialised LearnTask; returns its serialised LearnResult."""
        task = pb.LearnTask.FromString(payload)
        # By epoch, too: after a restore, another state may have the number of one that is held here.
        key = (task.job, task.epoch, task.spec_json, task.scope)
        # Only what has to be made goes to a thread: a round would wait for a change of threads in which nothing is
        # done.
        if key not in self._held:
            await to_the_end(self._make, key, task)
        self._held.move_to_end(key)
        held = self._held[key]
        self._make_room(key)
        groups = tuple(Group(g.policy, tuple(g.agents), g.source.policy) for g in task.groups)
        compute_again_alike(
            held.device, wanted=held.spec.learner.deterministic
        )  # of this process, which others use, too
        gradient = task.HasField("gradient")
        verb = self._gradient if gradient else self._update if task.trajectories else self._open
        try:
            result = await verb(task, held, groups)
        except SpecError as error:
            if not lacked_memory(error) or not self._discard_others(key):
                raise
            raise UnavailableError(
                f"{held.device} had too little memory beside the learners of other jobs, which are discarded now"
            ) from error
        result.device, result.computed_by = held.device, computed_by(held.device, held.spec.learner.precision)
        return result.SerializeToString()

    def _make(self, key: _Key, task: pb.LearnTask) -> None:
        """Make the learner of a task, which may take seconds."""
        spec, spaces = from_json(task.spec_json), spaces_from_json(task.spaces_json)
        algorithm = registry.algorithm(spec.algorithm.name)
        scope = scopes(algorithm, spec.algorithm, spaces)[task.scope]
        precision = spec.learner.precision
        load = GradientLoad(spec.nets, spaces, scope, spec.minibatch_samples, precision, captured=spec.captures_steps)
        facts = found_device(spec.learner.device, load)
        device = facts["device"]
        _log.info("job.device", job=task.job, scope=scope.name, **facts)
        # Learners of other epochs or specs of this scope go, and those whose replay file is gone: the memory of a
        # removed file stays in use for as long as a learner maps it.
        for other, held in list(self._held.items()):
            if (other[0], other[3]) == (task.job, task.scope) or (held.replay and not held.replay.exists()):
                self._discard_learner(other)
        mirror = self._mirror(task.replay, replay_of(spec, spaces, scope))
        replay = mirror.path if mirror else Path(task.replay.path) if task.replay.path else None
        context = LearnerContext(
            spec.nets,
            spaces,
            scope,
            device,
            replay=replay,
            carried=spec.actors.episodes == "carried",
            precision=precision,
            lags=made(spec.schedule).ahead > 0,
            graphs=spec.learner.graphs,
        )
        learner = algorithm.learner(spec.algorithm, context)
        if similarity := _similarity(spec):
            make_similarity(similarity)  # imports its libraries now, so that no round waits for them
        self._held[key] = _Held(learner, spec, spaces, scope, device, replay, mirror)
        while len(self._held) > _HELD_LEARNERS:
            self._discard_learner(next(iter(self._held)))

    def _make_room(self, key: _Key) -> None:
        """Discard other learners, the oldest first, while all of them hold too much of a GPU's memory."""
        device = self._held[key].device
        while self._memory.is_short(device) and (others := self._others(key)):
            self._discard_learner(others[0])
            self._memory.collect(device)
            _log.info("learner.discarded", job=others[0][0], device=device, reason="learners hold too much memory")

    def _discard_others(self, key: _Key) -> bool:
        """Discard all other learners on this one's device; returns whether there was one."""
        others = self._others(key)
        for each in others:
            self._discard_learner(each)
        self._memory.collect(self._held[key].device)
        return bool(others)

    def _others(self, key: _Key) -> list[_Key]:
        """The other learners on this one's device, the oldest first."""
        device = self._held[key].device
        return [each for each, held in self._held.items() if each != key and held.device == device]

    def _discard_learner(self, key: _Key) -> None:
        if mirror := self._held.pop(key).mirror:
            mirror.remove()

    def _mirror(self, ref: Ref, replay: tuple[ReplaySchema, int] | None) -> Mirror | None:
        """A copy of the task's replay file if this worker does not see the file. Other copies make room for it."""
        if replay is None or is_seen(ref):
            return None
        if self._claim is None:
            self._claim = spool.claim(self._place)
        while True:
            try:
                made = Mirror(self._borrowed, self._claim.path, *replay)
                _log.info("replay.copied", path=str(made.path), bytes=ref.bytes)
                return made
            except UnavailableError:
                mirrored = [key for key, held in self._held.items() if held.mirror]
                if not mirrored:
                    raise
                self._discard_learner(mirrored[0])

    def close(self) -> None:
        """Remove all copies of replay files."""
        if self._claim:
            self._claim.release()

    async def _open(self, task: pb.LearnTask, held: _Held, groups: tuple[Group, ...]) -> pb.LearnResult:
        """Load the policies that groups start from, if the store has them; initialise and publish the others.

        Raises SpecError for stored states of another shape. A policy that starts from another one is not loaded: its
        next version is made by the update.
        """
        starts = [Group(group.start, group.agents) for group in groups]
        names = tuple(dict.fromkeys(held.learner.names(starts)))
        heads = {name: listed.head.version for name, listed in (await self._store.list(task.job)).policies.items()}
        present = {name: heads[name] for name in names if name in heads}
        try:
            await self._hold(task.job, held, present)
        except CorruptError as error:
            raise SpecError(f"the stored versions of job {task.job} do not fit its spec: {error}") from None
        fresh = [name for name in names if name not in present]
        for name in fresh:
            held.learner.load(name, held.learner.initial(name, held.spec.seed))
        writes = _writes(task, held, dict.fromkeys(fresh, 0), "init", {})
        versions = await self._publish(task, held, writes) if fresh else {}
        return stored_results.result_of({name: present.get(name) or versions[name] for name in names})

    async def _update(self, task: pb.LearnTask, held: _Held, groups: tuple[Group, ...]) -> pb.LearnResult:
        names = held.learner.names(groups)
        starts = _starts(task, names)
        if starts.items() - held.versions.items():  # another worker ran the last round, and may have published this one
            done = await stored_results.published_update(self._store, task.job, stored_results.update_key(task), names)
            if done:
                return done
            await self._hold(task.job, held, starts)
        if held.mirror:
            await held.mirror.pull(task.replay)
        inputs = RoundInput(
            round=task.round,
            env_steps=task.env_steps,
            seed=held.spec.seed,
            groups=groups,
            trajectories=await gather(map(self._trajectory, task.trajectories)),
            pooling=held.spec.sharing.samples,
            measure=_measure(task.measure, held.spec),
        )
        held.versions.clear()  # the learner's states have no version until they are published
        output = await stoppable(lambda stop: held.update(replace(inputs, stopped=stop.is_set)))
        functions, distances = (
            _functions(task, output.runs, held.after(groups), held.device),
            _distances(held.spaces, output),
        )
        heads = {version.policy: version.version for version in task.versions}
        expected = {name: heads.get(name, 0) for name in names}
        reports = stored_results.encode_reports(names, output.metrics, functions, distances)
        result = pb.LearnResult(functions=functions, distances=distances)
        for name, metrics in output.metrics.items():
            result.metrics[name].values.update(metrics)
        writes = _writes(task, held, expected, stored_results.update_key(task), reports)
        if held.mirror:
            await held.mirror.push(task.replay, held.learner.state(held.replay_name).learning, task.round)
        try:
            result.MergeFrom(stored_results.result_of(await self._publish(task, held, writes)))
        except stored_results.PASSING as error:
            result.unpublished.CopyFrom(await stored_results.set_aside(self._borrowed, task.spare, writes, error))
        return result

    async def _gradient(self, task: pb.LearnTask, held: _Held, groups: tuple[Group, ...]) -> pb.LearnResult:
        """Compute a gradient and publish it. The held states stay as they are.

        If the store has the gradient already, it answers with its version; one that the same learner has computed from
        other rollouts is followed.
        """
        await self._hold(task.job, held, _starts(task, held.learner.names(groups)))
        # Only learners that truncate the ratios of a gradient over their peers need these from the store.
        read = task.gradient.peers if getattr(held.spec.algorithm, "truncation", "none") != "none" else ()
        inputs = RoundInput(
            round=task.gradient.learner,
            env_steps=task.env_steps,
            seed=held.spec.seed,
            groups=groups,
            trajectories=await gather(map(self._trajectory, task.trajectories)),
            pooling=held.spec.sharing.samples,
            measure=_measure(task.measure, held.spec),
            peers=await stored_results.peer_weights(self._store, task.job, read, [group.start for group in groups]),
        )
        output = await stoppable(lambda stop: held.gradients(replace(inputs, stopped=stop.is_set)))
        functions = _functions(task, output.runs, held.after(groups), held.device)
        result = pb.LearnResult(functions=functions, distances=_distances(held.spaces, output))
        for name, metrics in output.metrics.items():
            result.metrics[name].values.update(metrics)
        write = stored_results.gradient_write(task, output.gradients, result)
        failpoint("learner.publish.before")
        try:
            versions = await self._store.publish(task.job, task.epoch, inputs.round, [write])
        except ConflictError:
            known = (await self._store.list(task.job)).policies.get(write.policy)
            again = replace(write, expected=known.head.version if known else 0)  # it may be gone meanwhile
            versions = await self._store.publish(task.job, task.epoch, inputs.round, [again])
        failpoint("learner.publish.after")
        return stored_results.located(task, versions[write.policy], result)

    async def _hold(self, job: str, held: _Held, wanted: Mapping[str, int]) -> None:
        """Make the learner hold these versions; fetches missing ones. Raises CorruptError if a state does not fit."""
        missing = {name: version for name, version in wanted.items() if held.versions.get(name) != version}
        if not missing:
            return
        for name, stored in (await self._store.get(job, missing, PARTS)).items():
            state = serial.decode(*(bytes(stored.blobs[part]) for part in PARTS))
            try:
                held.learner.load(name, state)
            except CorruptError as error:
                raise CorruptError(f"policy {name!r}, version {missing[name]}: {error}") from None
            held.versions[name] = missing[name]
            if held.mirror and name == held.replay_name:
                held.mirror.expect(state.learning)

    async def _trajectory(self, stored: pb.StoredTrajectory) -> Trajectory:
        content = await self._borrowed.get(stored.file, partial(check_checksum, stored.header))
        return views(stored.header, content)

    async def _publish(self, task: pb.LearnTask, held: _Held, writes: Sequence[PolicyWrite]) -> Mapping[str, int]:
        failpoint("learner.publish.before")
        versions = await self._store.publish(task.job, task.epoch, task.round, writes, keep=task.keep)
        failpoint("learner.publish.after")
        held.versions.update(versions)
        return versions


def _writes(
    task: pb.LearnTask, held: _Held, expected: Mapping[str, int], what: int | str, reports: Mapping[str, bytes]
) -> list[PolicyWrite]:
    writes = []
    for name, version in expected.items():
        state = held.learner.state(name)
        serial.check_update(name, state)
        blobs = dict(zip(PARTS, serial.encode(state), strict=True))
        if name in reports:
            blobs[stored_results.PART] = reports[name]
        req_id = param_store.publish_key(task.job, what, name)
        writes.append(PolicyWrite(policy=name, expected=version, req_id=req_id, blobs=blobs))
    return writes


def _measure(asked: pb.Measure, spec: JobSpec) -> Measure:
    similarity = _similarity(spec) if asked.similarity else None
    curvature = spec.curvature if asked.curvature else None
    return Measure(curvature=curvature, noise=asked.noise, gradients=asked.gradients, similarity=similarity)


def _similarity(spec: JobSpec) -> SimilarityConfig | None:
    return SHARING_POLICIES.find(spec.sharing.name).similarity(spec.sharing)


def _starts(task: pb.LearnTask, names: Sequence[str]) -> dict[str, int]:
    """The versions that an update or gradient starts from: of the groups' source policies, and of joint critics.

    Raises SpecError if the task names no version of one.
    """
    heads = {version.policy: version.version for version in task.versions}
    sources = {group.source.policy or group.policy: group.source.version for group in task.groups}
    policies = {group.policy for group in task.groups}
    joint = [name for name in names if name not in policies]
    if missing := [name for name in joint if name not in heads]:
        raise SpecError(f"the versions to start from lack one of {missing}")
    return sources | {name: heads[name] for name in joint}


def _distances(spaces: EnvSpaces, output: UpdateOutput | GradientOutput) -> list[common_pb2.Distances]:
    agents = {each.name: each.agents for each in spaces.classes}
    return [
        common_pb2.Distances(agents=agents[name], values=values.ravel().tolist())
        for name, values in output.distances.items()
    ]


def _functions(
    task: pb.LearnTask, runs: Iterable[FunctionRun], after: Mapping[str, tuple[str, ...]], device: str
) -> list[common_pb2.Invocation]:
    what = f"gradient-{task.gradient.learner}" if task.HasField("gradient") else f"{task.round}"
    return [
        common_pb2.Invocation(
            id=f"{task.job}/{what}/{run.function}/{run.name}",
            function=run.function,
            name=run.name,
            index=task.scope,
            start_s=run.start_s,
            end_s=run.end_s,
            vcpu_s=run.vcpu_s,
            pass_cpu_s=run.cpu_s if device == "cpu" else run.vcpu_s,
            after=after.get(f"{run.function}/{run.name}", ()),
        )
        for run in runs
    ]
