"""The learner of PQN and PQN-VDN: targets of a round, then epochs of minibatches; nothing is kept but the policies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.interruption import check
from marless.core.state import Arrays, PolicyState
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.algos.pqn.algorithms import PQNConfig
from marless.learning.algos.pqn.functions import OnlineQ
from marless.learning.algos.pqn.post_process import REWARDS, ClassRound, agents_samples, team_samples
from marless.learning.algos.pqn.training import IndependentRegression, RegressedPolicies, Regression, TeamRegression
from marless.learning.algos.settings import value_at
from marless.learning.algos.training import measuring, similarity
from marless.learning.algos.training.images import ImageReader
from marless.learning.algos.training.observed import observation_sums
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import PolicyClasses, Samples, Stack, cut_stacks, stacks
from marless.learning.algos.training.rewards import RewardMoments, rewarded, with_dead_agents_rewarded
from marless.learning.algos.training.table import tabulate
from marless.learning.algos.training.td import Metrics
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets import acting
from marless.learning.nets.acting_heads import EPSILON_GREEDY, EXPLORATION
from marless.learning.nets.adam import Adam, clip_norm_
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import checked, generator, layout
from marless.learning.nets.learner_states import Bank, Row, StateCodec
from marless.learning.nets.normalising import SEEN

_POLICY = "policy"
_OUTPUT_GAIN = 0.01
"""Gain of the initial output layer, so small that all actions initially have similar values."""


class PQNLearner:
    """The learner of one scope of one job; see `marless.learning.algos.learner.Learner`."""

    def __init__(self, config: PQNConfig, context: LearnerContext, *, team: bool) -> None:
        """Make a learner; with `team`, the sum of all agents' values is trained."""
        self._config, self._context, self._team = config, context, team
        self._spaces, self._scope, self._model = context.spaces, context.scope, context.model
        self._device = torch.device(context.device)
        self._class_of = PolicyClasses(self._spaces, self._scope)
        self._explores: dict[str, NDArray[np.float32]] = {}
        self._inputs: dict[int, Inputs] = {}
        self._readers: dict[int, ImageReader] = {}
        self._nets: dict[int, tuple[StateCodec, Bank[OnlineQ]]] = {}
        for k in self._scope.classes:
            agents, model = self._spaces.classes[k], self._model
            self._inputs[k] = Inputs.of(agents, model)
            shape = layout(self._inputs[k].shape(agents), model, agents.action.n)
            if agents.image is not None:
                self._readers[k] = ImageReader(self._device)
            codec = StateCodec(
                _POLICY,
                shape,
                output_gain=_OUTPUT_GAIN,
                acts=True,
                rewards=config.reward_normalisation,
                biased=True,
                seen=agents.obs_size if model.normalise_observations else 0,
            )
            build = partial(
                OnlineQ,
                layout=shape,
                activation=model.activation,
                reader=self._readers.get(k),
                precision=context.precision,
            )
            self._nets[k] = (codec, Bank(build))

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        self._class_of.learn(groups)
        return tuple(group.policy for group in groups)

    def initial(self, name: str, seed: int) -> PolicyState:
        codec, _ = self._nets[self._class_of(name)]
        return self._compose(name, codec.fresh(generator(seed, name)), self._exploration(0))

    def load(self, name: str, state: PolicyState) -> None:
        if dict(state.metadata) != self._metadata(name):
            raise CorruptError(f"{name}: the state is of {dict(state.metadata)}, this job needs {self._metadata(name)}")
        codec, bank = self._nets[self._class_of(name)]
        row = codec.read(state.acting, state.learning)
        bank.put(name, {key: tensor.to(self._device) for key, tensor in row.items()})
        self._explores[name] = checked(state.acting, EXPLORATION, (1,)).copy()

    def state(self, name: str) -> PolicyState:
        _, bank = self._nets[self._class_of(name)]
        return self._compose(name, bank.row(name), self._explores[name])

    def update(self, inputs: RoundInput) -> UpdateOutput:
        meter, config = PassTimer(), self._config
        self.names(inputs.groups)
        pending = []
        for k in self._scope.classes:
            table = partial(tabulate, inputs.trajectories, k, False, self._inputs[k].frames)
            pending.append(similarity.begin(inputs, self._spaces.classes[k], table, self.state))
        training, orders = self._prepare(inputs, meter, config.minibatches, copies=False)
        for order_U in orders:
            for batches in training.minibatches(order_U, config.minibatches):
                check(inputs.stopped)
                training.step(batches, meter)
        metrics: Metrics = {name: dict(found) for name, found in training.metrics().items()}
        if measuring.asked(inputs.measure):
            for name, numbers in training.measured(inputs, orders[0], meter).items():
                metrics[name] |= numbers
        self._release_images()
        # Actors keep one ε during a round, so the next policies get the one at the start of their round.
        after = self._exploration(inputs.env_steps + inputs.sampled_steps)
        self._explores |= {group.policy: after for group in inputs.groups}
        self._add_observations(inputs)
        compared = [each.result() for each in pending]
        distances = {name: found_NN for found, _ in compared for name, found_NN in found.items()}
        return UpdateOutput(metrics, (*meter.runs(), *(run for _, runs in compared for run in runs)), distances)

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """See `Learner`; over all samples of the round at once, whatever epochs and minibatches are configured."""
        meter, after = PassTimer(), self._exploration(inputs.env_steps + inputs.sampled_steps)
        self.names(inputs.groups)
        training, orders = self._prepare(inputs, meter, 1, copies=True)
        (batches,) = training.minibatches(orders[0], 1)
        found = training.gradients(batches, meter)
        self._release_images()
        gradients = {
            group.policy: {
                _POLICY: found[group.policy].cpu().numpy().copy(),
                EXPLORATION: after,
                **self._sums(inputs, self._class_of(group.policy)),
            }
            for group in inputs.groups
        }
        return GradientOutput(gradients, training.metrics(), meter.runs())

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """See `Learner`; `gradients` also has the actors' next ε, and what statistics are raised by."""
        codec, bank = self._nets[self._class_of(name)]
        gradient_D = checked(gradients, _POLICY, (codec.layout.size,))
        exploration = checked(gradients, EXPLORATION, (1,)).copy()
        row = bank.row(name)
        kept = [key for key in (REWARDS, SEEN) if key in row]
        expected = {f"{_POLICY}.{key}": tuple(row[key].shape) for key in kept}
        if {key: x.shape for key, x in gradients.items() if key not in (_POLICY, EXPLORATION)} != expected:
            raise CorruptError(f"gradients of {name!r} have arrays {sorted(gradients)}, expected sums {expected}")
        gradient_1D = torch.tensor(gradient_D, device=self._device).unsqueeze(0)

        def step(function: OnlineQ) -> None:
            for key in kept:
                function.tensors[key].add_(torch.tensor(gradients[f"{_POLICY}.{key}"], device=self._device))
            clip_norm_(gradient_1D, self._config.max_grad_norm)
            self._optimizer(function.tensors, env_steps, steps=1).step(gradient_1D)

        bank.change(name, step)
        self._explores[name] = exploration

    def _metadata(self, name: str) -> dict[str, str]:
        k = self._class_of(name)
        return acting.description(self._spaces.classes[k], self._model, acts=EPSILON_GREEDY, inputs=self._inputs[k])

    def _compose(self, name: str, row: Row, exploration: NDArray[np.float32]) -> PolicyState:
        codec, _ = self._nets[self._class_of(name)]
        weights, learning = codec.write(row)
        return PolicyState({**weights, EXPLORATION: exploration.copy()}, learning, self._metadata(name))

    def _exploration(self, env_steps: int) -> NDArray[np.float32]:
        return np.array([value_at(self._config.epsilon, env_steps)], np.float32)

    def _optimizer(self, row: Row, env_steps: int, steps: int) -> Adam:
        return Adam(
            row["flat"],
            row["first"],
            row["second"],
            row["count"],
            steps=steps,
            lr=value_at(self._config.lr, env_steps),
            eps=self._config.optimizer_eps,
            rectified=self._config.optimizer == "radam",
        )

    def _prepare(
        self, inputs: RoundInput, meter: PassTimer, minibatches: int, *, copies: bool
    ) -> tuple[Regression, list[Tensor]]:
        """Post-processing: targets and samples of all classes, and the order of env steps, or segments, per epoch.

        With `copies`, of copies of the nets, so that held states do not change.
        """
        with meter.measure("post_process", (self._scope.name,)):
            trajectories = self._rewarded(inputs)
            policies = [each for k in self._scope.classes for each in self._stacks(k, inputs, copies=copies)]
            if self._config.reward_normalisation:
                for each in policies:
                    sums = self._reward_sums(trajectories, self._scope.classes[each.index])
                    each.function.tensors[REWARDS].add_(torch.from_numpy(sums).to(self._device))
            samples = self._samples(trajectories, policies)
            orders = self._orders(inputs, samples[0], minibatches)
        made = TeamRegression if self._team else IndependentRegression
        return made(self._config, policies, samples), orders

    def _rewarded(self, inputs: RoundInput) -> list[Trajectory]:
        """The trajectories with the rewards that policies are trained on."""
        return [rewarded(each, self._spaces, self._config.reward_rule) for each in inputs.trajectories]

    def _stacks(self, k: int, inputs: RoundInput, *, copies: bool) -> list[RegressedPolicies]:
        """The stacks of a class, over their rows in the bank."""
        agents, (_, bank) = self._spaces.classes[k], self._nets[k]
        groups = [group for group in inputs.groups if group.agents[0] in agents.agents]
        # A team needs the samples of all agents of an env step, so `_orders` draws env steps instead.
        drawn = not self._team and inputs.pooling == "drawn" and any(len(group.agents) > 1 for group in groups)
        choose = cut_stacks if drawn else stacks

        @cache
        def chosen(units: int) -> list[Stack]:
            return choose(groups, agents, parts=1, device=self._device, copies=units)

        def nth(number: int, units: int) -> Stack:
            return chosen(units)[number]

        arrange = bank.copies if copies else bank.arrange
        functions = arrange([(stack.names, stack.starts) for stack in chosen(1)])
        steps = self._config.epochs * self._config.minibatches
        return [
            RegressedPolicies(
                names=stack.names,
                prefix=_POLICY,
                tensors=function.tensors,
                optimizer=self._optimizer(function.tensors, inputs.env_steps, steps),
                index=self._scope.classes.index(k),
                function=function,
                stack_of=partial(nth, number),
            )
            for number, (stack, function) in enumerate(zip(chosen(1), functions, strict=True))
        ]

    def _samples(self, trajectories: Sequence[Trajectory], policies: Sequence[RegressedPolicies]) -> list[Samples]:
        """The samples of each class with their targets."""
        found = []
        for index, k in enumerate(self._scope.classes):
            stacked = [(each.stack_of(1), each.function) for each in policies if each.index == index]
            table = tabulate(trajectories, k, False, self._inputs[k].frames)
            if k in self._readers:
                self._readers[k].show(table.images)
            found.append(ClassRound.of(table, k, stacked, self._inputs[k].known, self._model))
        if self._team:
            return team_samples(found, trajectories, self._config)
        return [agents_samples(each, self._config) for each in found]

    def _release_images(self) -> None:
        for reader in self._readers.values():
            reader.show(None)

    def _orders(self, inputs: RoundInput, samples: Samples, minibatches: int) -> list[Tensor]:
        """The order of env steps, or segments, in each epoch; raises SpecError for fewer of them than minibatches.

        A team whose groups train on drawn samples takes some env steps of each order, so that all agents together have
        as many samples per policy as one agent has.
        """
        count, agents = samples.count, sum(len(group.agents) for group in inputs.groups)
        if self._team and inputs.pooling == "drawn":
            count = -(-count * len(inputs.groups) // agents)
        self._config.model_copy(update={"minibatches": minibatches}).check_minibatches(
            count, remembers=samples.remembers
        )
        rng = np.random.default_rng([inputs.seed, inputs.round])
        orders = [torch.from_numpy(rng.permutation(samples.count)[:count]) for _ in range(self._config.epochs)]
        return [order_U.to(self._device) for order_U in orders]

    def _reward_sums(self, trajectories: Sequence[Trajectory], k: int) -> NDArray[np.float64]:
        """The sums that a round's rewards add to those of the policies of class `k`, float64 [5]."""
        classes = self._scope.classes if self._team else (k,)
        moments = RewardMoments(classes, self._config.gamma, team=self._team)
        moments.add([with_dead_agents_rewarded(each, self._config.reward_rule) for each in trajectories])
        sums_5: NDArray[np.float64] = moments.sums[0]
        return sums_5

    def _sums(self, inputs: RoundInput, k: int) -> dict[str, NDArray[np.generic]]:
        """What a round adds to the statistics of the policies of class `k`, by array of `apply`."""
        found: dict[str, NDArray[np.generic]] = {}
        if self._config.reward_normalisation:
            found[f"{_POLICY}.{REWARDS}"] = self._reward_sums(self._rewarded(inputs), k)
        if self._model.normalise_observations:
            found[f"{_POLICY}.{SEEN}"] = observation_sums(inputs.trajectories, k)
        return found

    def _add_observations(self, inputs: RoundInput) -> None:
        """Add a round to the statistics of inputs, after training: it was sampled with those of the version before."""
        if not self._model.normalise_observations:
            return
        sums = {k: torch.from_numpy(observation_sums(inputs.trajectories, k)) for k in self._scope.classes}
        for group in inputs.groups:
            k = self._class_of(group.policy)
            self._nets[k][1].row(group.policy)[SEEN].add_(sums[k].to(self._device))
