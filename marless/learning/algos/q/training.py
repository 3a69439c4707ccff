"""Gradient steps of Q-learning over batches of a replay; see `marless.learning.algos.off_policy.learner.Training`.

Independent: the values of each policy have TD targets of their own. Joint: the team's value, computed by the mixer, has
the TD target, and each policy gets the gradient of that error with respect to its agents' values.
Shapes: N agents of a class, R agents of all classes, P policies of a stack, T time steps of E columns, M = T · E; a
stack has C columns of a time step, m · E of m pooled members.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.learner import RoundInput
from marless.learning.algos.off_policy.batches import Batch, ClassBatch, Gains
from marless.learning.algos.q.algorithms import QConfig
from marless.learning.algos.q.functions import Mixer, MonotoneMixer, QFunction, QInputs
from marless.learning.algos.training import measuring, td
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import Samples, Stack
from marless.learning.algos.training.td import Metrics, TrainedStack, sample_weights, td_gradient, td_metrics
from marless.learning.algos.training.turns import Turns
from marless.learning.nets.stacked import units_off

_PARTS = 4
"""Number of parts of a batch whose gradients the noise scale compares with that of the whole batch."""


@dataclass(frozen=True, kw_only=True)
class Policies(TrainedStack):
    """A stack of Q nets of one class."""

    index: int
    """Index of the class within the scope."""
    stack: Stack
    function: QFunction

    def read(self, batch: Batch) -> QInputs:
        """The stack's inputs from a draw."""
        mine = batch.classes[self.index]
        return QInputs(
            features=self.stack.pool(mine.features),
            action=self.stack.pool(mine.action),
            legal=None if mine.legal is None else self.stack.pool(mine.legal),
            steps=batch.steps,
            returned=None if mine.returned is None else self.stack.pool(mine.returned),
            turn=None if mine.turn is None else self.stack.pool(mine.turn),
            memory=None if mine.memory is None else self.stack.pool(mine.memory),
        )

    def own(self, x_NM: Tensor) -> Tensor:
        """Convert numbers per sample of each agent to the stack's samples: [N, M] → [P, T · C]."""
        return self.stack.pool(x_NM.unsqueeze(1)).squeeze(1)


