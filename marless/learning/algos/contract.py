"""A contract test for algorithms: checks the protocols of `algorithm` and `learner` beside it.

For tests of marless and of other packages; see docs/extending/algorithm.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Protocol, runtime_checkable

from marless.core.errors import CorruptError, SpecError, require
from marless.core.group import FunctionNode, Group
from marless.core.interruption import StoppedError
from marless.core.settings import Measure
from marless.core.state import REPLAY, Arrays, PolicyState
from marless.learning.algos.algorithm import Algorithm, AlgorithmConfig, scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput, Scope, UpdateOutput
from marless.learning.algos.synthetic_job import CASES, ROUNDS, SEED, SyntheticJob, SyntheticRound
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass
from marless.learning.nets import serial
from marless.learning.nets.module_layout import GRAPH


@runtime_checkable
class HandWritten(Protocol):
    """Optional method of learners whose users may replace a loss, and its gradient in closed form."""

    def check_gradients(self) -> None:
        """Raise AssertionError, with a sentence, unless each gradient is the one that autograd finds."""
        ...


_COUNTERS_BYTES = 256
"""Bytes of a state that need not be known before: counters, and moments of rewards and returns."""
_ASKED = 4
"""Number of checks of `stopped` after which an update is stopped, so that some of its gradient steps are done."""


def check_algorithm(
    algorithm: Algorithm,
    config: AlgorithmConfig,
    *,
    one_step: Mapping[str, object] | None = None,
    device: str = "cpu",
) -> tuple[str, ...]:
    """Train synthetic jobs with learners of the algorithm; raises AssertionError, naming the broken rule.

    Returns the names of the jobs in `marless.learning.algos.synthetic_job.CASES` that `Algorithm.check` accepts, on
    which it was tested. Their rounds have 48 env steps, their nets 14 units: choose few gradient steps and small
    batches. The config is used without warm-up (`AlgorithmConfig.warm`).

    Args:
        one_step: Settings with which an update is a single gradient step, such as `{"epochs": 1}`; if given,
            `gradients` and `apply` are compared with `update`, too.
        device: Of torch, on which learners compute.
    """
    _check_config(algorithm, config)
    config = config.warm()
    accepted = dict(_accepted(algorithm, config))
    for case, job in accepted.items():
        with tempfile.TemporaryDirectory() as folder:
            trial = _Trial(algorithm, config, job, Path(folder), device)
            for learner in trial.learners.values():
                if isinstance(learner, HandWritten):
                    learner.check_gradients()
            for number, round_ in enumerate(ROUNDS):
                trial.train(number, round_, f"{case}, round {number + 1}")
            require(trial.moved, f"{case}: no policy has moved; choose settings that learn from 48 env steps a round")
            if one_step is not None:
                once = algorithm.config_type.model_validate({**config.model_dump(), **one_step})
                _Trial(algorithm, once, job, Path(folder) / "once", device).compare_gradients(case)
    return tuple(accepted)


def fingerprint(algorithm: Algorithm, config: AlgorithmConfig, device: str = "cpu") -> str:
    """SHA-256 of all states after the synthetic jobs; it must not depend on the process or the number of threads."""
    digest = hashlib.sha256()
    for state in trained_states(algorithm, config, device).values():
        digest.update(b"".join(serial.encode(state)))
    return digest.hexdigest()


def trained_states(
    algorithm: Algorithm, config: AlgorithmConfig, device: str = "cpu", rounds: int = len(ROUNDS)
) -> dict[tuple[str, str], PolicyState]:
    """All states after so many rounds of the synthetic jobs, by job and name, in a fixed order.

    Those of two devices are close after one round. Later ones act by what was learned, and so move apart.
    """
    found: dict[tuple[str, str], PolicyState] = {}
    config = config.warm()
    for case, job in _accepted(algorithm, config):
        with tempfile.TemporaryDirectory() as folder:
            trial = _Trial(algorithm, config, job, Path(folder), device)
            for number, round_ in enumerate(ROUNDS[:rounds]):
                trial.train(number, round_, f"{case}, round {number + 1}", again=False)
            found |= {(case, name): trial.states[name] for name in sorted(trial.states)}
    return found


@dataclass
class _Trial:
    """A synthetic job during training: the newest states, and a learner for each scope."""

    algorithm: Algorithm
    config: AlgorithmConfig
    job: SyntheticJob
    folder: Path
    """Directory of the replay files."""
    device: str
    states: dict[str, PolicyState] = field(default_factory=dict)
    """The newest version of every name."""
    moved: bool = False
    """True once an update has changed the weights of a policy."""

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.scopes = scopes(self.algorithm, self.config, self.job.spaces)
        self.learners = {scope.index: self._learner(scope, self._replay(scope)) for scope in self.scopes}

    def train(self, number: int, round_: SyntheticRound, where: str, *, again: bool = True) -> None:
        """Train one round with all learners; with `again`, repeat each update as after a crash."""
        trajectories = self._sampled(number, round_, where)
        for scope in self.scopes:
            self._update(scope, self.job.inputs(number, scope, round_, trajectories), f"{where}, {scope.name}", again)
        try:
            self.job.play(round_, self.states)
        except (CorruptError, ValueError) as error:
            raise AssertionError(f"{where}: evaluating its policies: {error}") from error

    def compare_gradients(self, where: str) -> None:
        """Check that an update of one gradient step equals `gradients` followed by `apply`."""
        trajectories = self._sampled(0, ROUNDS[0], where)
        for scope in self.scopes:
            inputs = self.job.inputs(0, scope, ROUNDS[0], trajectories)
            learner = self.learners[scope.index]
            learner.update(inputs)
            other = self._started(scope, inputs.groups, self.folder / f"{scope.index}.gradients")
            given = other.gradients(inputs).gradients
            missing = [group.policy for group in inputs.groups if group.policy not in given]
            require(not missing, f"{where}, {scope.name}: no gradients of {missing}")
            for name in given:
                held, before = other.state(name).acting, self.states[name].acting
                same = all(_equal(held, before, array) for array in held.keys() | before.keys())
                require(same, f"{where}: `gradients` has moved the weights of {name}")
            for name, gradients in given.items():
                other.apply(name, gradients, inputs.env_steps)
            for name in given:
                _require_equal(
                    other, name, learner.state(name), f"{where}: by `gradients` and `apply`, not by `update`,"
                )

    def _sampled(self, number: int, round_: SyntheticRound, where: str) -> list[Trajectory]:
        """A round's trajectories; first makes the missing states that its update starts from."""
        for scope in self.scopes:
            learner = self.learners[scope.index]
            for name in _starts(learner, self.job.served(scope, self.job.groups(round_))):
                if name in self.states:
                    continue
                # A state is reproducible, and unchanged by serialisation.
                self.states[name] = serial.decode(*serial.encode(self._learner(scope, None).initial(name, SEED)))
                learner.load(name, learner.initial(name, SEED))
                _require_equal(learner, name, self.states[name], f"{where}: made twice, or loaded and read,")
                learner.load(name, self.states[name])
                _require_equal(learner, name, self.states[name], f"{where}: loaded and read,")
        try:
            return self.job.sample(round_, number, self.states, self.algorithm.needs_state(self.config))
        except (CorruptError, ValueError) as error:
            raise AssertionError(f"{where}: sampling with its policies: {error}") from error

    def _update(self, scope: Scope, inputs: RoundInput, where: str, again: bool) -> None:
        learner, before = self.learners[scope.index], self._copy(scope, "before")
        output = learner.update(inputs)
        updated = {name: serial.decode(*serial.encode(learner.state(name))) for name in learner.names(inputs.groups)}
        trained = any(_moved(self.states[group.start], updated[group.policy]) for group in inputs.groups)
        self.moved |= trained
        self._check_output(scope, inputs, output, where, trained)
        sizes = self.algorithm.net_bytes(self.config, scope, inputs.groups, self.job.spaces, self.job.model)
        _check_sizes(sizes, updated, where)
        if again:
            after = self._copy(scope, "after")
            self._redo(scope, inputs, before, updated, f"{where}: by a learner that was started again,")
            self._redo(scope, inputs, after, updated, f"{where}: after a crash between update and publishing,")
            if inputs.measure != Measure():
                # A replay buffer may count draws for measurements.
                trained_states = {name: each for name, each in updated.items() if each.metadata.get("kind") != REPLAY}
                unmeasured = replace(inputs, measure=Measure())
                self._redo(scope, unmeasured, before, trained_states, f"{where}: without measurements,")
                self._redo(scope, inputs, before, updated, f"{where}: after an update that was stopped,", stop=True)
        self.states |= updated

    def _redo(
        self,
        scope: Scope,
        inputs: RoundInput,
        replay: Path,
        expected: Mapping[str, PolicyState],
        where: str,
        *,
        stop: bool = False,
    ) -> None:
        """Check that a new learner with only the states that the update started from computes the same states.

        With `stop`, it is stopped during the update, and then loads its states again.
        """
        learner, asked = self._started(scope, inputs.groups, replay), count()
        if stop:
            with suppress(StoppedError):
                learner.update(replace(inputs, stopped=lambda: next(asked) >= _ASKED))
            for name in _starts(learner, inputs.groups):
                learner.load(name, self.states[name])
        learner.update(inputs)
        for name, state in expected.items():
            _require_equal(learner, name, state, where)

    def _started(self, scope: Scope, groups: Sequence[Group], replay: Path) -> Learner:
        learner = self._learner(scope, replay)
        for name in _starts(learner, groups):
            learner.load(name, self.states[name])
        return learner

    def _check_output(self, scope: Scope, inputs: RoundInput, output: UpdateOutput, where: str, trained: bool) -> None:
        nodes = self.algorithm.functions(self.config, scope, inputs.groups, self.job.spaces)
        names = self.learners[scope.index].names(inputs.groups)
        require(len(set(names)) == len(names), f"{where}: some names are published twice: {names}")
        missing = [group.policy for group in inputs.groups if group.policy not in names]
        require(not missing, f"{where}: policies {missing} are not among the names that are published, {names}")
        _check_nodes(nodes, scope, inputs.groups, names, where)
        _check_runs(nodes, output, where, trained)
        metrics = output.metrics
        require(metrics.keys() <= set(names), f"{where}: metrics of {sorted(metrics)}, published {names}")
        odd = {f"{n}.{m}": x for n, found in metrics.items() for m, x in found.items() if not math.isfinite(x)}
        require(not odd, f"{where}: metrics that are no finite numbers: {odd}")
        if inputs.measure.curvature and trained:
            _check_measured(output, inputs.groups, scope.agent_classes(self.job.spaces), where)

    def _learner(self, scope: Scope, replay: Path | None) -> Learner:
        context = LearnerContext(self.job.model, self.job.spaces, scope, self.device, replay)
        return self.algorithm.learner(self.config, context)

    def _replay(self, scope: Scope) -> Path:
        return self.folder / f"{scope.index}.replay"

    def _copy(self, scope: Scope, when: str) -> Path:
        """A copy of the present replay file, if there is one, as a learner must have a file of its own."""
        copy = self._replay(scope).with_suffix(f".{when}")
        if self._replay(scope).exists():
            shutil.copyfile(self._replay(scope), copy)
        return copy


