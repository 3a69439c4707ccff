"""The learner of the PPO family: post-process → critics and policies, all nets of one shape in one stacked pass.

IPPO and MAPPO differ only in the inputs of critics and the agents that a critic serves, see `Critic`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError
from marless.core.group import FunctionNode, Group
from marless.core.state import Arrays, PolicyState
from marless.learning.algos.algorithm import Algorithm
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.algos.ppo.algorithms import ActorCriticConfig, Critic, PPOConfig
from marless.learning.algos.ppo.functions import (
    CriticFunction,
    PolicyFunction,
    SharedTorsoFunction,
    ValueFunction,
)
from marless.learning.algos.ppo.losses import impact_reference
from marless.learning.algos.ppo.minibatch_training import Metrics, RoundSettings
from marless.learning.algos.ppo.post_process import (
    Judge,
    PeerPolicies,
    critic_passes,
    critic_samples,
    estimate,
    log_probs,
    policy_samples,
    ratios,
    shared_samples,
)
from marless.learning.algos.ppo.round_work import RoundWork, SampleOrders, StackKey, StackTraining, TrainedFunction
from marless.learning.algos.settings import Ramp
from marless.learning.algos.training import measuring, similarity
from marless.learning.algos.training.captured import graphs_of
from marless.learning.algos.training.images import ImageReader, RoundImages
from marless.learning.algos.training.measuring import gradient_statistics
from marless.learning.algos.training.observed import observation_sums, state_sums
from marless.learning.algos.training.passes import Graph, Pass, threads_for
from marless.learning.algos.training.policy_batching import Stack, drawn_stacks, stacks
from marless.learning.algos.training.rewards import rewarded
from marless.learning.algos.training.round_tensors import Tensors, by_agent, normalised, upload, with_ids
from marless.learning.algos.training.segments import Segments
from marless.learning.algos.training.table import tabulate
from marless.learning.nets.acting import description
from marless.learning.nets.acting_heads import acts_by, free_parameters, outputs_of
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import generator, layout
from marless.learning.nets.learner_states import Bank, StateCodec
from marless.learning.nets.normalising import SEEN

_Compute = Callable[[StackKey, StackTraining], Metrics]
_FunctionT = TypeVar("_FunctionT")
_Arrange = Callable[[Sequence[tuple[tuple[str, ...], tuple[str, ...]]]], list[_FunctionT]]
"""See `Bank.arrange`."""
Reports = dict[str, dict[str, float]]
"""Metrics by published name, then by metric."""
_RETURNS = "returns"
LAG_RHO = 2.0
"""ρ of the correction for rollouts that lag: the limit of the importance of what acted. IMPACT's default."""


