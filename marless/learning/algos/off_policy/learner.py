"""The base of learners of all off-policy families: a round is added to the replay buffer, then gradient steps draw
from it.

A round: insert its trajectories; once the buffer holds enough, `updates` times: draw, assemble a batch, take a gradient
step, move target nets. A learner's state besides its nets is published as one joint state, `replay.<scope>`, which
actors do not read; together with the replay file, it determines an update completely.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.interruption import check
from marless.core.state import REPLAY, Arrays, PolicyState
from marless.learning.algos.algorithm import remembered, stacked_frames
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.off_policy.draws import BatchSource
from marless.learning.algos.settings import value_at
from marless.learning.algos.training import measuring, similarity, td
from marless.learning.algos.training.observed import ObservationStatistics
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import PolicyClasses
from marless.learning.algos.training.rewards import RewardMoments, rewarded, with_dead_agents_rewarded
from marless.learning.algos.training.table import tabulate
from marless.learning.algos.training.td import Metrics
from marless.learning.data.frames import ReplaySchema
from marless.learning.data.replay_buffer import ReplayBuffer
from marless.learning.nets.adam import clip_norm_
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import checked, generator
from marless.learning.nets.learner_states import Bank, StateCodec
from marless.learning.nets.normalising import SEEN, Sums

_STREAM = 4
"""Number of the random stream of draws from the replay, which must differ from other streams of the same round."""
_EXPLORATION, _REWARDS, _SEEN = "exploration", "rewards", f"policy.{SEEN}"
"""Names of arrays in states."""


_Found: TypeAlias = tuple[NDArray[np.int64], Tensor | None]
"""The rows of a batch, and their new priorities, if there are any."""


@dataclass(frozen=True)
class PublishedNet:
    """One net of a published state: the codec of its row, and the bank that holds it."""

    codec: StateCodec
    bank: Bank[Any]  # Any: the family's own function type, of which this module uses `tensors`, its row


class Training(Protocol):
    """The stacked nets of a scope during one update, and their gradient steps."""

    count: int
    """Env steps or episodes per batch."""

    def step(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        """Take a metered gradient step with all nets; returns new priorities, float32 [E], for prioritised draws.

        A priority NaN leaves that of its sample as it is.
        """
        ...

    def gradients(self, batch: Batch, meter: PassTimer) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        """The gradients [D] of `step` before limiting their norms, by name and net prefix; and priorities."""
        ...

    def metrics(self) -> Metrics:
        """Means over the gradient steps so far."""
        ...

    def measured(self, inputs: RoundInput, batch: Batch, meter: PassTimer) -> Metrics:
        """The measurements of each policy (curvature, noise) that the round asks for, over a batch; metered."""
        ...


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """What distinguishes a family's use of the replay buffer."""

    inputs: Mapping[int, Inputs]
    """Inputs of the nets of each class, by index."""
    exploration: Mapping[int, Callable[[int], Sequence[float]]]
    """The actors' exploration parameters once so many env steps are sampled, of each class, by index: what the array
    `exploration` of its policies' states holds, see `marless.learning.nets.acting_heads`."""
    with_state: bool
    """True if batches have the global state."""
    team: bool
    """True if batches have the rewards of the team, not of each agent."""
    together: bool
    """True if the agents of an env step are valued together, by a mixer or by joint critics."""


