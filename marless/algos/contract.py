"""A check that any algorithm can be put through: does it keep the promises of `marless.algos.base`?

Meant for tests, ours and third parties'; see docs/extending/algorithm.md.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from marless.algos.base import (
    Algorithm,
    AlgorithmConfig,
    Arrays,
    CurvatureSpec,
    FunctionNode,
    Group,
    Learner,
    LearnerContext,
    Measure,
    ModelSpec,
    PolicyState,
    RoundInput,
    Scope,
    Setting,
    UpdateOutput,
    scopes,
)
from marless.data.rollout import play, rollout
from marless.data.trajectory import Trajectory, TrajectorySchema
from marless.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.envs.made_up import MadeUp
from marless.errors import SpecError
from marless.nets import serial
from marless.nets.acting import ActingPolicies
from marless.sharing.policy_distance import PolicyDistanceConfig

SEED = 3
ACTORS, COPIES, STEPS = 2, 4, 10
"""A round: 80 env steps. Episodes end after at most 4 steps, and the last ones are cut off."""
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
CASES: Mapping[str, tuple[EnvSpaces, ModelSpec]] = {
    "discrete": (_TEAM, _PLAIN),
    "discrete with memory": (_TEAM, _MEMORY),
    "continuous": (_SMOOTH, _PLAIN),
    "continuous with memory": (_SMOOTH, _MEMORY),
}
"""Made-up jobs by name: a team of two classes whose agents die and whose actions may be illegal; or continuous ones."""

_APART = tuple(Group(agent, (agent,)) for agent in _WALKERS)
_TOGETHER = (Group("walker_1", _WALKERS),)
_SPLIT = tuple(Group(agent, (agent,), "" if agent == "walker_1" else "walker_1") for agent in _WALKERS)
_MEASURED = Measure(
    curvature=CurvatureSpec.model_validate({"samples": 32, "steps": 3}),
    noise=True,
    similarity=PolicyDistanceConfig.model_validate({"samples": 8}),
)


@dataclass(frozen=True)
class _Round:
    """How a round of the made-up job differs from others."""

    walkers: tuple[Group, ...]
    """The groups of the class that merges and splits."""
    drawn: bool = False
    """Groups train on as many samples as one agent has."""
    measure: Measure = field(default_factory=Measure)


_ROUNDS: tuple[_Round, ...] = (
    _Round(_APART),
    _Round(_APART, measure=_MEASURED),
    _Round(_TOGETHER),
    _Round(_TOGETHER, drawn=True),
    _Round(_SPLIT),
    _Round(_APART),
)


def check_algorithm(
    algorithm: Algorithm, config: AlgorithmConfig, *, one_step: Mapping[str, object] | None = None
) -> tuple[str, ...]:
    """Have learners of the algorithm train made-up jobs; raises AssertionError, saying which promise was broken.

    Returns the names of the `CASES` that it was tried on: those that `Algorithm.check` does not refuse. Choose a config
    with which it learns from 80 env steps a round. `one_step` holds the settings with which an update is a single
    gradient step, such as `{"epochs": 1}`; with it, gradients are compared with updates too.
    """
    _check_config(algorithm, config)
    accepted = dict(_accepted(algorithm, config))
    for case, (spaces, model) in accepted.items():
        with tempfile.TemporaryDirectory() as folder:
            job = _Job(algorithm, config, spaces, model, Path(folder))
            for number, made_up in enumerate(_ROUNDS):
                job.train(number, made_up, f"{case}, round {number}")
            _require(job.moved, f"{case}: no policy has moved; choose settings that learn from 80 env steps a round")
            if one_step is not None:
                given = config.model_dump() | dict(one_step)
                once = algorithm.config_type.model_validate(given)
                _Job(algorithm, once, spaces, model, Path(folder) / "once").compare_gradients(case)
    return tuple(accepted)


def fingerprint(algorithm: Algorithm, config: AlgorithmConfig) -> str:
    """What comes of the made-up jobs, in hexadecimal digits: equal in every process, with any number of threads."""
    digest = hashlib.sha256()
    for spaces, model in dict(_accepted(algorithm, config)).values():
        with tempfile.TemporaryDirectory() as folder:
            job = _Job(algorithm, config, spaces, model, Path(folder))
            for number, made_up in enumerate(_ROUNDS):
                job.train(number, made_up, f"round {number}", again=False)
            for name in sorted(job.states):
                digest.update(b"".join(serial.encode(job.states[name])))
    return digest.hexdigest()


@dataclass
class _Job:
    """A made-up job: what the store would hold, and a learner for each scope."""

    algorithm: Algorithm
    config: AlgorithmConfig
    spaces: EnvSpaces
    model: ModelSpec
    folder: Path
    """Where learners keep their replays."""
    states: dict[str, PolicyState] = field(default_factory=dict)
    """The newest version of every name."""
    moved: bool = False
    """True once an update has changed what a policy does."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.scopes = scopes(self.algorithm, self.config, self.spaces)
        self._learners = {scope.index: self._learner(scope, self._replay(scope)) for scope in self.scopes}

    def train(self, number: int, made_up: _Round, where: str, *, again: bool = True) -> None:
        """One round of all learners; with `again`, each update is done again as after a crash."""
        groups = self._groups(made_up)
        self._open(groups, where)
        trajectories = self._sample(groups, number, where)
        for scope in self.scopes:
            inputs = self._inputs(number, scope, groups, trajectories, made_up)
            self._update(scope, inputs, f"{where}, {scope.name}", again)
        self._play(groups, where)

    def compare_gradients(self, where: str) -> None:
        """An update of one gradient step equals gradients and their application."""
        groups = self._groups(_ROUNDS[0])
        self._open(groups, where)
        trajectories = self._sample(groups, 0, where)
        for scope in self.scopes:
            inputs = self._inputs(0, scope, groups, trajectories, _ROUNDS[0])
            other = self._started(scope, inputs.groups, self.folder / f"{scope.index}.gradients")
            learner = self._learners[scope.index]
            before = {name: other.state(name) for name in other.names(inputs.groups)}
            learner.update(inputs)
            given = other.gradients(inputs).gradients
            _require(bool(given), f"{where}, {scope.name}: no gradients")
            for name in given:
                held = _same(other.state(name).acting, before[name].acting)
                _require(held, f"{where}: `gradients` has moved the weights of {name}")
            for name, gradients in given.items():
                other.apply(name, gradients, inputs.env_steps)
            for name in given:
                difference = _difference(learner.state(name), other.state(name))
                _require(
                    not difference,
                    f"{where}: an update of one gradient step is not `gradients`, then `apply`: of {name}, {difference} differ",
                )

    def _groups(self, made_up: _Round) -> tuple[Group, ...]:
        others = (agent for c in self.spaces.classes for agent in c.agents if agent not in _WALKERS)
        return (*(Group(agent, (agent,)) for agent in others), *made_up.walkers)

    def _of(self, scope: Scope, groups: Iterable[Group]) -> tuple[Group, ...]:
        agents = {agent for c in scope.agent_classes(self.spaces) for agent in c.agents}
        return tuple(group for group in groups if group.agents[0] in agents)

    def _open(self, groups: Sequence[Group], where: str) -> None:
        """Have a state of all that an update starts from, as a coordinator sees to before the first round."""
        for scope in self.scopes:
            learner = self._learners[scope.index]
            for name in _starts(learner, self._of(scope, groups)):
                if name in self.states:
                    continue
                fresh, twin = learner.initial(name, SEED), self._learner(scope, None).initial(name, SEED)
                difference = _difference(fresh, twin)
                _require(not difference, f"{where}: two initial states of {name} differ in {difference}")
                self._publish(learner, name, fresh, where)

    def _publish(self, learner: Learner, name: str, state: PolicyState, where: str) -> None:
        """Send a state through the wire and hold it: it must come back as it was."""
        self.states[name] = serial.decode(*serial.encode(state))
        learner.load(name, self.states[name])
        difference = _difference(learner.state(name), self.states[name])
        _require(not difference, f"{where}: the state of {name} is not what was loaded: {difference} differ")

    def _sample(self, groups: Sequence[Group], number: int, where: str) -> list[Trajectory]:
        with_state = self.algorithm.needs_state(self.config)
        schema = TrajectorySchema(self.spaces, STEPS, COPIES, with_state)
        sampled = []
        for actor in range(ACTORS):
            env, policies = MadeUp(self.spaces, COPIES), self._policies(groups)
            trajectory, _ = rollout(env, policies, steps=STEPS, seed=100 * number + actor, with_state=with_state)
            schema.check(trajectory)
            sampled.append(trajectory)
        return sampled

    def _play(self, groups: Sequence[Group], where: str) -> None:
        try:
            play(MadeUp(self.spaces, COPIES), self._policies(groups), episodes=COPIES, seed=SEED)
        except ValueError as error:
            raise AssertionError(f"{where}: greedy policies: {error}") from error

    def _policies(self, groups: Sequence[Group]) -> list[ActingPolicies]:
        owners = {agent: self.states[group.start] for group in groups for agent in group.agents}
        return [ActingPolicies.from_states(c, [owners[agent] for agent in c.agents]) for c in self.spaces.classes]

    def _inputs(
        self, number: int, scope: Scope, groups: Sequence[Group], trajectories: Sequence[Trajectory], made_up: _Round
    ) -> RoundInput:
        return RoundInput(
            round=number,
            env_steps=number * ACTORS * COPIES * STEPS,
            seed=SEED,
            groups=self._of(scope, groups),
            trajectories=trajectories,
            pooling="drawn" if made_up.drawn else "pooled",
            measure=made_up.measure,
        )

    def _update(self, scope: Scope, inputs: RoundInput, where: str, again: bool) -> None:
        learner, replay = self._learners[scope.index], self._replay(scope)
        before = self.folder / f"{scope.index}.before"
        if again and replay.exists():
            shutil.copyfile(replay, before)
        output = learner.update(inputs)
        names = learner.names(inputs.groups)
        updated = {name: serial.decode(*serial.encode(learner.state(name))) for name in names}
        trained = any(not _same(updated[g.policy].acting, self.states[g.start].acting) for g in inputs.groups)
        self.moved |= trained
        self._check_output(scope, inputs, output, where, trained)
        if again:
            self._check_again(scope, inputs, before, updated, f"{where}: done again by a learner that was restarted")
            self._check_again(scope, inputs, replay, updated, f"{where}: done again after a crash before publishing")
            unmeasured = replace(inputs, measure=Measure())
            self._check_again(scope, unmeasured, before, updated, f"{where}: done again without measurements")
        self.states |= updated

    def _check_again(
        self, scope: Scope, inputs: RoundInput, replay: Path, expected: Mapping[str, PolicyState], where: str
    ) -> None:
        """A fresh learner that holds what the update started from, and nothing else, comes to the same states."""
        learner = self._started(scope, inputs.groups, replay)
        learner.update(inputs)
        for name, state in expected.items():
            difference = _difference(learner.state(name), state)
            _require(not difference, f"{where}, the update gives another state of {name}: {difference} differ")

    def _started(self, scope: Scope, groups: Sequence[Group], replay: Path) -> Learner:
        learner = self._learner(scope, replay)
        for name in _starts(learner, groups):
            learner.load(name, self.states[name])
        return learner

    def _check_output(self, scope: Scope, inputs: RoundInput, output: UpdateOutput, where: str, trained: bool) -> None:
        nodes = self.algorithm.functions(self.config, scope, inputs.groups, self.spaces)
        names = self._learners[scope.index].names(inputs.groups)
        _check_names(names, inputs.groups, where)
        _check_nodes(nodes, scope, inputs.groups, names, where)
        _check_runs(nodes, output, where, trained)
        _check_metrics(output, names, where)
        if inputs.measure.curvature and trained:
            _check_measured(output, inputs.groups, scope.agent_classes(self.spaces), where)

    def _learner(self, scope: Scope, replay: Path | None) -> Learner:
        context = LearnerContext(self.model, self.spaces, scope, "cpu", replay)
        return self.algorithm.learner(self.config, context)

    def _replay(self, scope: Scope) -> Path:
        return self.folder / f"{scope.index}.replay"


