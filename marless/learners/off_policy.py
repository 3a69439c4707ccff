"""The base of learners of all off-policy families: a round is added to the replay, then gradient steps draw from it.

A round: insert its trajectories; once the replay holds enough, `updates` times: draw, assemble a batch, take a gradient
step, move target nets. The state of a learner beside its nets is one joint state, `replay.<scope>`. No actor
reads it; with the replay's file it determines an update completely.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.algos.base import (
    REPLAY,
    Arrays,
    FunctionRun,
    GradientOutput,
    Group,
    LearnerContext,
    PolicyState,
    Rate,
    RoundInput,
    UpdateOutput,
    value_at,
)
from marless.algos.off_policy import OffPolicyConfig
from marless.data.frames import ReplaySchema
from marless.data.replay import Replay
from marless.errors import CorruptError, NotFoundError
from marless.interruption import check
from marless.learners import likeness, measuring
from marless.learners.batches import Batch, BatchSource, RewardMoments
from marless.learners.meter import Meter
from marless.learners.table import tabulate
from marless.nets.adam import Adam
from marless.nets.bank import Bank, Row
from marless.nets.codec import Codec
from marless.nets.inputs import Inputs
from marless.nets.layout import checked, generator
from marless.nets.rmsprop import RMSProp

Metrics = dict[str, dict[str, float]]
"""By published name."""
_STREAM = 4
"""Keeps draws from the replay apart from others of the same round."""
_EXPLORATION, _REWARDS = "exploration", "rewards"
"""Of arrays in states."""


class Optimizer(Protocol):
    """A run of gradient steps over stacked parameters."""

    def step(self, gradient_PD: Tensor) -> None:
        """Move the parameters."""
        ...


@dataclass(frozen=True)
class Part:
    """One net of a published state: how its row is written, and where it is held."""

    codec: Codec
    bank: Bank[Any]  # of whatever trains the family's nets: this module only puts rows in and takes them out


class Training(Protocol):
    """The nets of a scope in stacks, and what a gradient step does with a batch."""

    @property
    def count(self) -> int:
        """Env steps or episodes of a batch."""
        ...

    def step(self, batch: Batch, meter: Meter) -> Tensor | None:
        """Take a gradient step with all nets; what it takes is measured. Returns priorities, float32 [E], if draws have
        any."""
        ...

    def gradients(self, batch: Batch, meter: Meter) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        """By name and net prefix the gradients, [D], that `step` would limit and follow; and priorities."""
        ...

    def metrics(self) -> Metrics:
        """Means over the gradient steps so far."""
        ...

    def measured(self, inputs: RoundInput, batch: Batch, meter: Meter) -> Metrics:
        """What the round asks to be measured of each policy (curvature, noise), over a batch; metered as such."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What a family reads of a replay."""

    inputs: Mapping[int, Inputs]
    """What nets of each class see."""
    exploration: Rate
    """What actors read: ε, or a deviation."""
    with_state: bool
    """True if batches hold the global state."""
    team: bool
    """True if batches hold what the team gets."""


