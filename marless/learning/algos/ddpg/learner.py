"""The learner of actor-critics with a replay, whose critics read all agents (MADDPG, MATD3, MASAC) or one.

They differ only in the inputs of critics and the agents that a critic serves, see `Critic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from marless.learning.algos.ddpg.actor_critics import ActorCritics, Actors, Critics, RowNets
from marless.learning.algos.ddpg.algorithms import Critic, DeterministicConfig, ReplayActorCriticConfig, SoftConfig
from marless.learning.algos.ddpg.heads import Head, head
from marless.learning.algos.ddpg.inputs import CriticInputs, JointInputs, OwnInputs, Sizes
from marless.learning.algos.ddpg.training import (
    CRITIC,
    ENTROPY,
    POLICY,
    TWIN,
    ActorCriticTraining,
    Ensemble,
    TrainedActorCritic,
)
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.off_policy.learner import Kinds, OffPolicyLearner, PublishedNet, Training
from marless.learning.algos.settings import value_at
from marless.learning.algos.training.policy_batching import Stack, row_stacks
from marless.learning.algos.training.td import make_optimizer
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets.acting import description
from marless.learning.nets.acting_heads import (
    DETERMINISTIC,
    DETERMINISTIC_OR_RANDOM,
    EPSILON_STOCHASTIC,
    SQUASHED,
    STOCHASTIC,
    outputs_of,
)
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import NetLayout, NumberLayout, layout
from marless.learning.nets.learner_states import Bank, Row, StateCodec
from marless.learning.nets.net_kind import InputShape


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
    weights: PublishedNet | None
    """The learned weights of their entropies."""
    acts: str
    """How its policies act, see `marless.learning.nets.acting_heads`."""

    @property
    def parts(self) -> tuple[PublishedNet, ...]:
        return (self.policies,) if self.weights is None else (self.policies, self.weights)

    def chosen(self, inputs: RoundInput, samples: int, device: torch.device) -> list[Stack]:
        """The stacks of the round's groups of this class, which train on batches of so many samples."""
        mine = [group for group in inputs.groups if group.agents[0] in self.agents.agents]
        return row_stacks(mine, self.agents, pooling=inputs.pooling, samples=samples, device=device)


def _exploration(
    action: Discrete | Box, config: ReplayActorCriticConfig
) -> tuple[str, Callable[[int], Sequence[float]]]:
    """How policies act, and their exploration parameters once so many env steps are sampled."""
    noise = config.noise if isinstance(config, DeterministicConfig) else 0.0
    if isinstance(action, Discrete):
        # Agents of MADDPG's code act by relaxed samples of the Gumbel-softmax; here by exact ones,
        # which is to draw from the softmax.
        if config.epsilon == 0 and not config.random_steps:
            return STOCHASTIC, lambda env_steps: (value_at(noise, env_steps),)
        return EPSILON_STOCHASTIC, lambda env_steps: (
            max(value_at(config.epsilon, env_steps), config.random_share(env_steps)),
        )
    if isinstance(config, SoftConfig):
        return SQUASHED, lambda env_steps: (config.random_share(env_steps),)
    if not config.random_steps:
        return DETERMINISTIC, lambda env_steps: (value_at(noise, env_steps),)
    return DETERMINISTIC_OR_RANDOM, lambda env_steps: (value_at(noise, env_steps), config.random_share(env_steps))


def target_entropy(action: Discrete | Box, config: SoftConfig) -> float:
    """The entropy at which a learned weight aims: Haarnoja et al. 2018; discrete actions: Christodoulou 2019."""
    if config.target_entropy is not None:
        return config.target_entropy
    return 0.98 * math.log(action.n) if isinstance(action, Discrete) else -float(action.n)