def _accepted(algorithm: Algorithm, config: AlgorithmConfig) -> Iterator[tuple[str, SyntheticJob]]:
    """The synthetic jobs that the algorithm accepts."""
    refusals = []
    for case, job in CASES.items():
        try:
            algorithm.check(config, job.setting)
        except SpecError as refusal:
            require(str(refusal).isprintable(), f"{case}: it is refused in more than one line: {refusal}")
            refusals.append(f"{case}: {refusal}")
        else:
            yield case, job
    require(len(refusals) < len(CASES), f"the algorithm refuses everything it could be tried on: {refusals}")


def _check_config(algorithm: Algorithm, config: AlgorithmConfig) -> None:
    kind = algorithm.config_type
    require(isinstance(config, kind), f"the config is no {kind.__name__}")
    read = kind.model_validate(json.loads(json.dumps(config.model_dump())))
    require(read == config, f"the config does not survive a job file: {config!r} became {read!r}")
    try:
        kind.model_validate({**config.model_dump(), "no_such_setting": 1})
    except ValueError:
        return
    raise AssertionError(f"{kind.__name__} takes a misspelt setting in silence")


def _check_sizes(declared: Mapping[str, int], states: Mapping[str, PolicyState], where: str) -> None:
    """Check that a job whose nets are too large is refused by what they weigh: counters beside them hardly count."""
    for name, size in declared.items():
        require(name in states, f"{where}: net_bytes names {name}, which is not published")
        arrays = {**states[name].learning, **states[name].acting}
        made = sum(array.nbytes for key, array in arrays.items() if not key.endswith(f".{GRAPH}"))
        require(
            0 <= made - size <= _COUNTERS_BYTES, f"{where}: net_bytes of {name} is {size}, its state has {made} bytes"
        )