class OffPolicyLearner(ABC):
    """One scope of one job; see `marless.algos.base.Learner`. Families say what their nets are and how they train."""

    def __init__(self, config: OffPolicyConfig, context: LearnerContext, kinds: Kinds) -> None:
        self._settings = config
        self._kinds = kinds
        self._scope, self._spaces = context.scope, context.spaces
        self._device = torch.device(context.device)
        self._replay_name = f"replay.{context.scope.name}"
        self._explores: dict[str, float] = {}
        self._class_by_name: dict[str, int] = {}
        schema = ReplaySchema(context.spaces, context.scope.classes, kinds.with_state)
        self._replay = _replay(config, schema, context.replay)
        self._moments = RewardMoments(context.scope.classes)
        self._batches = BatchSource(
            replay=self._replay,
            schema=schema,
            classes=tuple((k, context.spaces.classes[k], kinds.inputs[k]) for k in context.scope.classes),
            config=config,
            longest=context.spaces.max_steps,
            team=kinds.team,
            device=self._device,
        )

    @abstractmethod
    def _joint(self) -> tuple[str, ...]:
        """Names that are published beside the policies, but for the replay."""

    @abstractmethod
    def _parts(self, name: str) -> Sequence[Part]:
        """Codecs and banks of what a policy's or joint state's row consists of."""

    @abstractmethod
    def _metadata(self, name: str) -> Mapping[str, str]:
        """Of a policy's or joint state."""

    @abstractmethod
    def _training(self, inputs: RoundInput, *, copies: bool) -> Training:
        """Arrange the nets for the round's groups, or copies of them: what is held then stays as it is."""

    @abstractmethod
    def _apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """Take one optimizer step from the state held under `name`."""

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        """See `Learner`."""
        for group in groups:
            k = self._spaces.classes.index(self._spaces.class_of(group.agents[0]))
            self._class_by_name |= {group.policy: k, group.start: k}
        return (*(group.policy for group in groups), *self._joint(), self._replay_name)

    def initial(self, name: str, seed: int) -> PolicyState:
        """See `Learner`. The replay begins empty."""
        if name == self._replay_name:
            empty = _replay(self._settings, self._batches.schema, None)
            return _remembered(empty, RewardMoments(self._scope.classes))
        rng = generator(seed, name)
        arrays = [part.codec.write(part.codec.fresh(rng)) for part in self._parts(name)]
        return self._compose(name, arrays, value_at(self._kinds.exploration, 0))

    def load(self, name: str, state: PolicyState) -> None:
        """See `Learner`."""
        if name == self._replay_name:
            self._recall(state)
            return
        if dict(state.metadata) != dict(self._metadata(name)):
            raise CorruptError(f"{name}: the state is of {dict(state.metadata)}, this job needs {self._metadata(name)}")
        for part in self._parts(name):
            row = part.codec.read(state.acting, state.learning)
            part.bank.put(name, {key: tensor.to(self._device) for key, tensor in row.items()})
        if name not in self._joint():
            self._explores[name] = float(checked(state.acting, _EXPLORATION, (1,))[0])

    def state(self, name: str) -> PolicyState:
        """See `Learner`."""
        if name == self._replay_name:
            return _remembered(self._replay, self._moments)
        arrays = [part.codec.write(part.bank.row(name)) for part in self._parts(name)]
        return self._compose(name, arrays, self._explores.get(name, 0.0))

    def update(self, inputs: RoundInput) -> UpdateOutput:
        """See `Learner`."""
        meter = Meter()
        names = self.names(inputs.groups)
        with meter.measure("post_process", (self._scope.name,)):
            self._remember(inputs)
        pending = self._compare(inputs)
        training = self._training(inputs, copies=False)
        metrics: Metrics = {name: {} for name in names}
        if self._ready():
            rng = draw_generator(inputs)
            for batch in self._draws(inputs, rng, training.count, self._gradient_steps(inputs), meter):
                check(inputs.stopped)
                self._reprioritise(batch, training.step(batch, meter))
            _merge(metrics, training.metrics())
            if measuring.asked(inputs.measure):
                [batch] = self._draws(inputs, rng, training.count, 1, Meter())
                _merge(metrics, training.measured(inputs, batch, meter))
        self._explore(inputs.groups, self._next_exploration(inputs))
        metrics[self._replay_name] = self._replay.report()
        distances, compared = _compared(pending)
        return UpdateOutput(metrics, (*meter.runs(), *compared), distances)

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """See `Learner`. The round is remembered: of what the replay holds there is one version only."""
        meter = Meter()
        with meter.measure("post_process", (self._scope.name,)):
            self._remember(inputs)
        if not self._ready():
            return GradientOutput({}, {self._replay_name: self._replay.report()}, meter.runs())
        training = self._training(inputs, copies=True)
        [batch] = self._draws(inputs, draw_generator(inputs), training.count, 1, meter)
        found, priority_E = training.gradients(batch, meter)
        self._reprioritise(batch, priority_E)
        exploration = np.array([self._next_exploration(inputs)], np.float32)
        policies = {group.policy for group in inputs.groups}
        gradients: dict[str, Arrays] = {
            name: {prefix: x_D.cpu().numpy().copy() for prefix, x_D in parts.items()}
            | ({_EXPLORATION: exploration} if name in policies else {})
            for name, parts in found.items()
        }
        return GradientOutput(gradients, training.metrics() | {self._replay_name: self._replay.report()}, meter.runs())

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """See `Learner`; `gradients` also brings what actors shall explore with from then on."""
        self._apply(name, gradients, env_steps)
        if name not in self._joint():
            self._explores[name] = float(checked(gradients, _EXPLORATION, (1,))[0])

    def _class_of(self, name: str) -> int:
        """The agent class that a policy serves, as an index; raises NotFoundError if no group was of this name.

        Before there are groups, policies are named as their agents.
        """
        if name not in self._class_by_name and name in self._spaces.agents:
            return self._spaces.classes.index(self._spaces.class_of(name))
        if name not in self._class_by_name and len(self._scope.classes) > 1:
            raise NotFoundError(
                f"no group of this learner has a policy {name!r}; it knows {sorted(self._class_by_name)}"
            )
        return self._class_by_name.get(name, self._scope.classes[0])

    def _compose(self, name: str, arrays: Sequence[tuple[Arrays, Arrays]], exploration: float) -> PolicyState:
        acting = {key: array for part, _ in arrays for key, array in part.items()}
        learning = {key: array for _, part in arrays for key, array in part.items()}
        if name not in self._joint():
            acting[_EXPLORATION] = np.array([exploration], np.float32)
        return PolicyState(acting, learning, self._metadata(name))

    def _remember(self, inputs: RoundInput) -> None:
        known = self._replay.counts.inserted
        self._replay.insert(inputs.round, inputs.trajectories)
        if self._replay.counts.inserted > known:
            self._moments.add(inputs.trajectories)

    def _recall(self, state: PolicyState) -> None:
        moments = RewardMoments(self._scope.classes)
        sums = state.learning.get(_REWARDS)
        if sums is None or sums.shape != moments.sums.shape:
            raise CorruptError(f"{self._replay_name}: the state holds no moments of the rewards of {self._scope.name}")
        moments.sums[:] = sums
        self._replay.restore(state.learning)
        self._moments = moments

    def _ready(self) -> bool:
        return self._replay.size >= max(self._settings.warmup, 1)

    def _draws(
        self, inputs: RoundInput, rng: np.random.Generator, count: int, times: int, meter: Meter
    ) -> Iterator[Batch]:
        """`times` batches; what it takes to draw them is measured."""
        beta = value_at(self._settings.replay.beta, inputs.env_steps)
        batches = self._batches.draws(rng, count, times, self._moments, beta)
        while True:
            with meter.measure("post_process", (self._scope.name,)):
                together = next(batches, None)
            if together is None:
                return
            yield from together

    def _reprioritise(self, batch: Batch, priority_E: Tensor | None) -> None:
        if priority_E is not None:
            self._replay.reprioritise(batch.row, priority_E.cpu().numpy())

    def _gradient_steps(self, inputs: RoundInput) -> int:
        """Of an update."""
        return self._settings.gradient_steps(_sampled(inputs))

    def _next_exploration(self, inputs: RoundInput) -> float:
        """What actors explore with in the next round."""
        return value_at(self._kinds.exploration, inputs.env_steps + _sampled(inputs))

    def _explore(self, groups: Sequence[Group], exploration: float) -> None:
        self._explores |= dict.fromkeys((group.policy for group in groups), exploration)

    def _compare(self, inputs: RoundInput) -> list[likeness.Pending]:
        """Begin to compare the agents of each class, if the round asks for it."""
        if inputs.measure.similarity is None:
            return []
        pending = []
        for k in self._scope.classes:
            table = partial(tabulate, inputs.trajectories, k, False)
            pending.append(likeness.begin(inputs, self._spaces.classes[k], table, self.state))
        return pending


