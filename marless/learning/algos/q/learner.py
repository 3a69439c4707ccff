"""The learner of the Q-learning family: IQL, VDN and QMIX, which differ in how values are mixed, see `Mixing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from marless.core.state import Arrays
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.off_policy.learner import (
    Kinds,
    OffPolicyLearner,
    Optimizer,
    PublishedNet,
    Training,
    make_optimizer,
)
from marless.learning.algos.q.config import QConfig, QMIXConfig
from marless.learning.algos.q.functions import QFunction
from marless.learning.algos.q.mixers import MonotoneMixer, Sum
from marless.learning.algos.q.training import IndependentTraining, JointTraining, Policies, TrainedQ
from marless.learning.algos.rates import value_at
from marless.learning.algos.training.policy_batching import Stack, cut_stacks, stacks
from marless.learning.nets import acting
from marless.learning.nets.acting_heads import EPSILON_GREEDY
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import MixingLayout, checked, layout
from marless.learning.nets.learner_states import Bank, Row, StateCodec

Mixing = Literal["none", "sum", "monotone"]
"""none: each policy has TD targets of its own; sum, monotone: the sum, or a monotone function, of all agents' values
has the team's TD target."""
_MIXER, _POLICY = "mixer", "policy"
_OUTPUT_GAIN = 0.01
"""Gain of the initial output layer of Q nets, so small that all actions initially have similar values."""
_MIXER_GAIN = 0.3
"""Gain of the initial output layers of the mixer's hypernetworks: if the state's components are of size 1, the team's
value then initially changes about as much as each agent's value."""


@dataclass(frozen=True)
class DuelingCodec(StateCodec):
    """The codec of nets with a dueling head. For actors, the head is merged into one output per action, because
    V + A − mean A is linear in the last layer.
    """

    def write(self, row: Row) -> tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]:
        """See `StateCodec`; `learning` has the unmerged weights."""
        _, learning = super().write(row)
        weights = self.layout.to_arrays(self.prefix, row["flat"].cpu().numpy())
        *_, last = (name.removesuffix(".weight") for name in weights if name.endswith(".weight"))
        for part in (f"{last}.weight", f"{last}.bias"):
            value, advantage = weights[part][:1], weights[part][1:]
            weights[part] = value + advantage - advantage.mean(axis=0, keepdims=True)
        return {**weights}, learning


