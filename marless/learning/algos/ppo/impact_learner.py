"""The learner of IMPACT: that of the PPO family, over the batches of a buffer, with a target network of each policy.

For π (trained), π_t (target), μ (the policy that acted, as recorded) the ratio in the clipped surrogate is
R = min(μ/π_t, ρ) · π/μ = π / max(π_t, μ/ρ). So it is the surrogate of PPO with max(π_t, μ/ρ) in the place of μ.
Advantages and returns are those of V-trace for π_t, which weighs them by π_t/μ (Luo et al. 2020, §3.1-3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from torch import Tensor

from marless.core.group import Group
from marless.core.settings import Measure
from marless.core.state import REPLAY, PolicyState
from marless.learning.algos.algorithm import Algorithm, remembered
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.algos.ppo.batch_buffer import BatchBuffer
from marless.learning.algos.ppo.functions import PolicyFunction, RoundSettings
from marless.learning.algos.ppo.impact import BATCHES, ImpactConfig
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.ppo.losses import impact_reference
from marless.learning.algos.ppo.post_process import Tensors
from marless.learning.algos.ppo.replayed_actions import log_probs, ratios
from marless.learning.algos.ppo.segments import Segments
from marless.learning.algos.training.policy_batching import Stack

_KIND = {"kind": REPLAY}
_TARGET = "policy.target"
_ANOTHER = 2**40
"""Added to the seed for each use of a batch before the last one, so that their orders of samples differ."""


class ImpactLearner(PPOLearner):
    """The learner of one agent class of one job; see `marless.learning.algos.learner.Learner`.

    Beside policies, it publishes the batches that later rounds use, as `batches.<class>`.
    """

    has_target: ClassVar[bool] = True
    weighs_advantages: ClassVar[bool] = True

    def __init__(self, algorithm: Algorithm, config: ImpactConfig, context: LearnerContext) -> None:
        super().__init__(algorithm, config, context, critic="own")
        self._rho, self._target_steps = config.rho, config.target_steps()
        # One pass over each batch that is used: the number of its uses is the buffer's.
        self._configs = {name: each.model_copy(update={"epochs": 1}) for name, each in self._configs.items()}
        memory = remembered(config, context.model, context.spaces, carried=context.carried)
        self._buffer = BatchBuffer(
            context.spaces, self._class_index, batches=config.batches, uses=config.epochs, memory=memory
        )
        self._buffer_name = f"{BATCHES}{self._class.name}"

    def names(self, groups: Sequence[Group]) -> tuple[str, ...]:
        return (*super().names(groups), self._buffer_name)

    def initial(self, name: str, seed: int) -> PolicyState:
        """See `Learner`. No batch is kept at first."""
        if name == self._buffer_name:
            return PolicyState({}, self._buffer.emptied().arrays(), _KIND)
        return super().initial(name, seed)

    def load(self, name: str, state: PolicyState) -> None:
        """See `Learner`. The target of a policy that another algorithm has trained is that policy."""
        if name == self._buffer_name:
            self._buffer.restore(state.learning)
            return
        if _TARGET not in state.learning:
            flat_D = self._policy_codec.layout.from_arrays("policy", state.acting)
            state = replace(state, learning={**state.learning, _TARGET: flat_D})
        super().load(name, state)

    def state(self, name: str) -> PolicyState:
        if name == self._buffer_name:
            return PolicyState({}, self._buffer.arrays(), _KIND)
        return super().state(name)

    def update(self, inputs: RoundInput) -> UpdateOutput:
        # Kept with the rewards that policies are trained on: what later rounds take from
        # the buffer is not rewarded again.
        self._buffer.add(inputs.round, self._rewarded(inputs).trajectories)
        uses = len(self._buffer.due(inputs.round))
        output = super().update(inputs)
        self._buffer.used(inputs.round)
        metrics = {self._buffer_name: {"batches": float(len(self._buffer)), "uses": float(uses)}}
        return replace(output, metrics={**output.metrics, **metrics})

    def gradients(self, inputs: RoundInput) -> GradientOutput:
        """See `Learner`; over the round's samples. Kept batches are neither read nor changed."""
        output = super().gradients(inputs)
        found = {name: each for name, each in output.gradients.items() if name != self._buffer_name}
        return replace(output, gradients=found)

    def _uses(self, inputs: RoundInput) -> Sequence[RoundInput]:
        """The batches that are due, oldest first. After the first one, policies go on from themselves."""
        due = self._buffer.due(inputs.round)
        own = tuple(Group(group.policy, group.agents) for group in inputs.groups)
        return [
            replace(
                inputs,
                trajectories=batch,
                groups=own if number else inputs.groups,
                # The last use is that of the round's own batch, and has the round's own seed: with
                # N = K = 1 the orders are PPO's.
                seed=inputs.seed + _ANOTHER * (len(due) - 1 - number),
                measure=inputs.measure if number == len(due) - 1 else Measure(),
            )
            for number, batch in enumerate(due)
        ]

    def _corrected(
        self, policies: Sequence[tuple[Stack, PolicyFunction]], tensors: Tensors, segments: Segments | None
    ) -> tuple[Tensors, Tensor | None]:
        """The tensors with log max(π_t, μ/ρ) in the place of log μ, and the ratios π_t/μ."""
        targets = [(stack, self._policies.built({"flat": each.tensors["target"]})) for stack, each in policies]
        target_NS = log_probs(targets, tensors, segments)
        reference_NS = impact_reference(target_NS, tensors["log_prob"].squeeze(1), self._rho)
        return {**tensors, "log_prob": reference_NS.unsqueeze(1)}, ratios(target_NS, tensors)

    def _settings(self, function: Literal["critic", "policy"], env_steps: int) -> RoundSettings:
        settings = super()._settings(function, env_steps)
        return replace(settings, target_steps=self._target_steps) if function == "policy" else settings
