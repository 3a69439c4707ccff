"""Observations, actions and rewards of the agents of one class in a batch, as inputs for policies and critics.

Shapes: N agents, I inputs + 1, A actions or action components in critics' inputs, M samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.ddpg.heads import DeterministicHead
from marless.learning.algos.off_policy import td
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.training.policy_batching import Stack


@dataclass(frozen=True, kw_only=True)
class SampleView:
    """The samples of one agent class, or of the rows of one stack."""

    now: Tensor
    """float32 [N, I, M], policies' inputs."""
    after: Tensor
    """float32 [N, I, M], policies' inputs in the successor states."""
    action: Tensor
    """float32 [N, A, M]; 0 for dead agents."""
    noise: Tensor
    """float32 [N, A, M], noise for the actions of policies in training."""
    noise_after: Tensor
    """float32 [N, A, M], noise for the actions of target policies."""
    reward: Tensor
    """float32 [N, 1, M]."""
    discount: Tensor
    """float32 [N, 1, M], discount of the successor's value; 0 where the agent terminated."""
    legal: Tensor | None
    """bool [N, A, M]; None if every action always is."""
    legal_after: Tensor | None
    alive: Tensor
    """float32 [N, 1, M], 1, or 0 for samples of dead agents, which do not count."""
    alive_after: Tensor | None
    """None if agents never leave."""
    importance: Tensor | None
    """float32 [N, 1, M], importance weights; None for uniform draws."""
    acts: Tensor | None = None
    """float32 [N, 1, M], 1 for samples that policies are trained on: not where the agent waits, and its last action
    stands; None: all that are alive."""
    kept: Tensor | None = None
    """float32 [N, A, M], see `ClassBatch`."""

    def taken(self, stack: Stack) -> SampleView:
        """Select the samples that the members of a stack train on."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        parts: dict[str, Any] = {  # Any: some fields may be None
            name: None if part is None else stack.take(part) for name, part in given.items()
        }
        return SampleView(**parts)

    @property
    def share(self) -> Tensor:
        """[N, 1, M], weights that sum to 1 per agent; 0 for an agent that is in none of the samples."""
        return td.sample_weights(self.alive.squeeze(1), None).unsqueeze(1)

    @property
    def weight(self) -> Tensor:
        """[N, 1, M], weights that sum to 1 per agent, times the samples' importance."""
        return self._weights(self.alive)

    @property
    def acting_weight(self) -> Tensor:
        """[N, 1, M], those for policies."""
        return self._weights(self.alive if self.acts is None else self.acts)

    def _weights(self, counts_N1M: Tensor) -> Tensor:
        importance_NM = None if self.importance is None else self.importance.squeeze(1)
        return td.sample_weights(counts_N1M.squeeze(1), importance_NM).unsqueeze(1)


def views(batch: Batch, heads: Sequence[DeterministicHead], rng: np.random.Generator) -> tuple[SampleView, ...]:
    """The views of a batch of single env steps, one per class, with the noise of a gradient step drawn from `rng`."""
    width, found = batch.width, []
    for each, gains, head in zip(batch.classes, batch.gains, heads, strict=True):
        action = head.encode(each.action)
        alive = None if each.alive is None else each.alive.unsqueeze(1)
        legal = each.legal
        # One draw for both, on the host: noise is the same on a CPU and on a GPU, and whether or not policies are due.
        noise, noise_after = torch.from_numpy(head.noise(rng, (2, *action.shape))).to(action.device)
        found.append(
            SampleView(
                now=each.features[:, :, :width],
                after=each.features[:, :, width:],
                action=action if alive is None else action * alive[:, :, :width],
                noise=noise,
                noise_after=noise_after,
                reward=gains.reward.unsqueeze(1),
                discount=gains.discount.unsqueeze(1),
                legal=None if legal is None else legal[:, :, :width],
                legal_after=None if legal is None else legal[:, :, width:],
                alive=torch.ones_like(gains.reward).unsqueeze(1) if alive is None else alive[:, :, :width],
                acts=None if each.acts is None else each.acts.unsqueeze(1),
                kept=each.kept,
                alive_after=None if alive is None else alive[:, :, width:],
                importance=None if batch.importance is None else batch.importance.expand(len(action), 1, -1),
            )
        )
    return tuple(found)