class QTraining(ABC):
    """All stacks of a scope."""

    def __init__(self, config: QConfig, policies: Sequence[Policies], count: int) -> None:
        self._config = config
        self._policies = tuple(policies)
        self._names = tuple(name for each in policies for name in each.names)
        self.count = count

    @abstractmethod
    def _errors(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Per stack, each [P, T · C]: the TD error of its samples, and the derivative of the value in the TD error with
        respect to the value of the action taken.
        """

    def metrics(self) -> Metrics:
        found: Metrics = {}
        for each in self._policies:
            found |= each.metrics(units_off(each.function.net))
        return found

    def measured(self, inputs: RoundInput, batch: Batch, meter: PassTimer) -> Metrics:
        """See `Training`; the objective is −δ²/2, with the other policies and the mixer held fixed."""
        found: Metrics = {}
        for each, (error_PM, share_PM) in zip(self._policies, self._errors(batch), strict=True):
            with meter.measure("curvature", each.names):
                seen = each.read(batch)
                parts = {
                    "features": seen.features[:, :, : -seen.width],
                    "action": seen.action.float(),
                    "error": error_PM.unsqueeze(1),
                    "share": share_PM.unsqueeze(1),
                    "alive": each.own(acting(batch, batch.classes[each.index])).unsqueeze(1),
                }
                # A net with memory is told where it begins even if all episodes that were drawn have a single step.
                in_sequence = batch.steps > 1 or each.function.net.layout.memory > 0
                if in_sequence:
                    first_x1M = seen.resets()[:, :-1].float().flatten(1).unsqueeze(1)
                    parts["first"] = first_x1M.expand(len(each.names), 1, -1)
                samples = Samples(parts, batch.steps if in_sequence else None, seen.memory)
                numbers = measuring.measured(each.function, samples, inputs, _PARTS)
            for i, name in enumerate(each.names):
                found[name] = {key: float(number_P[i]) for key, number_P in numbers.items()}
        return found


class IndependentTraining(QTraining):
    """IQL: each policy has TD targets of its own."""

    def step(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        errors = []
        for each in self._policies:
            with meter.measure("policy", each.names):
                errors.append(self._gradient(each, batch))
                td.follow(each, each.function.net.gradient_PD, self._config)
        return self._priorities(batch, errors)

    def gradients(self, batch: Batch, meter: PassTimer) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        found: dict[str, dict[str, Tensor]] = {}
        errors = []
        for each in self._policies:
            with meter.measure("policy", each.names):
                errors.append(self._gradient(each, batch))
            found |= by_name(each, each.function.net.gradient_PD)
        return found, self._priorities(batch, errors)

    def _gradient(self, each: Policies, batch: Batch) -> Tensor:
        """Write the stack's gradient; returns the TD errors, [P, T · C]."""
        mine = batch.classes[each.index]
        value_PM, error_PM = self._judged(each, batch)
        importance_M = None if batch.importance is None else each.own(batch.importance.expand(len(mine.features), -1))
        counts_PM = each.own(counted(batch, mine))
        weight_PM = sample_weights(counts_PM, importance_M)
        each.function.backward(td_gradient(error_PM, weight_PM, self._config.huber))
        each.seen.append(td_metrics(value_PM, error_PM, weight_PM, counts_PM, self._config.huber))
        return error_PM

    def _judged(self, each: Policies, batch: Batch) -> tuple[Tensor, Tensor]:
        """Values of the actions taken, and their TD errors, each [P, T · C]."""
        value_PM, after_PM = each.function.values(each.read(batch), double=self._config.double)
        mine, gained = batch.classes[each.index], batch.gains[each.index]
        gains, stays_PM, waits_PF = Gains(each.own(gained.reward), each.own(gained.discount)), None, None
        if mine.alive is not None and batch.steps > 1:
            # an agent that is absent in the next step was truncated, or has terminated: nothing later is its return
            stays_PM = each.own(mine.alive[:, batch.width :]) > 0
            if mine.waits is not None:
                waits_PF = each.own(mine.waits) > 0
                stays_PM |= waits_PF[:, -stays_PM.shape[1] :]
        return value_PM, value_PM - returns(gains, after_PM, batch, self._config, stays_PM, waits_PF)

    def _errors(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        errors = [self._judged(each, batch)[1] for each in self._policies]
        return [(error_PM, torch.ones_like(error_PM)) for error_PM in errors]

    def _priorities(self, batch: Batch, errors: Sequence[Tensor]) -> Tensor | None:
        """[E], mean absolute error over the agents that are present and over time; None for uniform draws."""
        if batch.importance is None:
            return None
        # members and time steps of a stack follow one another with E columns each, whichever way they are pooled
        error_RE = torch.cat([error_PM.reshape(-1, batch.width) for error_PM in errors])
        counts = [each.own(counted(batch, batch.classes[each.index])) for each in self._policies]
        counts_RE = torch.cat([counts_PM.reshape(-1, batch.width) for counts_PM in counts])
        return td.mean_errors(error_RE, counts_RE, batch.width)


class JointTraining(QTraining):
    """VDN and QMIX: all policies are trained together through a mixer; `joint` trains it, and is None for a sum."""

    def __init__(
        self, config: QConfig, policies: Sequence[Policies], count: int, mixer: Mixer, joint: TrainedStack | None
    ) -> None:
        super().__init__(config, policies, count)
        self._mixer, self._joint = mixer, joint

    def metrics(self) -> Metrics:
        return super().metrics() | (self._joint.metrics() if self._joint else {})

    def step(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        priority_E = self._gradient(batch, meter)
        with meter.measure("policy", self._names):
            for each in self._policies:
                td.follow(each, each.function.net.gradient_PD, self._config)
        if self._joint and isinstance(self._mixer, MonotoneMixer):
            with meter.measure("mixer", self._joint.names):
                td.follow(self._joint, self._mixer.gradient_PD, self._config)
        return priority_E

    def gradients(self, batch: Batch, meter: PassTimer) -> tuple[dict[str, dict[str, Tensor]], Tensor | None]:
        priority_E = self._gradient(batch, meter)
        found: dict[str, dict[str, Tensor]] = {}
        for each in self._policies:
            found |= by_name(each, each.function.net.gradient_PD)
        if self._joint and isinstance(self._mixer, MonotoneMixer):
            found |= by_name(self._joint, self._mixer.gradient_PD)
        return found, priority_E

    def _gradient(self, batch: Batch, meter: PassTimer) -> Tensor | None:
        """Write the gradients of all nets; returns priorities."""
        with meter.measure("policy", self._names):
            values = self._values(batch)
        # A sum has no function of its own: it is measured with the policies.
        with meter.measure("mixer", self._joint.names) if self._joint else meter.measure("policy", self._names):
            team_1M, error_1M = self._mixed(batch, *values)
            counts_1M = anyone(batch)
            weight_1M = sample_weights(counts_1M, batch.importance)
            # the mixer attributes the team's error to the agents' values
            d_value_RM = self._mixer.gradient(td_gradient(error_1M, weight_1M, self._config.huber))
        with meter.measure("policy", self._names):
            found = td_metrics(team_1M, error_1M, weight_1M, counts_1M, self._config.huber)
            for each, d_value_PM in zip(self._policies, self._shares(d_value_RM, batch), strict=True):
                each.function.backward(d_value_PM)
                each.seen.append({name: number.expand(len(each.names)) for name, number in found.items()})
        return None if batch.importance is None else td.mean_errors(error_1M, counts_1M, batch.width)

    def _values(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Values of the agents' actions, and of their best next actions, each [R, M]; 0 for absent agents."""
        ends = self._agents(batch)
        shape = ends[-1], batch.steps * batch.width
        value_RM, after_RM = (batch.gains[0].reward.new_empty(shape) for _ in range(2))
        for each in self._policies:
            rows = slice(ends[each.index], ends[each.index + 1])
            value_PM, after_PM = each.function.values(each.read(batch), double=self._config.double)
            each.stack.spread(value_PM.unsqueeze(1), value_RM[rows])
            each.stack.spread(after_PM.unsqueeze(1), after_RM[rows])
        for index, mine in enumerate(batch.classes):
            if mine.alive is not None:
                rows = slice(ends[index], ends[index + 1])
                # Dead agents add nothing to the team's value; in the papers' code the value of their
                # only legal action is included.
                value_RM[rows] *= mine.alive[:, : -batch.width]
                after_RM[rows] *= mine.alive[:, batch.width :]
        return value_RM, after_RM

    def _mixed(self, batch: Batch, value_RM: Tensor, after_RM: Tensor) -> tuple[Tensor, Tensor]:
        """The team's value and its TD error, each [1, M]."""
        now = after = None
        if batch.state is not None:
            now, after = batch.state[:, :, : -batch.width], batch.state[:, :, batch.width :]
        target_1M = returns(batch.gains[0], self._mixer.target(after_RM, after), batch, self._config)
        team_1M = self._mixer.mix(value_RM, now)
        return team_1M, team_1M - target_1M

    def _shares(self, x_RM: Tensor, batch: Batch) -> list[Tensor]:
        """Convert numbers per agent, [R, M], to the samples of each stack, [P, T · C]; 0 for absent agents."""
        ends, found = self._agents(batch), []
        for each in self._policies:
            mine = batch.classes[each.index]
            x_NM = x_RM[ends[each.index] : ends[each.index + 1]]
            found.append(each.own(x_NM if mine.alive is None else x_NM * mine.alive[:, : -batch.width]))
        return found

    def _errors(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The team's error for all stacks, with the mixer's derivatives (1 in VDN); its curvature is neglected
        (Gauss-Newton).
        """
        _, error_1M = self._mixed(batch, *self._values(batch))
        share_RM = self._mixer.gradient(torch.ones_like(error_1M))
        errors = self._shares(error_1M.expand_as(share_RM), batch)
        return list(zip(errors, self._shares(share_RM, batch), strict=True))

    def _agents(self, batch: Batch) -> list[int]:
        """Offsets of each class's agents among all agents, and the total."""
        ends = [0]
        for mine in batch.classes:
            ends.append(ends[-1] + len(mine.features))
        return ends


def by_name(trained: TrainedStack, gradient_PD: Tensor) -> dict[str, dict[str, Tensor]]:
    """A stack's gradients in the form of `Training.gradients`."""
    return {name: {trained.prefix: gradient_PD[i]} for i, name in enumerate(trained.names)}


def returns(
    gains: Gains,
    after_XM: Tensor,
    batch: Batch,
    config: QConfig,
    stays_XM: Tensor | None = None,
    waits_XF: Tensor | None = None,
) -> Tensor:
    """The TD targets, [X, M], given the values after each sample.

    `stays`, bool [X, M], is true where the agent is there in the next step, in a turn that is not open or before one;
    None if it makes no difference. `waits`, bool [X, F], tells in which steps agents wait; None if nobody does.
    """
    if batch.steps == 1:  # rewards of n-step targets are summed already
        return torch.addcmul(gains.reward, gains.discount, after_XM)
    shape = len(after_XM), batch.steps, -1
    reward_XTC, discount_XTC, after_XTC = (x.reshape(shape) for x in (gains.reward, gains.discount, after_XM))
    follows = batch.follows.repeat(1, reward_XTC.shape[2] // batch.width)
    if stays_XM is not None:
        follows = follows & stays_XM.view_as(reward_XTC)
    onward_XTC = None
    if waits_XF is not None:
        waits_XTC = waits_XF[:, : after_XM.shape[1]].reshape(shape)
        turns = Turns.of(waits_XTC, torch.zeros_like(waits_XTC), follows)
        after_XTC, onward_XTC = turns.through(reward_XTC, discount_XTC, after_XTC), turns.onward
    if config.td_lambda is not None:
        return td.lambda_returns(reward_XTC, discount_XTC, after_XTC, follows, config.td_lambda, onward_XTC).flatten(1)
    return td.n_step_returns(reward_XTC, discount_XTC, after_XTC, follows, config.n_step).flatten(1)


def counted(batch: Batch, mine: ClassBatch) -> Tensor:
    """[N, M], 1 for samples of each agent that count, 0 for padding and for absent agents."""
    shape = len(mine.features), batch.steps * batch.width
    counts_NM = mine.features.new_ones(shape) if mine.alive is None else mine.alive[:, : -batch.width]
    return counts_NM if batch.valid is None else counts_NM * batch.valid


def acting(batch: Batch, mine: ClassBatch) -> Tensor:
    """[N, M], 1 for samples that count and in which the agent itself acts."""
    counts_NM = counted(batch, mine)
    return counts_NM if mine.acts is None else counts_NM * mine.acts


def anyone(batch: Batch) -> Tensor:
    """[1, M], 1 for samples in which at least one agent is present, 0 for others and for padding."""
    return torch.stack([counted(batch, mine).amax(dim=0) for mine in batch.classes]).amax(dim=0, keepdim=True)
