"""Log-probabilities of recorded actions under other policies than the one that is trained: earlier, later, others'.

Shapes: N agents of the class, T time, B copies, S = T · B, P policies of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.algos.ppo.segments import Segments
from marless.learning.algos.training.policy_batching import Stack

Tensors = Mapping[str, Tensor]
"""See `marless.learning.algos.ppo.post_process.Tensors`."""


@dataclass(frozen=True)
class PeerPolicies:
    """The policies of another learner, for the policies of a stack."""

    function: PolicyFunction
    absent: tuple[int, ...]
    """Indices of policies that it has not; the weights of `function` there mean nothing."""


def log_probs(policies: Sequence[tuple[Stack, PolicyFunction]], tensors: Tensors, segments: Segments | None) -> Tensor:
    """Log-probabilities of all recorded actions, [N, S], under the policies of each agent.

    With memory, policies start from the memory with which the actors did. At steps of dead agents the numbers mean
    nothing.
    """
    out_NS = tensors["log_prob"].new_empty(tensors["log_prob"].shape[0], tensors["log_prob"].shape[2])
    for stack, function in policies:
        seen = {name: stack.seen(tensors[key]) for name, key in _rows(tensors)}
        if segments is not None:
            seen |= _starts(stack.seen(_own_first(tensors, segments)), segments.steps)
            seen |= {"memory": stack.seen(tensors["memory"])} if "memory" in tensors else {}
        stack.spread(function.log_probs(seen, stack.owner).unsqueeze(1), out_NS)
    return out_NS


def ratios(log_prob_NS: Tensor, tensors: Tensors) -> Tensor:
    """π/μ of all samples, [N, T, B]; 1 where an agent is dead: it has done nothing that is more or less likely."""
    ratio_NS = (log_prob_NS - tensors["log_prob"].squeeze(1)).exp()
    if "alive" in tensors:
        ratio_NS = ratio_NS.masked_fill(tensors["alive"].squeeze(1) == 0, 1.0)
    return ratio_NS.view_as(tensors["reward"])


def least_log_prob(
    peers: Sequence[PeerPolicies], stack: Stack, parts: Tensors, tensors: Tensors, segments: Segments | None
) -> Tensor:
    """The least log-probability of a stack's training samples under the policies of peers, [P, 1, samples].

    +∞ without peers. `parts` has the rows of the samples, in their order.
    """
    least_PS = torch.full_like(parts["log_prob"].squeeze(1), math.inf)
    seen = {name: parts[name] for name in ("features", "action", "legal") if name in parts}
    if segments is not None:
        seen |= _starts(stack.pool(_own_first(tensors, segments)), segments.steps)
        seen |= {"memory": stack.pool(tensors["memory"])} if "memory" in tensors else {}
    for peer in peers:
        found_PS = peer.function.log_probs(seen)
        found_PS[list(peer.absent)] = math.inf
        least_PS = torch.minimum(least_PS, found_PS)
    return least_PS.unsqueeze(1)


def _rows(tensors: Tensors) -> list[tuple[str, str]]:
    """Names of the rows that policies need, and of the tensors that have them."""
    named = (("features", "obs"), ("action", "action"), ("legal", "legal"))
    return [(name, key) for name, key in named if key in tensors]


def _own_first(tensors: Tensors, segments: Segments) -> Tensor:
    """[N, 1, S], 1 where the memory of an agent's policy is empty before a step."""
    return segments.own_first.expand(len(tensors["reward"]), -1, -1)


def _starts(first: Tensor, steps: int) -> dict[str, Tensor]:
    return {"resets": first.reshape(len(first), steps, -1) > 0}