def _starts(learner: Learner, groups: Sequence[Group]) -> tuple[str, ...]:
    """Names of the states that an update of these groups starts from, joint critics included."""
    policies = {group.policy for group in groups}
    learned_jointly = (name for name in learner.names(groups) if name not in policies)
    return tuple(dict.fromkeys((*(group.start for group in groups), *learned_jointly)))


def _check_nodes(
    nodes: Sequence[FunctionNode], scope: Scope, groups: Sequence[Group], names: Sequence[str], where: str
) -> None:
    seen: set[str] = set()
    for node in nodes:
        require(node.id not in seen, f"{where}: function {node.id} is declared twice")
        require(seen.issuperset(node.after), f"{where}: {node.id} waits for {node.after}, declared later or never")
        serves = (scope.name,) if node.function == "post_process" else names
        require(node.name in serves, f"{where}: {node.id} serves none of {serves}")
        seen.add(node.id)
    policies = [node.name for node in nodes if node.function == "policy"]
    expected = sorted(group.policy for group in groups)
    require(sorted(policies) == expected, f"{where}: declares policies {policies}, groups have {expected}")


def _check_runs(nodes: Sequence[FunctionNode], output: UpdateOutput, where: str, trained: bool) -> None:
    """Check that all declared functions ran, and no others; before training starts, some may be missing."""
    declared = {node.id for node in nodes}
    ran = Counter(
        f"{run.function}/{run.name}" for run in output.runs if run.function not in ("curvature", "similarity")
    )
    require(max(ran.values(), default=1) == 1, f"{where}: functions are reported twice: {dict(ran)}")
    kept = ran.keys() == declared if trained else ran.keys() <= declared
    require(kept, f"{where}: functions {sorted(ran)} ran, {sorted(declared)} are declared")
    for run in output.runs:
        sane = run.start_s <= run.end_s and run.vcpu_s >= 0 and run.cpu_s >= 0
        require(sane, f"{where}: {run.function}/{run.name} ended before it began, or took less than nothing")


