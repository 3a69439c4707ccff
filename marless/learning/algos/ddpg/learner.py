"""The learner of the deterministic policy gradient family: MADDPG, whose critics read all agents, and IDDPG.

They differ only in the inputs of critics and the agents that a critic serves, see `Critic`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from marless.learning.algos.ddpg.actor_critics import ActorCritics, Actors, Critics, RowNets
from marless.learning.algos.ddpg.algorithms import Critic, DDPGConfig
from marless.learning.algos.ddpg.heads import Head, head
from marless.learning.algos.ddpg.inputs import CriticInputs, JointInputs, OwnInputs, Sizes
from marless.learning.algos.ddpg.training import DDPGTraining, Ensemble, TrainedActorCritic
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.off_policy.learner import Kinds, OffPolicyLearner, PublishedNet, Training
from marless.learning.algos.off_policy.td import make_optimizer
from marless.learning.algos.settings import value_at
from marless.learning.algos.training.policy_batching import Stack, row_stacks
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.acting import description
from marless.learning.nets.acting_heads import DETERMINISTIC, EPSILON_STOCHASTIC, STOCHASTIC
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import NetLayout, layout
from marless.learning.nets.learner_states import Bank, Row, StateCodec

_POLICY, _CRITIC, _TWIN = "policy", "critic", "twin"
"""Prefixes of nets in published states."""


@dataclass(frozen=True)
class _Held:
    """The function of these banks: the stacked tensors alone, as nets are made for each round."""

    tensors: Row


@dataclass(frozen=True)
class _Class:
    """The policies of one agent class of the scope."""

    agents: AgentClass
    inputs: Inputs
    """Inputs of the policies and, with the action, of critics that they share."""
    head: Head
    layout: NetLayout
    policies: PublishedNet

    def chosen(self, inputs: RoundInput, samples: int, device: torch.device) -> list[Stack]:
        """The stacks of the round's groups of this class, which train on batches of so many samples."""
        mine = [group for group in inputs.groups if group.agents[0] in self.agents.agents]
        return row_stacks(mine, self.agents, pooling=inputs.pooling, samples=samples, device=device)


def _mixes(action: Discrete | Box, config: DDPGConfig) -> bool:
    """True if exploring actors mix uniform actions into those of the policy."""
    return isinstance(action, Discrete) and config.epsilon != 0