class PPOLearner:
    """The learner of one agent class of one job; see `marless.learning.algos.learner.Learner`.

    On a CPU, stacks of policies and critics are trained in parallel on torch's inter-op threads. It is fastest with one
    thread inside each operation: `torch.set_num_threads(1)` and OPENBLAS_NUM_THREADS=1. Results do not depend on the
    number of threads.
    """

    policy_function: ClassVar[type[PolicyFunction]] = PolicyFunction
    """Trains a stack of policies; learners with another loss override it. A GPU repeats its gradient steps as captured
    graphs: settings that ramps move must be among those of its `surrogate`, or they would stay what they were.
    """
    has_target: ClassVar[bool] = False
    """True if policies have a target network."""
    weighs_advantages: ClassVar[bool] = False
    """True if V-trace weighs advantages by π/μ, because the loss of policies has another ratio."""

    def __init__(
        self, algorithm: Algorithm, config: ActorCriticConfig, context: LearnerContext, *, critic: Critic
    ) -> None:
        """Make a learner; `algorithm` declares the functions of an update."""
        (agent_class,) = context.scope.agent_classes(context.spaces)
        model, spaces = context.model, context.spaces
        self._algorithm, self._config, self._context = algorithm, config, context
        self._configs: Mapping[TrainedFunction, ActorCriticConfig] = {"policy": config, "critic": config.of_critics()}
        self._class = agent_class
        (self._class_index,) = context.scope.classes
        self._critic, self._shared = critic, config.shares_torso
        self._device = torch.device(context.device)
        self._joint = f"critic.{agent_class.name}"
        self._remembers = model.remembers
        action, activation = agent_class.action, model.activation
        self._inputs = Inputs.of(agent_class, model)
        known = len(self._inputs.known)
        acts = acts_by(action, config.distribution)
        outputs, free = outputs_of(action, acts), free_parameters(action, acts)
        trains = SharedTorsoFunction if self._shared else self.policy_function
        acting = layout(self._inputs.shape(agent_class), model, outputs + trains.values, free)
        if critic == "own":
            judging = layout(acting.input_shape, model, 1)
        else:
            joint = critic == "joint"
            size = spaces.state_size + (0 if joint else known)
            judging = layout(size, model.of_vectors, len(agent_class.agents) if joint else 1)
        # A critic of one agent's observations has the statistics of its policy; others have those of the state.
        seen, judged = agent_class.obs_size, 0 if critic == "own" else spaces.state_size
        if not model.normalise_observations:
            seen = judged = 0
        self._policy_codec = StateCodec(
            "policy",
            acting,
            output_gain=config.output_gain,
            acts=True,
            target=self.has_target,
            moments=self._shared,
            seen=seen,
            free=(math.log(config.initial_std),) * free,
            values=trains.values,
        )
        self._critic_codec = StateCodec("critic", judging, output_gain=1.0, acts=False, moments=True, seen=judged)
        self._reader = None if agent_class.image is None else ImageReader(self._device)
        judges_by = self._reader if critic == "own" else None
        precision, graphs = context.precision, graphs_of(self._device) if context.graphs else None
        of_policies = None if self._loss_moves() else graphs
        self._policies = Bank(
            lambda row: trains(row, acting, activation, action, acts, self._reader, precision, of_policies)
        )
        self._critics = Bank(lambda row: CriticFunction(row, judging, activation, judges_by, precision, graphs))
        self._metadata = description(agent_class, model, acts=acts, inputs=self._inputs, values=trains.values)

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return (*(group.policy for group in groups), *((self._joint,) if self._critic == "joint" else ()))

    def initial(self, name: str, seed: int) -> PolicyState:
        """See `Learner`. Policies start almost uniform, with the default output gain."""
        rng = generator(seed, name)
        return self._compose([codec.write(codec.fresh(rng)) for codec, _ in self._parts(name)])

    def load(self, name: str, state: PolicyState) -> None:
        if dict(state.metadata) != self._metadata:
            raise CorruptError(f"{name}: the state is of {dict(state.metadata)}, this job needs {self._metadata}")
        for codec, bank in self._parts(name):
            row = codec.read(state.acting, state.learning)
            bank.put(name, {key: tensor.to(self._device) for key, tensor in row.items()})

    def state(self, name: str) -> PolicyState:
        return self._compose([codec.write(bank.row(name)) for codec, bank in self._parts(name)])

    def update(self, inputs: RoundInput) -> UpdateOutput:
        def train(key: StackKey, training: StackTraining) -> Metrics:
            settings, minibatches = self._settings(key[0], inputs.env_steps), self._configs[key[0]].minibatches
            return training.trained.train(training.samples, training.orders, minibatches, settings, inputs.stopped)

        uses, minibatches = self._uses(inputs), self._config.minibatches
        output = self._run(inputs, uses, minibatches, train, self._policies.arrange, self._critics.arrange)
        # Only now, because the round was sampled, and is trained on, with the statistics of the version before.
        sums = self._sums(inputs)
        for name in PPOLearner.names(self, inputs.groups):
            for codec, bank in self._parts(name):
                if codec.seen:
                    bank.row(name)[SEEN].add_(torch.from_numpy(sums[codec.prefix]).to(self._device))
        return output

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """See `Learner`; over all samples of the round at once, whatever epochs and minibatches are configured."""
        found: dict[str, dict[str, NDArray[np.generic]]] = {name: {} for name in self.names(inputs.groups)}

        def differentiate(key: StackKey, training: StackTraining) -> Metrics:
            function, names = key
            settings = self._settings(function, inputs.env_steps)
            gradient_PD, metrics = training.trained.gradient(training.samples, training.orders[0], settings)
            for row, name in enumerate(names):
                # Passes write here from several threads, but no two the same name and function.
                # The buffer is reused, so copies.
                found[name][function] = gradient_PD[row].cpu().numpy().copy()
                if training.returns is not None:
                    returns_K3 = training.returns[row].cpu().numpy()
                    # Outputs before those of values have no returns, which moments of weight 0 say.
                    before = training.trained.tensors["moments"].shape[1] - len(returns_K3)
                    found[name][f"{function}.{_RETURNS}"] = np.pad(returns_K3, ((before, 0), (0, 0)))
            return metrics

        uses = (self._rewarded(inputs),)
        # On copies, because post-processing rescales critics, and held states must not change.
        output = self._run(inputs, uses, 1, differentiate, self._policies.copies, self._critics.copies)
        sums = self._sums(inputs)
        for name in PPOLearner.names(self, inputs.groups):
            parts = [codec.prefix for codec, _ in self._parts(name) if codec.seen]
            found[name] |= {f"{prefix}.{SEEN}": sums[prefix] for prefix in parts}
        return GradientOutput(found, output.metrics, output.runs, output.distances)

    def apply(self, name: str, gradients: Arrays, env_steps: int) -> None:
        """See `Learner`. `prefix.returns`, float64 [K, 3], has the moments by which values are rescaled before (of
        "critic"; of "policy" with a shared torso), `prefix.seen`, float64 [I, 3], what statistics of inputs rise by.
        """
        parts, config = self._parts(name), self._config
        expected: dict[str, tuple[tuple[int, ...], str]]
        expected = {codec.prefix: ((codec.layout.size,), "float32") for codec, _ in parts}
        judges = [codec for codec, _ in parts if codec.moments]
        if config.value_normalisation:
            expected |= {f"{codec.prefix}.{_RETURNS}": ((codec.layout.outputs, 3), "float64") for codec in judges}
        expected |= {f"{codec.prefix}.{SEEN}": ((codec.seen, 3), "float64") for codec, _ in parts if codec.seen}
        if (found := {key: (array.shape, array.dtype.name) for key, array in gradients.items()}) != expected:
            raise CorruptError(f"gradients of {name!r} are {found}, expected {expected}")
        given = {key: torch.tensor(array, device=self._device).unsqueeze(0) for key, array in gradients.items()}

        def step(function: PolicyFunction | CriticFunction, prefix: TrainedFunction) -> None:
            if (returns := given.get(f"{prefix}.{_RETURNS}")) is not None:
                assert isinstance(function, ValueFunction)
                function.rescale(returns[:, function.valued], decay=config.value_decay, popart=config.popart)
            function.step(given[prefix], self._settings(prefix, env_steps))
            if (sums := given.get(f"{prefix}.{SEEN}")) is not None:
                function.tensors[SEEN].add_(sums)

        if "policy" in expected:
            self._policies.change(name, lambda function: step(function, "policy"))
        if "critic" in expected:
            self._critics.change(name, lambda function: step(function, "critic"))

    def _parts(self, name: str) -> list[tuple[StateCodec, Bank[PolicyFunction] | Bank[CriticFunction]]]:
        policy, critic = (self._policy_codec, self._policies), (self._critic_codec, self._critics)
        if name == self._joint and self._critic == "joint":
            return [critic]
        return [policy] if self._critic == "joint" or self._shared else [policy, critic]

    def _compose(self, parts: list[tuple[Arrays, Arrays]]) -> PolicyState:
        acting = {name: array for part, _ in parts for name, array in part.items()}
        learning = {name: array for _, part in parts for name, array in part.items()}
        return PolicyState(acting, learning, self._metadata)

    def _run(
        self,
        inputs: RoundInput,
        uses: Sequence[RoundInput],
        minibatches: int,
        compute: _Compute,
        policies: _Arrange[PolicyFunction],
        critics: _Arrange[CriticFunction],
    ) -> UpdateOutput:
        """Run the declared functions, and the measurements that the round asks for, on each of `uses`.

        `compute` is called for critics and policies with their samples. Reports are those of the last use.
        """
        threads = threads_for(self._device, self._policy_codec.layout.size, inputs, minibatches)
        context, groups = self._context, inputs.groups
        nodes = self._algorithm.functions(self._config, context.scope, groups, context.spaces)
        if measuring.asked(inputs.measure):
            nodes += tuple(FunctionNode("curvature", g.policy, after=(f"policy/{g.policy}",)) for g in groups)
        graph = Graph(nodes, threads=threads, stopped=inputs.stopped)
        metrics: Reports = {name: {} for name in self.names(inputs.groups)}
        for given in uses:
            # Each part trains twice, as policies and as critics, so half as many parts keep all threads busy.
            chosen, work = self._stacks(given, parts=max(1, threads // 2)), RoundWork()
            prepare = partial(self._prepare, work, given, chosen, policies, critics)
            passes = [Pass("post_process", (self._context.scope.name,), prepare)]
            passes += self._passes(work, given, [stack.names for stack in chosen], compute)
            for each, found in zip(passes, graph.run(passes), strict=True):
                for metric, values_P in found.items():
                    for name, number in zip(each.names, values_P.tolist(), strict=True):
                        metrics[name][metric] = number
        self._show(None)
        distances, compared = work.similarity.result()
        return UpdateOutput(metrics=metrics, runs=(*graph.runs(), *compared), distances=distances)

    def _rewarded(self, inputs: RoundInput) -> RoundInput:
        """The same with the rewards that policies are trained on."""
        rule, spaces = self._config.reward_rule, self._context.spaces
        return replace(inputs, trajectories=[rewarded(each, spaces, rule) for each in inputs.trajectories])

    def _uses(self, inputs: RoundInput) -> Sequence[RoundInput]:
        """The samples that an update trains on, one after another, with their rewards: those of the round."""
        return (self._rewarded(inputs),)

    def _corrected(
        self, policies: Sequence[tuple[Stack, PolicyFunction]], tensors: Tensors, segments: Segments | None
    ) -> tuple[Tensors, Tensor | None]:
        """The tensors to train on, and the ratios [N, T, B] of V-trace; None without it.

        If rollouts lag, the policies have moved since they acted, mostly as far as clipping let them. Ratios to what
        acted would so begin at the limit, and many samples would teach nothing. Those of the surrogate are therefore to
        the policies that the update starts from, with an importance of at most `LAG_RHO` for what acted: IMPACT's
        ratios (Luo et al. 2020, §3.1), with the newest policy as target [ours].
        """
        lags = self._context.lags and isinstance(self._config, PPOConfig) and self._config.correct_lag
        weighs = self._config.advantage != "gae"
        if not (lags or weighs):
            return tensors, None
        newest_NS = log_probs(policies, tensors, segments)
        ratio_NTB = ratios(newest_NS, tensors) if weighs else None
        if lags:
            reference_NS = impact_reference(newest_NS, tensors["log_prob"].squeeze(1), LAG_RHO)
            tensors = {**tensors, "log_prob": reference_NS.unsqueeze(1)}
        return tensors, ratio_NTB

    def _passes(
        self, work: RoundWork, inputs: RoundInput, stacked: Sequence[tuple[str, ...]], compute: _Compute
    ) -> list[Pass[Metrics]]:
        """The passes after post-processing: critics, policies and, if asked for, measurements of policies."""

        # Samples that were drawn from all members are not equally many of each.
        members = {each.policy: len(each.agents) if inputs.pooling == "pooled" else 1 for each in inputs.groups}
        seed = (inputs.seed, inputs.round)

        def train(key: StackKey) -> Metrics:
            training, (function, names) = work.trainings[key], key
            found = dict(training.metrics)
            if function == "policy" and inputs.measure.gradients:
                assert isinstance(training.trained, PolicyFunction)
                found |= gradient_statistics(
                    training.trained, training.samples, members[names[0]], seed, inputs.stopped
                )
            return found | compute(key, training)

        def measure(names: tuple[str, ...]) -> Metrics:
            training = work.trainings["policy", names]
            assert isinstance(training.trained, PolicyFunction)
            return measuring.measured(training.trained, training.samples, inputs, self._config.minibatches)

        judging = [(self._joint,)] if self._critic == "joint" else [] if self._shared else stacked
        keys: list[StackKey] = [("critic", names) for names in judging]
        keys += [("policy", names) for names in stacked]
        measured = stacked if measuring.asked(inputs.measure) else ()
        trainings = [Pass(*key, partial(train, key)) for key in keys]
        return [*trainings, *(Pass("curvature", names, partial(measure, names)) for names in measured)]

    def _prepare(
        self,
        work: RoundWork,
        inputs: RoundInput,
        chosen: Sequence[Stack],
        policies: _Arrange[PolicyFunction],
        critics: _Arrange[CriticFunction],
    ) -> Metrics:
        """Make the trainings of all stacks: post-processing, which has no metrics of its own."""
        table = tabulate(inputs.trajectories, self._class_index, self._critic != "own", self._inputs.frames)
        self._show(table.images)
        work.similarity = similarity.begin(inputs, self._class, lambda: table, self.state)
        trained = policies([(stack.names, stack.starts) for stack in chosen])
        policies_of = list(zip(chosen, trained, strict=True))
        judges = self._judges(policies_of, critics)
        tensors = upload(table, self._device, self._inputs.known)
        if self._context.model.normalise_observations:
            tensors = self._normalised(tensors, policies_of, judges[0][1])
        segments = Segments.of(tensors) if self._remembers else None
        passes = critic_passes(judges, self._seen(tensors), segments)
        tensors, ratio_NTB = self._corrected(policies_of, tensors, segments)
        estimates = estimate(passes, tensors, segments, self._config, ratio_NTB)
        orders = SampleOrders(self._configs, inputs, self._device)
        for each in passes:
            if each.stack is not None and isinstance(each.function, SharedTorsoFunction):
                peers = self._peers(each.stack, inputs)
                made = shared_samples(each, each.stack, estimates, tensors, self._config, peers)
                work.add("policy", each.names, each.function, orders, *made)
            elif isinstance(each.function, CriticFunction):
                made = critic_samples(each, estimates, tensors, segments, self._config)
                work.add("critic", each.names, each.function, orders, *made)
        if self._shared:
            return {}
        advantage_N1S = estimates.correction if self.weighs_advantages else estimates.advantage
        for stack, function in policies_of:
            peers = self._peers(stack, inputs)
            samples = policy_samples(stack, advantage_N1S, estimates.value, tensors, segments, self._config, peers)
            work.add("policy", stack.names, function, orders, samples, {}, None)
        return {}

    def _show(self, images: RoundImages | None) -> None:
        """Let nets read the images of a round, or of none."""
        if self._reader is not None:
            self._reader.show(images)

    def _stacks(self, inputs: RoundInput, parts: int) -> Sequence[Stack]:
        """The stacks of the round's groups; without shared policies, samples are not drawn."""
        groups, agents, device = inputs.groups, self._class, self._device
        copies = sum(each.batch for each in inputs.trajectories) if self._remembers else None
        if inputs.pooling == "pooled" or all(len(group.agents) == 1 for group in groups):
            return stacks(groups, agents, parts=parts, device=device, copies=copies)
        samples, seed = inputs.sampled_steps, (inputs.seed, inputs.round)
        return drawn_stacks(groups, agents, samples=samples, seed=seed, parts=parts, device=device, copies=copies)

    def _peers(self, stack: Stack, inputs: RoundInput) -> list[PeerPolicies] | None:
        """The policies of other learners by which a stack's ratios are truncated; None: they are not.

        They see observations as this learner's policies normalise them: their own statistics are of a version close by.
        """
        config = self._config
        if not isinstance(config, PPOConfig) or config.truncation == "none":
            return None
        found, shape = [], self._policy_codec.layout
        for weights in inputs.peers:
            absent = tuple(i for i, name in enumerate(stack.starts) if name not in weights)
            rows = [
                # A stack has a row for each policy: zeros hold the place of one that the peer has
                # not, and its result is dropped.
                np.zeros(shape.size, np.float32) if i in absent else shape.from_arrays("policy", weights[name])
                for i, name in enumerate(stack.starts)
            ]
            flat_PD = torch.from_numpy(np.stack(rows)).to(self._device)
            found.append(PeerPolicies(self._policies.built({"flat": flat_PD}), absent))
        return found

    def _judges(
        self, policies: Sequence[tuple[Stack, PolicyFunction]], arrange: _Arrange[CriticFunction]
    ) -> list[Judge]:
        """The stacks of critics, with the stacks of policies that they serve."""
        if self._critic == "joint":
            names = (self._joint,)
            return [(names, arrange([(names, names)])[0], None)]
        if self._shared:
            return [(stack.names, each, stack) for stack, each in policies if isinstance(each, SharedTorsoFunction)]
        chosen = [stack for stack, _ in policies]
        functions = arrange([(stack.names, stack.starts) for stack in chosen])
        return [(stack.names, function, stack) for stack, function in zip(chosen, functions, strict=True)]

    def _sums(self, inputs: RoundInput) -> dict[str, NDArray[np.float64]]:
        """The sums, by prefix, that this round adds to the statistics of inputs."""
        if not self._context.model.normalise_observations:
            return {}
        found = {"policy": observation_sums(inputs.trajectories, self._class_index)}
        if self._critic != "own":
            found["critic"] = state_sums(inputs.trajectories)
        return found

    def _normalised(
        self, tensors: Tensors, policies: Sequence[tuple[Stack, PolicyFunction]], critic: ValueFunction
    ) -> Tensors:
        """The tensors with observations normalised by each agent's policy, and the state by the first critic.

        All of a class have the same statistics, unless a policy has begun from a version of another round.
        """
        stacked = ((stack, function.tensors[SEEN]) for stack, function in policies)
        seen_NI3 = by_agent(stacked, len(self._class.agents))
        names = [(name, seen_NI3) for name in ("obs", "boot_obs")]
        if self._critic != "own":
            names += [(name, critic.tensors[SEEN][:1]) for name in ("state", "boot_state")]
        clip = self._context.model.observation_clip
        return {**tensors, **{name: normalised(tensors[name], seen, clip) for name, seen in names}}

    def _seen(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """The critics' inputs at samples and at bootstrap rows."""
        if self._critic == "own":
            return tensors["obs"], tensors["boot_obs"]
        seen = tensors["state"], tensors["boot_state"]
        if self._critic == "joint":
            return seen
        state, boots = (each.expand(len(self._class.agents), -1, -1) for each in seen)
        return with_ids(state, self._inputs.known), with_ids(boots, self._inputs.known)

    def check_gradients(self) -> None:
        self.policy_function.surrogate.check(*self._settings("policy", 0).surrogate.values())

    def _loss_moves(self) -> bool:
        """True if a setting of the policies' loss follows a ramp."""
        names = ("entropy", *self.policy_function.surrogate.settings)
        return any(isinstance(getattr(self._config, name), Ramp) for name in names)

    def _settings(self, function: TrainedFunction, env_steps: int) -> RoundSettings:
        return RoundSettings.at(env_steps, self._configs[function], self.policy_function.surrogate.settings)