class OffPolicyLearner(ABC):
    """The learner of one scope; see `marless.learning.algos.learner.Learner`. Families define their nets and their
    training.
    """

    def __init__(self, config: OffPolicyConfig, context: LearnerContext, kinds: Kinds) -> None:
        self._settings = config
        self._kinds = kinds
        self._scope, self._spaces = context.scope, context.spaces
        self._device = torch.device(context.device)
        self._replay_name = f"replay.{context.scope.name}"
        self._explores: dict[str, NDArray[np.float32]] = {}
        self._class_of = PolicyClasses(context.spaces, context.scope)
        memory = remembered(config, context.model, context.spaces, carried=context.carried)
        frames = stacked_frames(context.model, context.spaces, carried=context.carried)
        schema = ReplaySchema(context.spaces, context.scope.classes, kinds.with_state, memory, frames)
        spec = config.replay
        alpha = spec.alpha if spec.draw == "prioritised" else None
        self._empty = partial(ReplayBuffer, schema, spec.capacity, alpha=alpha, unit=spec.unit)
        self._replay = self._empty(context.replay)
        self._no_rewards = partial(RewardMoments, context.scope.classes, config.gamma, team=kinds.team)
        self._moments = self._no_rewards()
        self._statistics: ObservationStatistics | None = None
        self._shown: dict[str, Sums] = {}
        if context.model.normalise_observations:
            clip = context.model.observation_clip
            self._statistics = ObservationStatistics(
                context.spaces, context.scope.classes, clip, with_state=kinds.with_state
            )
        self._batches = BatchSource(
            replay=self._replay,
            schema=schema,
            classes=tuple((k, context.spaces.classes[k], kinds.inputs[k]) for k in context.scope.classes),
            config=config,
            longest=context.spaces.max_steps,
            team=kinds.team,
            together=kinds.together,
            with_dead_agents_rewarded=config.reward_rule.after_death,
            units=context.model.memory,
            statistics=self._statistics,
            device=self._device,
        )

    @abstractmethod
    def _joint(self) -> tuple[str, ...]:
        """Names of joint states, which are published in addition to policies and the replay's state."""

    @abstractmethod
    def _parts(self, name: str) -> Sequence[PublishedNet]:
        """Codecs and banks of the nets of a policy or joint state."""

    @abstractmethod
    def _metadata(self, name: str) -> Mapping[str, str]:
        """Metadata of a policy or joint state."""

    @abstractmethod
    def _training(self, inputs: RoundInput, *, copies: bool) -> Training:
        """Stack the nets for the round's groups; with `copies`, copies of them, so that held states do not change."""

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        self._class_of.learn(groups)
        return (*(group.policy for group in groups), *self._joint(), self._replay_name)

    def initial(self, name: str, seed: int) -> PolicyState:
        """See `Learner`. The replay buffer is initially empty."""
        if name == self._replay_name:
            # In memory: the file belongs to this learner's own buffer, and may hold samples.
            return _remembered(self._empty(None), self._no_rewards(), self._no_observations())
        rng = generator(seed, name)
        arrays = [part.codec.write(part.codec.fresh(rng)) for part in self._parts(name)]
        return self._compose(name, arrays, None if name in self._joint() else self._exploration(name, 0))

    def load(self, name: str, state: PolicyState) -> None:
        if name == self._replay_name:
            self._recall(state)
            return
        if dict(state.metadata) != dict(self._metadata(name)):
            raise CorruptError(f"{name}: the state is of {dict(state.metadata)}, this job needs {self._metadata(name)}")
        for part in self._parts(name):
            row = part.codec.read(state.acting, state.learning)
            part.bank.put(name, {key: tensor.to(self._device) for key, tensor in row.items()})
        if name not in self._joint():
            self._recall_shown(name, state.acting)
            self._explores[name] = checked(state.acting, _EXPLORATION, self._exploration(name, 0).shape).copy()

    def state(self, name: str) -> PolicyState:
        if name == self._replay_name:
            return _remembered(self._replay, self._moments, self._statistics)
        arrays = [part.codec.write(part.bank.row(name)) for part in self._parts(name)]
        return self._compose(name, arrays, self._explores.get(name))

    def update(self, inputs: RoundInput) -> UpdateOutput:
        meter = PassTimer()
        names = self.names(inputs.groups)
        with meter.measure("post_process", (self._scope.name,)):
            self._remember(inputs)
        pending = []
        for k in self._scope.classes:
            table = partial(tabulate, inputs.trajectories, k, False, self._kinds.inputs[k].frames)
            pending.append(similarity.begin(inputs, self._spaces.classes[k], table, self.state))
        training = self._training(inputs, copies=False)
        metrics: Metrics = {name: {} for name in names}
        if self._ready():
            rng = draw_generator(inputs)
            every, found = self._settings.replay.priorities_every, list[_Found]()
            for step, batch in enumerate(
                self._draws(inputs, rng, training.count, self._gradient_steps(inputs), meter), 1
            ):
                check(inputs.stopped)
                found.append((batch.row, training.step(batch, meter)))
                if step % every == 0:  # before the next draw
                    self._reprioritise(found)
            self._reprioritise(found)
            metrics |= training.metrics()
            if measuring.asked(inputs.measure):
                # Drawn after all gradient steps, from the same stream: weights are the same
                # whether a round measures or not.
                [batch] = self._draws(inputs, rng, training.count, 1, PassTimer())
                for name, numbers in training.measured(inputs, batch, meter).items():
                    metrics[name] |= numbers
        # Actors keep one exploration parameter during a round, so the next policies get the
        # one at the start of their round.
        after = inputs.env_steps + inputs.sampled_steps
        self._explores |= {group.policy: self._exploration(group.policy, after) for group in inputs.groups}
        if self._statistics is not None:
            self._shown |= {g.policy: self._statistics.of(self._class_of(g.policy)) for g in inputs.groups}
        metrics[self._replay_name] = self._replay.report()
        compared = [each.result() for each in pending]
        distances = {name: found_NN for found, _ in compared for name, found_NN in found.items()}
        return UpdateOutput(metrics, (*meter.runs(), *(run for _, runs in compared for run in runs)), distances)

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """See `Learner`. The round is inserted into the replay buffer, of which there is only one version."""
        meter = PassTimer()
        with meter.measure("post_process", (self._scope.name,)):
            self._remember(inputs)
        if not self._ready():
            return GradientOutput({}, {self._replay_name: self._replay.report()}, meter.runs())
        training = self._training(inputs, copies=True)
        [batch] = self._draws(inputs, draw_generator(inputs), training.count, 1, meter)
        found, priority_E = training.gradients(batch, meter)
        self._reprioritise([(batch.row, priority_E)])
        after, policies = inputs.env_steps + inputs.sampled_steps, {group.policy for group in inputs.groups}
        gradients: dict[str, Arrays] = {
            name: {prefix: x_D.cpu().numpy().copy() for prefix, x_D in parts.items()}
            | (self._given(name, after) if name in policies else {})
            for name, parts in found.items()
        }
        return GradientOutput(gradients, training.metrics() | {self._replay_name: self._replay.report()}, meter.runs())

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """See `Learner`; `gradients` also has the actors' next exploration parameters, and statistics."""
        parts = {part.codec.prefix: part for part in self._parts(name)}
        if not gradients.keys() & parts.keys():
            raise CorruptError(f"{name}: gradients of {sorted(gradients)}, but its nets are {[*parts]}")
        for prefix, part in parts.items():
            if prefix in gradients:  # policies are not updated in every step of DDPG
                gradient_D = checked(gradients, prefix, (part.codec.layout.size,))
                gradient_1D = torch.tensor(gradient_D, device=self._device).unsqueeze(0)
                part.bank.change(name, partial(self._step, prefix, gradient_1D, self._lr(prefix, env_steps)))
        if name not in self._joint():
            self._recall_shown(name, gradients)
            self._explores[name] = checked(gradients, _EXPLORATION, self._exploration(name, 0).shape).copy()

    def _step(self, prefix: str, gradient_1D: Tensor, lr: float, function: Any) -> None:  # Any: see `PublishedNet`
        clip_norm_(gradient_1D, self._settings.max_grad_norm)
        td.make_optimizer(self._settings, function.tensors, lr=lr, steps=1).step(gradient_1D)
        if self._target_moves(prefix, int(function.tensors["count"][0])):
            td.follow_(self._settings, function.tensors)

    def _target_moves(self, prefix: str, steps: int) -> bool:
        """Whether the target of a net of a prefix moves in its gradient step of this number."""
        return True

    def _compose(
        self, name: str, arrays: Sequence[tuple[Arrays, Arrays]], exploration: NDArray[np.float32] | None
    ) -> PolicyState:
        acting = {key: array for part, _ in arrays for key, array in part.items()}
        learning = {key: array for _, part in arrays for key, array in part.items()}
        if name not in self._joint():
            acting[_EXPLORATION] = np.zeros_like(self._exploration(name, 0)) if exploration is None else exploration
            if self._statistics is not None:
                acting[_SEEN] = self._shown.get(name, np.zeros_like(self._statistics.of(self._class_of(name))))
        return PolicyState(acting, learning, self._metadata(name))

    def _remember(self, inputs: RoundInput) -> None:
        known, rule = self._replay.counts.inserted, self._settings.reward_rule
        trajectories = [rewarded(each, self._spaces, rule) for each in inputs.trajectories]
        self._replay.insert(inputs.round, trajectories)
        # A round that the buffer already has, as after a crash, is not inserted again, and
        # its rewards must not count twice.
        if self._replay.counts.inserted > known:
            self._moments.add([with_dead_agents_rewarded(each, rule) for each in trajectories])
            if self._statistics is not None:
                for group in inputs.groups:
                    # those of a checkpoint, if the job began from one
                    self._statistics.begin(self._class_of(group.policy), self._shown[group.start])
                self._statistics.add(inputs.trajectories)

    def _recall(self, state: PolicyState) -> None:
        moments = self._no_rewards()
        sums = state.learning.get(_REWARDS)
        if sums is None or sums.shape != moments.sums.shape:
            raise CorruptError(
                f"{self._replay_name}: the state holds no moments of the rewards of {self._scope.name}; an earlier "
                "version of marless wrote it, which scaled rewards otherwise: train the job anew"
            )
        moments.sums[:] = sums
        if self._statistics is not None:
            self._statistics.restore(state.learning)
        self._replay.restore(state.learning)
        self._moments = moments

    def _no_observations(self) -> ObservationStatistics | None:
        """Statistics as this learner keeps them, of nothing."""
        if self._statistics is None:
            return None
        clip = None  # it is no part of a state
        return ObservationStatistics(self._spaces, self._scope.classes, clip, with_state=self._kinds.with_state)

    def _given(self, name: str, env_steps: int) -> dict[str, NDArray[np.generic]]:
        """What a policy's gradients say to its actors: exploration parameters, and statistics of observations."""
        found: dict[str, NDArray[np.generic]] = {_EXPLORATION: self._exploration(name, env_steps)}
        if self._statistics is not None:
            found[_SEEN] = self._statistics.of(self._class_of(name))
        return found

    def _recall_shown(self, name: str, arrays: Arrays) -> None:
        """Keep the statistics of a policy's state or gradients; raises CorruptError if they are missing."""
        if self._statistics is None:
            return
        shown, expected = arrays.get(_SEEN), self._statistics.of(self._class_of(name)).shape
        if shown is None or shown.shape != expected or shown.dtype != np.float64:
            raise CorruptError(f"{name}: {_SEEN} is missing or not float64{list(expected)}")
        self._shown[name] = shown.astype(np.float64, copy=True)

    def _ready(self) -> bool:
        # Without a warm-up, too, there must be something to draw.
        return self._replay.size >= max(self._settings.warmup, 1)

    def _draws(
        self, inputs: RoundInput, rng: np.random.Generator, count: int, times: int, meter: PassTimer
    ) -> Iterator[Batch]:
        """Draw `times` batches, metered as post-processing."""
        beta = value_at(self._settings.replay.beta, inputs.env_steps)
        batches = self._batches.draws(rng, count, times, self._moments, beta)
        # Advanced by hand, because draws are timed as post-processing, and the gradient steps between them are not.
        while True:
            with meter.measure("post_process", (self._scope.name,)):
                together = next(batches, None)
            if together is None:
                return
            yield from together

    def _reprioritise(self, found: list[_Found]) -> None:
        """Give the drawn rows of some batches their new priorities, and empty the list; a GPU is waited for once."""
        rows = [row for row, priority_E in found if priority_E is not None]
        if rows:
            priority_E = torch.cat([each for _, each in found if each is not None])
            self._replay.reprioritise(np.concatenate(rows), priority_E.cpu().numpy())
        found.clear()

    def _gradient_steps(self, inputs: RoundInput) -> int:
        """Number of gradient steps of an update."""
        return self._settings.gradient_steps(inputs.sampled_steps)

    def _lr(self, prefix: str, env_steps: int) -> float:
        """The learning rate of the nets of a prefix."""
        return value_at(self._settings.lr, env_steps)

    def _exploration(self, name: str, env_steps: int) -> NDArray[np.float32]:
        """The exploration parameters of a policy in a round that begins after so many env steps of the job."""
        return np.array(self._kinds.exploration[self._class_of(name)](env_steps), np.float32)


def draw_generator(inputs: RoundInput) -> np.random.Generator:
    """The random generator of all draws from the replay in a round."""
    return np.random.default_rng([inputs.seed, inputs.round, _STREAM])


def _remembered(replay: ReplayBuffer, moments: RewardMoments, statistics: ObservationStatistics | None) -> PolicyState:
    seen = {} if statistics is None else statistics.arrays()
    return PolicyState({}, {**replay.arrays(), _REWARDS: moments.sums.copy(), **seen}, {"kind": REPLAY})
