"""The learner of the Q-learning family: IQL, VDN and QMIX, which differ in how values are mixed, see `Mixing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.off_policy.learner import Kinds, OffPolicyLearner, PublishedNet, Training
from marless.learning.algos.q.algorithms import Mixing, QConfig, QMIXConfig
from marless.learning.algos.q.functions import MonotoneMixer, QFunction, Sum
from marless.learning.algos.q.training import IndependentTraining, JointTraining, Policies
from marless.learning.algos.settings import value_at
from marless.learning.algos.training.policy_batching import Stack, cut_stacks, stacks
from marless.learning.algos.training.td import TrainedStack, make_optimizer
from marless.learning.nets import acting
from marless.learning.nets.acting_heads import EPSILON_GREEDY
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import MixingLayout, layout
from marless.learning.nets.learner_states import Bank, Row, StateCodec

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
            exploration=dict.fromkeys(scope.classes, lambda env_steps: (value_at(config.epsilon, env_steps),)),
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
            shape = layout(inputs[k].shape(agents), model, agents.action.n + config.dueling)
            build = partial(
                QFunction,
                layout=shape,
                activation=model.activation,
                dueling=config.dueling,
                precision=context.precision,
            )
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
        lr, steps = self._lr(_POLICY, inputs.env_steps), self._gradient_steps(inputs)
        optimizer = partial(make_optimizer, self._config, lr=lr, steps=steps)
        policies = [
            Policies(
                names=stack.names,
                prefix=_POLICY,
                tensors=function.tensors,
                optimizer=optimizer(function.tensors),
                index=index,
                stack=stack,
                function=function,
            )
            for index, k in enumerate(self._scope.classes)
            for stack, function in self._arranged(k, inputs, count, copies=copies)
        ]
        if self._mixing == "none":
            return IndependentTraining(self._config, policies, count)
        if self._mixing == "sum":
            return JointTraining(self._config, policies, count, Sum(), None)
        names = ((_MIXER,), (_MIXER,))
        (mixer,) = self._mixer.bank.copies([names]) if copies else self._mixer.bank.arrange([names])
        row = mixer.tensors
        joint = TrainedStack(names=(_MIXER,), prefix=_MIXER, tensors=row, optimizer=optimizer(row))
        return JointTraining(self._config, policies, count, mixer, joint)

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