def _accepted(algorithm: Algorithm, config: AlgorithmConfig) -> Iterator[tuple[str, tuple[EnvSpaces, ModelSpec]]]:
    """The cases that the algorithm is meant for."""
    refusals = []
    for case, (spaces, model) in CASES.items():
        samples = ACTORS * COPIES * STEPS
        setting = Setting(spaces=spaces, model=model, samples=samples, steps=STEPS, memory_bytes=2**30)
        try:
            algorithm.check(config, setting)
        except SpecError as refusal:
            _require(str(refusal).isprintable(), f"{case}: it is refused in more than one line: {refusal}")
            refusals.append(f"{case}: {refusal}")
        else:
            yield case, (spaces, model)
    _require(len(refusals) < len(CASES), f"the algorithm refuses everything it could be tried on: {refusals}")


def _check_config(algorithm: Algorithm, config: AlgorithmConfig) -> None:
    kind = algorithm.config_type
    _require(isinstance(config, kind), f"the config is no {kind.__name__}")
    read = kind.model_validate_json(config.model_dump_json())
    _require(read == config, f"the config does not survive a job file: {config!r} became {read!r}")
    try:
        kind.model_validate({**config.model_dump(), "no_such_setting": 1})
    except ValidationError:
        return
    raise AssertionError(f"{kind.__name__} takes a misspelt setting in silence")