class QLearner(OffPolicyLearner):
    """The learner of one scope of one job; see `marless.learning.algos.learner.Learner`."""

    def __init__(self, config: QConfig, context: LearnerContext, *, mixer: Mixing) -> None:
        scope, spaces, model = context.scope, context.spaces, context.model
        inputs = {k: Inputs.of(spaces.classes[k], model, last_action=config.last_action) for k in scope.classes}
        kinds = Kinds(
            inputs=inputs,
            exploration=dict.fromkeys(scope.classes, config.epsilon),
            with_state=mixer == "monotone",
            team=mixer != "none",
            together=mixer != "none",
        )
        super().__init__(config, context, kinds)
        self._config = config
        self._mixing = mixer
        self._inputs = inputs
        self._model = model
        codec = DuelingCodec if config.dueling else StateCodec
        biased = mixer != "monotone"  # docs/algorithms/q_learning.md#what-differs-from-the-papers
        self._nets: dict[int, PublishedNet] = {}
        for k in scope.classes:
            agents = spaces.classes[k]
            shape = layout(inputs[k].size(agents), model, agents.action.n + config.dueling)
            build = partial(QFunction, layout=shape, activation=model.activation, dueling=config.dueling)
            made = codec(_POLICY, shape, output_gain=_OUTPUT_GAIN, acts=not config.dueling, target=True, biased=biased)
            self._nets[k] = PublishedNet(made, Bank(build))
        if isinstance(config, QMIXConfig):
            team = sum(len(each.agents) for each in scope.agent_classes(spaces))
            mixing = MixingLayout(spaces.state_size, team, config.embed, config.hypernet)
            bank = Bank(partial(MonotoneMixer, layout=mixing))
            self._mixer = PublishedNet(
                StateCodec(_MIXER, mixing, output_gain=_MIXER_GAIN, acts=False, target=True), bank
            )

    def _joint(self) -> tuple[str, ...]:
        return (_MIXER,) if self._mixing == "monotone" else ()

    def _parts(self, name: str) -> Sequence[PublishedNet]:
        return (self._mixer if name in self._joint() else self._nets[self._class_of(name)],)

    def _metadata(self, name: str) -> Mapping[str, str]:
        if name in self._joint():
            return {"kind": "mixer"}
        k = self._class_of(name)
        return acting.description(self._spaces.classes[k], self._model, acts=EPSILON_GREEDY, inputs=self._inputs[k])

    def _training(self, inputs: RoundInput, *, copies: bool) -> Training:
        count = self._count(inputs)
        policies = [
            self._policies(k, stack, function, inputs)
            for k in self._scope.classes
            for stack, function in self._arranged(k, inputs, count, copies=copies)
        ]
        if self._mixing == "none":
            return IndependentTraining(self._config, self._scope.name, policies, count)
        if self._mixing == "sum":
            return JointTraining(self._config, self._scope.name, policies, count, Sum(), None)
        names = ((_MIXER,), (_MIXER,))
        arrange = self._mixer.bank.copies if copies else self._mixer.bank.arrange
        (mixer,) = arrange([names])
        optimizer = self._optimizer(mixer.tensors, inputs)
        joint = TrainedQ(names=(_MIXER,), prefix=_MIXER, tensors=mixer.tensors, optimizer=optimizer)
        return JointTraining(self._config, self._scope.name, policies, count, mixer, joint)

    def _apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        (part,) = self._parts(name)
        prefix = part.codec.prefix
        gradient_D = checked(gradients, prefix, (part.codec.layout.size,))
        gradient_1D = torch.tensor(gradient_D, device=self._device).unsqueeze(0)
        lr = value_at(self._config.lr, env_steps)

        def follow(function: QFunction | MonotoneMixer) -> None:
            optimizer = make_optimizer(self._config, function.tensors, lr=lr, steps=1)
            trained = TrainedQ(names=(name,), prefix=prefix, tensors=function.tensors, optimizer=optimizer)
            trained.follow(gradient_1D, self._config)

        part.bank.change(name, follow)

    def _count(self, inputs: RoundInput) -> int:
        """Env steps, or episodes, of a batch. With a mixer, which needs the samples of all agents, and `pooling`
        "drawn", fewer are drawn, so that all agents together have `batch_size` samples per policy.
        """
        agents, policies = sum(len(group.agents) for group in inputs.groups), len(inputs.groups)
        drawn = self._mixing != "none" and inputs.pooling == "drawn"
        # Rounded up, so that a batch is never empty.
        return -(-self._config.batch_size * policies // agents) if drawn else self._config.batch_size

    def _arranged(self, k: int, inputs: RoundInput, count: int, *, copies: bool) -> list[tuple[Stack, QFunction]]:
        agents, bank = self._spaces.classes[k], self._nets[k].bank
        groups = [group for group in inputs.groups if group.agents[0] in agents.agents]
        chosen: Sequence[Stack]
        if self._mixing != "none" or inputs.pooling == "pooled" or all(len(group.agents) == 1 for group in groups):
            chosen = stacks(groups, agents, parts=1, device=self._device, copies=count)
        else:
            chosen = cut_stacks(groups, agents, parts=1, device=self._device, copies=count)
        arrange = bank.copies if copies else bank.arrange
        functions = arrange([(stack.names, stack.starts) for stack in chosen])
        return list(zip(chosen, functions, strict=True))

    def _policies(self, k: int, stack: Stack, function: QFunction, inputs: RoundInput) -> Policies:
        return Policies(
            names=stack.names,
            prefix=_POLICY,
            tensors=function.tensors,
            optimizer=self._optimizer(function.tensors, inputs),
            index=self._scope.classes.index(k),
            stack=stack,
            function=function,
        )

    def _optimizer(self, tensors: Row, inputs: RoundInput) -> Optimizer:
        lr = value_at(self._config.lr, inputs.env_steps)
        return make_optimizer(self._config, tensors, lr=lr, steps=self._gradient_steps(inputs))