def _check_measured(output: UpdateOutput, groups: Sequence[Group], classes: Sequence[AgentClass], where: str) -> None:
    billed = {run.name for run in output.runs if run.function == "curvature"}
    for group in groups:
        found = output.metrics.get(group.policy, {})
        for metric in ("curvature", "noise_scale"):
            require(found.get(metric, -1.0) >= 0, f"{where}: no {metric} of {group.policy}, which was asked for")
        require(group.policy in billed, f"{where}: measuring {group.policy} is no function `curvature`")
    for agents in classes:
        if len(agents.agents) > 1:
            size = (len(agents.agents),) * 2
            found_NN = output.distances.get(agents.name)
            require(found_NN is not None and found_NN.shape == size, f"{where}: no distances {size} of {agents.name}")


def _require_equal(learner: Learner, name: str, expected: PolicyState, where: str) -> None:
    """Check that the learner holds this state, bit for bit."""
    held = learner.state(name)
    odd = [] if dict(held.metadata) == dict(expected.metadata) else ["metadata"]
    for mine, theirs in ((held.acting, expected.acting), (held.learning, expected.learning)):
        odd += sorted(array for array in mine.keys() | theirs.keys() if not _equal(mine, theirs, array))
    require(not odd, f"{where} {name} has another state: {', '.join(odd)} differ")


def _moved(before: PolicyState, after: PolicyState) -> bool:
    """True if a policy's weights have changed."""
    names = [name for name in after.acting if name.startswith("policy.")]
    return not all(_equal(before.acting, after.acting, name) for name in names)


def _equal(one: Arrays, other: Arrays, name: str) -> bool:
    """True if both have an array of this name, equal bit for bit."""
    if name not in one or name not in other:
        return False
    mine, theirs = one[name], other[name]
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()