def _starts(learner: Learner, groups: Sequence[Group]) -> tuple[str, ...]:
    """What an update of these groups starts from: their policies' states, and those published beside them."""
    policies = {group.policy for group in groups}
    beside = (name for name in learner.names(groups) if name not in policies)
    return tuple(dict.fromkeys((*(group.start for group in groups), *beside)))


def _check_names(names: Sequence[str], groups: Sequence[Group], where: str) -> None:
    _require(len(set(names)) == len(names), f"{where}: some names are published twice: {names}")
    missing = [group.policy for group in groups if group.policy not in names]
    _require(not missing, f"{where}: policies {missing} are not among the names that are published, {names}")


def _check_nodes(
    nodes: Sequence[FunctionNode], scope: Scope, groups: Sequence[Group], names: Sequence[str], where: str
) -> None:
    seen: set[str] = set()
    for node in nodes:
        _require(node.id not in seen, f"{where}: function {node.id} is declared twice")
        _require(seen.issuperset(node.after), f"{where}: {node.id} waits for {node.after}, declared later or never")
        serves = (scope.name,) if node.function == "post_process" else names
        _require(node.name in serves, f"{where}: {node.id} serves none of {serves}")
        seen.add(node.id)
    policies = [node.name for node in nodes if node.function == "policy"]
    expected = sorted(group.policy for group in groups)
    _require(sorted(policies) == expected, f"{where}: declares policies {policies}, groups have {expected}")