def make_optimizer(config: OffPolicyConfig, row: Row, *, lr: float, steps: int) -> Optimizer:
    """What takes `steps` gradient steps with the nets of a stacked row."""
    if config.optimizer == "rmsprop":
        return RMSProp(row["flat"], row["second"], row["count"], lr=lr, eps=config.optimizer_eps)
    eps = config.optimizer_eps
    return Adam(row["flat"], row["first"], row["second"], row["count"], steps=steps, lr=lr, eps=eps)


def follow_(config: OffPolicyConfig, row: Row) -> None:
    """Move the target nets of a stacked row after a gradient step.

    Softly, by a share of the way (Lillicrap et al. 2016, algorithm 1); or all the way, every so many steps of a net's
    own (Mnih et al. 2015).
    """
    if config.target_every is None:
        row["target"].lerp_(row["flat"], config.target_tau)
        return
    due_P = row["count"].remainder(config.target_every) == 0
    if due_P.any():
        row["target"][due_P] = row["flat"][due_P]


def _replay(config: OffPolicyConfig, schema: ReplaySchema, path: Path | None) -> Replay:
    spec = config.replay
    alpha = spec.alpha if spec.draw == "prioritised" else None
    return Replay(schema, spec.capacity, path, alpha=alpha, unit=spec.unit)


def _sampled(inputs: RoundInput) -> int:
    """Env steps."""
    return sum(trajectory.env_steps for trajectory in inputs.trajectories)


def draw_generator(inputs: RoundInput) -> np.random.Generator:
    """Of all draws of a round."""
    return np.random.default_rng([inputs.seed, inputs.round, _STREAM])


def _remembered(replay: Replay, moments: RewardMoments) -> PolicyState:
    return PolicyState({}, {**replay.arrays(), _REWARDS: moments.sums.copy()}, {"kind": REPLAY})


def _merge(metrics: Metrics, more: Metrics) -> None:
    for name, numbers in more.items():
        metrics.setdefault(name, {}).update(numbers)


def _compared(pending: Sequence[likeness.Pending]) -> tuple[dict[str, NDArray[np.float64]], list[FunctionRun]]:
    distances: dict[str, NDArray[np.float64]] = {}
    runs: list[FunctionRun] = []
    for each in pending:
        found, ran = each.result()
        distances |= found
        runs += ran
    return distances, runs
