"""The learner of IMPACT: that of the PPO family, over the batches of a buffer, with a target network of each policy.

For π (trained), π_t (target), μ (the policy that acted, as recorded) the ratio in the clipped surrogate is
R = min(μ/π_t, ρ) · π/μ = π / max(π_t, μ/ρ). So it is the surrogate of PPO with max(π_t, μ/ρ) in the place of μ.
Advantages and returns are those of V-trace for π_t, which weighs them by π_t/μ (Luo et al. 2020, §3.1-3.2).

A batch is what a round has sampled. It is kept for N rounds and used K times: K uses are spread evenly over its N
rounds, the first of them in its own round. So each round uses K batches once the buffer is full, and fewer before.
With N = 1 each round's batch is used K times, at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.settings import Measure
from marless.core.state import REPLAY, Arrays, PolicyState
from marless.learning.algos.algorithm import Algorithm, remembered, stacked_frames
from marless.learning.algos.learner import GradientOutput, LearnerContext, RoundInput, UpdateOutput
from marless.learning.algos.ppo.algorithms import BATCHES, ImpactConfig
from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.ppo.losses import impact_reference
from marless.learning.algos.ppo.minibatch_training import RoundSettings
from marless.learning.algos.ppo.post_process import log_probs, ratios
from marless.learning.algos.training.policy_batching import Stack
from marless.learning.algos.training.round_tensors import Tensors
from marless.learning.algos.training.segments import Segments
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import EnvSpaces

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
            context.spaces,
            self._class_index,
            batches=config.batches,
            uses=config.epochs,
            memory=memory,
            frames=stacked_frames(context.model, context.spaces, carried=context.carried),
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
        """The tensors with log max(π_t, μ/ρ) in the place of log μ, and the ratios π_t/μ.

        Targets see observations as the policies that they follow normalise them now.
        """
        targets = [(stack, self._policies.built({"flat": each.tensors["target"]})) for stack, each in policies]
        target_NS = log_probs(targets, tensors, segments)
        reference_NS = impact_reference(target_NS, tensors["log_prob"].squeeze(1), self._rho)
        return {**tensors, "log_prob": reference_NS.unsqueeze(1)}, ratios(target_NS, tensors)

    def _settings(self, function: Literal["critic", "policy"], env_steps: int) -> RoundSettings:
        settings = super()._settings(function, env_steps)
        return replace(settings, target_steps=self._target_steps) if function == "policy" else settings


_SHARED = ("cut", "boot_index")
_ROUNDS = "rounds"
# What would have been legal at a cut matters to Q values; the value of a critic there does not depend on it.
_UNUSED = "boot_mask/"
Batch = tuple[Trajectory, ...]
"""A round's trajectories, in the order of actors, with the arrays of one agent class only."""


class BatchBuffer:
    """The last `batches` rounds, of class `agent_class`; each batch has `uses` uses."""

    def __init__(
        self,
        spaces: EnvSpaces,
        agent_class: int,
        *,
        batches: int,
        uses: int,
        memory: tuple[int, ...] = (),
        frames: tuple[int, ...] = (),
    ) -> None:
        """Make an empty buffer; `memory` and `frames` as in `TrajectorySchema`."""
        self._spaces, self._class, self._memory, self._frames = spaces, agent_class, memory, frames
        self._kept, self._ages = batches, [use * batches // uses for use in range(uses)]
        self._batches: dict[int, Batch] = {}

    def emptied(self) -> BatchBuffer:
        """A buffer like this one without batches."""
        made = copy(self)
        made._batches = {}
        return made

    def add(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        """Add the batch of a round, as copies; batches that are too old for round `number` are dropped."""
        # Copies, because the arrays of a round may be views of a file that is removed after it.
        copies = ({name: np.array(a) for name, a in each.arrays.items() if self._keeps(name)} for each in trajectories)
        self._batches[number] = tuple(map(Trajectory, copies))
        kept = sorted(n for n in self._batches if 0 <= number - n < self._kept)
        self._batches = {n: self._batches[n] for n in kept}

    def due(self, number: int) -> list[Batch]:
        """The batches that round `number` uses, oldest first; one that is used several times comes again after that.

        The last one is that of the round itself.
        """
        # With fewer rounds than uses some ages are equal: such a batch is due several times in one round.
        left = {n: self._ages.count(number - n) for n in self._batches}
        found: list[Batch] = []
        while any(left.values()):
            found += [self._batches[n] for n in left if left[n]]
            left = {n: max(count - 1, 0) for n, count in left.items()}
        return found

    def used(self, number: int) -> None:
        """Drop the batches that no round after `number` uses, so that they are not published."""
        # The ages at which a batch is used ascend: at the last of them, it has no use left.
        self._batches = {n: each for n, each in self._batches.items() if number - n < self._ages[-1]}

    def __len__(self) -> int:
        return len(self._batches)

    def arrays(self) -> Arrays:
        """The content as named arrays: `rounds`, int64 [n], and `<round>/<actor>/<array of a trajectory>`."""
        found: dict[str, NDArray[np.generic]] = {_ROUNDS: np.array(list(self._batches), np.int64)}
        for number, batch in self._batches.items():
            for actor, trajectory in enumerate(batch):
                found |= {f"{number}/{actor}/{name}": array for name, array in trajectory.arrays.items()}
        return found

    def restore(self, arrays: Arrays) -> None:
        """Replace the content by that of `arrays`; raises CorruptError for arrays of another job."""
        parts: dict[int, dict[int, dict[str, NDArray[np.generic]]]] = {}
        for name, array in arrays.items():
            number, _, rest = name.partition("/")
            actor, _, what = rest.partition("/")
            if name != _ROUNDS and not (number.isdecimal() and actor.isdecimal()):
                raise CorruptError(f"the kept batches have an array {name!r}, which is of no round")
            if name != _ROUNDS:
                parts.setdefault(int(number), {}).setdefault(int(actor), {})[what] = array
        rounds = arrays.get(_ROUNDS, np.zeros(0, np.int64)).tolist()
        if sorted(parts) != sorted(rounds) or len(rounds) > self._kept:
            raise CorruptError(f"the kept batches are of rounds {sorted(parts)}, and should be of {rounds}")
        self._batches = {number: tuple(self._checked(parts[number])) for number in sorted(parts)}

    def _keeps(self, name: str) -> bool:
        return name in _SHARED or (name.endswith(f"/{self._class}") and not name.startswith(_UNUSED))

    def _checked(self, actors: Mapping[int, Mapping[str, NDArray[np.generic]]]) -> Iterator[Trajectory]:
        for actor in sorted(actors):
            found, expected = actors[actor], {}
            if "cut" in found and found["cut"].ndim == 2:
                steps, copies = found["cut"].shape
                carried, rows = (
                    bool(self._memory or self._frames),
                    found["boot_index"].size if "boot_index" in found else 0,
                )
                schema = TrajectorySchema(
                    self._spaces, steps, copies, False, carried=carried, memory=self._memory, frames=self._frames
                )
                expected = {name: form for name, form in schema.shapes(rows).items() if self._keeps(name)}
            if {name: (a.dtype.name, a.shape) for name, a in found.items()} != expected:
                raise CorruptError(f"a kept batch has arrays {sorted(found)}, which do not fit this job")
            yield Trajectory(found)