class DDPGLearner(OffPolicyLearner):
    """The learner of one scope of one job; see `marless.learning.algos.learner.Learner`."""

    def __init__(self, config: DDPGConfig, context: LearnerContext, *, critic: Critic) -> None:
        classes = context.scope.agent_classes(context.spaces)
        inputs = {k: Inputs.of(context.spaces.classes[k], context.model) for k in context.scope.classes}
        explores = {
            k: config.epsilon if _mixes(context.spaces.classes[k].action, config) else config.noise for k in inputs
        }
        kinds = Kinds(inputs=inputs, exploration=explores, with_state=False, team=False, together=critic == "joint")
        super().__init__(config, context, kinds)
        self._config = config
        self._model, self._activation = context.model, context.model.activation
        self._classes: list[_Class] = []
        sizes = []
        for a, seen in zip(classes, inputs.values(), strict=True):
            shape = layout(seen.size(a), context.model, a.action.n)
            # With so small an output layer policies start close to the middle of the box, or close to uniform.
            codec = StateCodec(_POLICY, shape, output_gain=0.01, acts=True, target=True, biased=True)
            self._classes.append(_Class(a, seen, head(a.action, config), shape, PublishedNet(codec, Bank(_Held))))
            # What critics read of each agent: its id only if agents share a critic.
            sizes.append(Sizes(len(a.agents), seen.size(a) if critic == "own" else a.obs_size, a.action.n))
        self._inputs: CriticInputs = JointInputs(sizes) if critic == "joint" else OwnInputs(sizes[0])
        self._critic_layout = layout(self._inputs.size, config.critic_model(context.model), 1)
        kind = partial(StateCodec, layout=self._critic_layout, output_gain=1.0, acts=False, target=True, biased=True)
        prefixes = (_CRITIC, _TWIN) if config.twin else (_CRITIC,)
        self._critics = {prefix: PublishedNet(kind(prefix), Bank(_Held)) for prefix in prefixes}
        agents = tuple(agent for each in classes for agent in each.agents)
        self._critic_names = tuple(f"critic.{agent}" for agent in agents) if critic == "joint" else ()

    def _joint(self) -> tuple[str, ...]:
        return self._critic_names

    def _parts(self, name: str) -> Sequence[PublishedNet]:
        critics = tuple(self._critics.values())
        if name in self._critic_names:
            return critics
        return (self._serves(name).policies, *(() if self._critic_names else critics))

    def _metadata(self, name: str) -> Mapping[str, str]:
        if name in self._critic_names:
            return {"kind": self._model.kind, "activation": self._activation}
        mine = self._serves(name)
        agents = mine.agents
        # Agents of MADDPG's code act by relaxed samples of the Gumbel-softmax; here by exact ones,
        # which is to draw from the softmax.
        acts = STOCHASTIC if isinstance(agents.action, Discrete) else DETERMINISTIC
        if _mixes(agents.action, self._config):
            acts = EPSILON_STOCHASTIC
        return description(agents, self._model, acts=acts, inputs=mine.inputs)

    def _training(self, inputs: RoundInput, *, copies: bool) -> Training:
        ensembles = self._together(inputs, copies) if self._critic_names else self._apart(inputs, copies)
        heads = [each.head for each in self._classes]
        return DDPGTraining(self._config, self._scope.name, ensembles, heads, (inputs.seed, inputs.round))

    def _serves(self, name: str) -> _Class:
        """The class of a policy."""
        return self._classes[self._scope.classes.index(self._class_of(name))]

    def _lr(self, prefix: str, env_steps: int) -> float:
        return value_at(self._config.lr if prefix == _POLICY else self._config.critic_lr, env_steps)

    def _together(self, inputs: RoundInput, copies: bool) -> list[Ensemble]:
        """One ensemble of all agents of all classes, with one critic per agent."""
        seats = Stack.separate(self._critic_names, self._device)
        critics = {prefix: _arranged(part, [seats], copies)[0] for prefix, part in self._critics.items()}
        actors, policies, first = [], [], 0
        for index, each in enumerate(self._classes):
            chosen = each.chosen(inputs, self._config.batch_size, self._device)
            for stack, row in zip(chosen, _arranged(each.policies, chosen, copies), strict=True):
                # Critics are those of all classes, class after class, and indices of agents are within their class.
                judges = [first + agent for agent in stack.agents.tolist()]
                actors.append(self._actors(index, stack, row, critics[_CRITIC], judges))
                policies.append(self._trained(_POLICY, stack.names, row, inputs))
            first += len(each.agents.agents)
        return [self._ensemble(None, actors, policies, seats, critics, inputs)]

    def _apart(self, inputs: RoundInput, copies: bool) -> list[Ensemble]:
        """One ensemble per stack of policies, with one critic per policy."""
        (mine,) = self._classes
        chosen = mine.chosen(inputs, self._config.batch_size, self._device)
        policies = _arranged(mine.policies, chosen, copies)
        critics = {prefix: _arranged(part, chosen, copies) for prefix, part in self._critics.items()}
        ensembles = []
        for i, stack in enumerate(chosen):
            seats = stack.seated()
            judged = {prefix: found[i] for prefix, found in critics.items()}
            actors = self._actors(0, seats, policies[i], judged[_CRITIC], stack.owners)
            trained = self._trained(_POLICY, stack.names, policies[i], inputs)
            ensembles.append(self._ensemble(stack, [actors], [trained], seats, judged, inputs))
        return ensembles

    def _ensemble(
        self,
        stack: Stack | None,
        actors: Sequence[Actors],
        policies: Sequence[TrainedActorCritic],
        seats: Stack,
        critics: Mapping[str, Row],
        inputs: RoundInput,
    ) -> Ensemble:
        judges = [Critics(**self._nets(self._critic_layout, row, seats)) for row in critics.values()]
        trained = [self._trained(prefix, seats.names, row, inputs) for prefix, row in critics.items()]
        nets = ActorCritics(self._inputs, actors, judges, regularisation=self._config.regularisation)
        return Ensemble(stack=stack, nets=nets, policies=tuple(policies), critics=tuple(trained))

    def _actors(self, index: int, stack: Stack, row: Row, critic: Row, judges: Sequence[int]) -> Actors:
        """Make a stack of policies; `judges` are the indices of its rows' critics."""
        mine = self._classes[index]
        return Actors(
            index=index,
            stack=stack,
            head=mine.head,
            judges=RowNets(self._critic_layout, critic["flat"], self._activation, judges),
            own=self._inputs.own(index).to(self._device)[stack.agents],
            **self._nets(mine.layout, row, stack),
        )

    def _nets(self, shape: NetLayout, row: Row, stack: Stack) -> dict[str, RowNets]:
        return {
            key: RowNets(shape, row[tensor], self._activation, stack.owners)
            for key, tensor in (("nets", "flat"), ("targets", "target"))
        }

    def _trained(self, prefix: str, names: tuple[str, ...], row: Row, inputs: RoundInput) -> TrainedActorCritic:
        lr, steps = self._lr(prefix, inputs.env_steps), self._gradient_steps(inputs)
        optimizer = make_optimizer(self._config, row, lr=lr, steps=steps)
        return TrainedActorCritic(prefix=prefix, names=names, tensors=row, optimizer=optimizer)


def _arranged(part: PublishedNet, chosen: Sequence[Stack], copies: bool) -> list[Row]:
    """The stacked rows of a net's bank, or copies of them."""
    arrange = part.bank.copies if copies else part.bank.arrange
    return [held.tensors for held in arrange([(stack.names, stack.starts) for stack in chosen])]