class ActorCriticLearner(OffPolicyLearner):
    """The learner of one scope of one job; see `marless.learning.algos.learner.Learner`."""

    def __init__(self, config: ReplayActorCriticConfig, context: LearnerContext, *, critic: Critic) -> None:
        classes = context.scope.agent_classes(context.spaces)
        inputs = {k: Inputs.of(context.spaces.classes[k], context.model) for k in context.scope.classes}
        ways = {k: _exploration(context.spaces.classes[k].action, config) for k in inputs}
        explores = {k: numbers for k, (_, numbers) in ways.items()}
        kinds = Kinds(inputs=inputs, exploration=explores, with_state=False, team=False, together=critic == "joint")
        super().__init__(config, context, kinds)
        self._config = config
        self._model, self._activation, self._precision = context.model, context.model.activation, context.precision
        self._classes: list[_Class] = []
        sizes = []
        self._soft = config if isinstance(config, SoftConfig) else None
        for a, seen, (acts, _) in zip(classes, inputs.values(), ways.values(), strict=True):
            shape = layout(seen.shape(a), context.model, outputs_of(a.action, acts))
            # With so small an output layer policies start close to the middle of the box, or close to uniform.
            codec = StateCodec(POLICY, shape, output_gain=0.01, acts=True, target=not self._soft, biased=True)
            policies, weights = PublishedNet(codec, Bank(_Held)), _weights(config)
            self._classes.append(_Class(a, seen, head(a.action, config), shape, policies, weights, acts))
            # What critics read of each agent: its id only if agents share a critic.
            sizes.append(
                Sizes(len(a.agents), seen.size(a) if critic == "own" else seen.stacked(a).obs_size, a.action.n)
            )
        self._inputs: CriticInputs = JointInputs(sizes) if critic == "joint" else OwnInputs(sizes[0])
        judged: InputShape | int = self._inputs.size
        model = config.critic_model(context.model)
        if critic == "own":  # reads the observation first, as the policy does
            judged = replace(self._classes[0].inputs.shape(classes[0]), size=self._inputs.size)
        self._critic_layout = layout(judged, model if critic == "own" else model.of_vectors, 1)
        kind = partial(StateCodec, layout=self._critic_layout, output_gain=1.0, acts=False, target=True, biased=True)
        prefixes = (CRITIC, TWIN) if config.twin else (CRITIC,)
        self._critics = {prefix: PublishedNet(kind(prefix), Bank(_Held)) for prefix in prefixes}
        agents = tuple(agent for each in classes for agent in each.agents)
        self._critic_names = tuple(f"critic.{agent}" for agent in agents) if critic == "joint" else ()

    def _joint(self) -> tuple[str, ...]:
        return self._critic_names

    def _parts(self, name: str) -> Sequence[PublishedNet]:
        critics = tuple(self._critics.values())
        if name in self._critic_names:
            return critics
        return (*self._serves(name).parts, *(() if self._critic_names else critics))

    def _metadata(self, name: str) -> Mapping[str, str]:
        if name in self._critic_names:
            return {"kind": self._model.kind, "activation": self._activation}
        mine = self._serves(name)
        return description(mine.agents, self._model, acts=mine.acts, inputs=mine.inputs)

    def _training(self, inputs: RoundInput, *, copies: bool) -> Training:
        ensembles = self._together(inputs, copies) if self._critic_names else self._apart(inputs, copies)
        heads = [each.head for each in self._classes]
        soft = self._soft
        targets = [target_entropy(each.agents.action, soft) for each in self._classes] if soft else []
        seed = (inputs.seed, inputs.round)
        return ActorCriticTraining(self._config, self._scope.name, ensembles, heads, targets, seed)

    def _serves(self, name: str) -> _Class:
        """The class of a policy."""
        return self._classes[self._scope.classes.index(self._class_of(name))]

    def _lr(self, prefix: str, env_steps: int) -> float:
        if prefix == ENTROPY and self._soft:
            return value_at(self._soft.entropy_lr, env_steps)
        return value_at(self._config.lr if prefix == POLICY else self._config.critic_lr, env_steps)

    def _target_moves(self, prefix: str, steps: int) -> bool:
        return prefix not in self._critics or self._config.target_moves(steps)

    def _together(self, inputs: RoundInput, copies: bool) -> list[Ensemble]:
        """One ensemble of all agents of all classes, with one critic per agent."""
        seats = Stack.separate(self._critic_names, self._device)
        critics = {prefix: _arranged(part, [seats], copies)[0] for prefix, part in self._critics.items()}
        actors, policies, weights, first = [], [], [], 0
        for index, each in enumerate(self._classes):
            chosen = each.chosen(inputs, self._config.batch_size, self._device)
            learned = self._learned(each, chosen, copies)
            for i, (stack, row) in enumerate(zip(chosen, _arranged(each.policies, chosen, copies), strict=True)):
                # Critics are those of all classes, class after class, and indices of agents are within their class.
                judges = [first + agent for agent in stack.agents.tolist()]
                actors.append(self._actors(index, stack, row, learned[i], critics, judges))
                policies.append(self._trained(POLICY, stack.names, row, inputs))
                weights += [self._trained(ENTROPY, stack.names, learned[i], inputs)] if learned[i] else []
            first += len(each.agents.agents)
        return [self._ensemble(None, actors, (policies, weights), seats, critics, inputs)]

    def _apart(self, inputs: RoundInput, copies: bool) -> list[Ensemble]:
        """One ensemble per stack of policies, with one critic per policy."""
        (mine,) = self._classes
        chosen = mine.chosen(inputs, self._config.batch_size, self._device)
        policies, learned = _arranged(mine.policies, chosen, copies), self._learned(mine, chosen, copies)
        critics = {prefix: _arranged(part, chosen, copies) for prefix, part in self._critics.items()}
        ensembles = []
        for i, stack in enumerate(chosen):
            seats = stack.seated()
            judged = {prefix: found[i] for prefix, found in critics.items()}
            actors = self._actors(0, seats, policies[i], learned[i], judged, stack.owners)
            trained = [self._trained(POLICY, stack.names, policies[i], inputs)]
            weights = [self._trained(ENTROPY, stack.names, learned[i], inputs)] if learned[i] else []
            ensembles.append(self._ensemble(stack, [actors], (trained, weights), seats, judged, inputs))
        return ensembles

    def _learned(self, each: _Class, chosen: Sequence[Stack], copies: bool) -> Sequence[Row]:
        """The rows of the learned weights of entropies of some stacks; empty ones if none are learned."""
        return _arranged(each.weights, chosen, copies) if each.weights else [{}] * len(chosen)

    def _ensemble(
        self,
        stack: Stack | None,
        actors: Sequence[Actors],
        trained: tuple[Sequence[TrainedActorCritic], Sequence[TrainedActorCritic]],
        seats: Stack,
        critics: Mapping[str, Row],
        inputs: RoundInput,
    ) -> Ensemble:
        judges = [Critics(**self._nets(self._critic_layout, row, seats)) for row in critics.values()]
        judging = [self._trained(prefix, seats.names, row, inputs) for prefix, row in critics.items()]
        config = self._config
        nets = ActorCritics(
            self._inputs,
            actors,
            judges,
            regularisation=config.regularisation if isinstance(config, DeterministicConfig) else 0.0,
        )
        policies, weights = map(tuple, trained)
        return Ensemble(stack=stack, nets=nets, policies=policies, weights=weights, critics=tuple(judging))

    def _actors(
        self, index: int, stack: Stack, row: Row, learned: Row, critics: Mapping[str, Row], judges: Sequence[int]
    ) -> Actors:
        """Make a stack of policies; `judges` are the indices of its rows' critics."""
        mine, soft = self._classes[index], self._soft
        # The policies of DDPG, and of TD3, too, follow the first critic alone.
        judging = critics.values() if soft else [critics[CRITIC]]
        log_weight = learned.get("flat")
        if soft and soft.entropy:
            log_weight = row["flat"].new_full((len(row["flat"]), 1), math.log(soft.entropy))
        return Actors(
            index=index,
            stack=stack,
            head=mine.head,
            judges=tuple(
                RowNets(self._critic_layout, each["flat"], self._activation, judges, self._precision)
                for each in judging
            ),
            own=self._inputs.own(index).to(self._device)[stack.agents],
            log_weight=log_weight,
            **self._nets(mine.layout, row, stack),
        )

    def _nets(self, shape: NetLayout, row: Row, stack: Stack) -> dict[str, RowNets]:
        targets = row.get("target", row["flat"])
        return {
            "nets": RowNets(shape, row["flat"], self._activation, stack.owners, self._precision),
            "targets": RowNets(shape, targets, self._activation, stack.owners),
        }

    def _trained(self, prefix: str, names: tuple[str, ...], row: Row, inputs: RoundInput) -> TrainedActorCritic:
        lr, steps = self._lr(prefix, inputs.env_steps), self._gradient_steps(inputs)
        optimizer = make_optimizer(self._config, row, lr=lr, steps=steps)
        return TrainedActorCritic(prefix=prefix, names=names, tensors=row, optimizer=optimizer)


def _weights(config: ReplayActorCriticConfig) -> PublishedNet | None:
    """The learned weights of the entropies of a class's policies."""
    if not isinstance(config, SoftConfig) or config.entropy is not None:
        return None
    one = NumberLayout(math.log(config.entropy_start))
    return PublishedNet(StateCodec(ENTROPY, one, output_gain=1.0, acts=False), Bank(_Held))


def _arranged(part: PublishedNet, chosen: Sequence[Stack], copies: bool) -> list[Row]:
    """The stacked rows of a net's bank, or copies of them."""
    arrange = part.bank.copies if copies else part.bank.arrange
    return [held.tensors for held in arrange([(stack.names, stack.starts) for stack in chosen])]