def _check_runs(nodes: Sequence[FunctionNode], output: UpdateOutput, where: str, trained: bool) -> None:
    """What ran is what was declared: less is right only where nothing was trained yet."""
    declared = {node.id for node in nodes}
    ran = Counter(
        f"{run.function}/{run.name}" for run in output.runs if run.function not in ("curvature", "similarity")
    )
    _require(max(ran.values(), default=1) == 1, f"{where}: functions are reported twice: {dict(ran)}")
    kept = ran.keys() == declared if trained else ran.keys() <= declared
    _require(kept, f"{where}: functions {sorted(ran)} ran, {sorted(declared)} are declared")
    for run in output.runs:
        sane = run.start_s <= run.end_s and run.vcpu_s >= 0
        _require(sane, f"{where}: {run.function}/{run.name} ended before it began, or took less than nothing")


def _check_metrics(output: UpdateOutput, names: Sequence[str], where: str) -> None:
    _require(output.metrics.keys() <= set(names), f"{where}: metrics of {sorted(output.metrics)}, published {names}")
    odd = {f"{n}.{m}": x for n, found in output.metrics.items() for m, x in found.items() if not math.isfinite(x)}
    _require(not odd, f"{where}: metrics that are no finite numbers: {odd}")


def _check_measured(output: UpdateOutput, groups: Sequence[Group], classes: Sequence[AgentClass], where: str) -> None:
    billed = {run.name for run in output.runs if run.function == "curvature"}
    for group in groups:
        found = output.metrics.get(group.policy, {})
        for metric in ("curvature", "noise_scale"):
            _require(found.get(metric, -1.0) >= 0, f"{where}: no {metric} of {group.policy}, which was asked for")
        _require(group.policy in billed, f"{where}: measuring {group.policy} is no function `curvature`")
    for agents in classes:
        if len(agents.agents) > 1:
            size = (len(agents.agents),) * 2
            found_NN = output.distances.get(agents.name)
            _require(found_NN is not None and found_NN.shape == size, f"{where}: no distances {size} of {agents.name}")


def _difference(one: PolicyState, other: PolicyState) -> list[str]:
    """Names of the arrays, or of the metadata, in which two states differ by a bit."""
    found = [] if dict(one.metadata) == dict(other.metadata) else ["metadata"]
    for part, theirs in ((one.acting, other.acting), (one.learning, other.learning)):
        found += sorted(name for name in part.keys() | theirs.keys() if not _equal(part, theirs, name))
    return found


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(_equal(one, other, name) for name in one)


def _equal(one: Arrays, other: Arrays, name: str) -> bool:
    """Bit for bit."""
    if name not in one or name not in other:
        return False
    mine, theirs = one[name], other[name]
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()


def _require(kept: bool, broken: str) -> None:
    if not kept:
        raise AssertionError(broken)
