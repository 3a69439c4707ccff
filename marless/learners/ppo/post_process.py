"""The first function of a PPO update: from trajectories and critics to advantages, returns and training samples.

Shapes: N agents of the class, T time, B copies, S = T · B, K bootstrap rows, R rows, I features + 1, P nets of a stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from marless.algos.ppo import PPOConfig
from marless.learners.ppo.functions import CriticFunction, Metrics, Samples, weights
from marless.learners.stacks import Stack
from marless.learners.table import Table
from marless.losses import gae, normalise, value

Tensors = Mapping[str, Tensor]
"""A `Table` on the learner's device, without the fields that are None."""


def upload(table: Table, device: torch.device) -> Tensors:
    """Move a table to the device (on the CPU it is shared, not copied)."""
    arrays = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None}


@dataclass(frozen=True)
class CriticPass:
    """A stack of critics on a round's samples."""

    names: tuple[str, ...]
    function: CriticFunction
    stack: Stack | None
    """Whom the critics serve, one each; None: one joint critic serves all agents, one output each."""
    features: Tensor
    """[P, I, samples]: what they train on."""
    seen: Tensor
    """[rows, I, samples]: what they judge, see `Stack.seen`."""
    boot_seen: Tensor
    """[rows, I, bootstrap rows]."""

    def pool(self, x_N1S: Tensor) -> Tensor:
        """Samples of the agents as samples of the critics, [P, outputs, samples]."""
        return self.stack.pool(x_N1S) if self.stack else x_N1S.transpose(0, 1)

    def judge(self, value_NS: Tensor, boot_value_NK: Tensor) -> None:
        """Fill in the values of the agents that the critics serve."""
        for seen, out_NS in ((self.seen, value_NS), (self.boot_seen, boot_value_NK)):
            if self.stack:
                self.stack.spread(self.function.values(seen, self.stack.owner), out_NS)
            else:
                out_NS.copy_(self.function.values(seen)[0])


def estimate(passes: list[CriticPass], tensors: Tensors, config: PPOConfig) -> tuple[Tensor, Tensor]:
    """Values and advantages of all samples, each [N, 1, S]."""
    reward_NTB, terminated_NTB = tensors["reward"], tensors["terminated"]
    agents = reward_NTB.shape[0]
    value_NTB = torch.empty_like(reward_NTB)
    boot_value_NK = reward_NTB.new_empty(agents, tensors["boot_index"].shape[0])
    for critics in passes:
        critics.judge(value_NTB.view(agents, -1), boot_value_NK)
    after_NTB = gae.successor_values(value_NTB, boot_value_NK, tensors["boot_index"], tensors["cut"], terminated_NTB)
    advantage_NTB = gae.advantages(
        reward_NTB,
        value_NTB,
        after_NTB,
        terminated_NTB | tensors["cut"],
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
    )
    return value_NTB.view(agents, 1, -1), advantage_NTB.view(agents, 1, -1)


def critic_samples(
    critics: CriticPass, value_N1S: Tensor, advantage_N1S: Tensor, tensors: Tensors, config: PPOConfig
) -> tuple[Samples, Metrics]:
    """What the critics train on, returns being advantages plus values; and how good the values were."""
    parts = {"alive": critics.pool(tensors["alive"])} if "alive" in tensors else {}
    value_PKS, return_PKS = critics.pool(value_N1S), critics.pool(value_N1S + advantage_N1S)
    weight_PKS = weights(parts, return_PKS)
    metrics = {"explained_variance": value.explained_variance(value_PKS, return_PKS, weight_PKS)}
    if config.value_normalisation:
        critics.function.rescale(return_PKS, weight_PKS)
    parts["target"] = critics.function.normalised(return_PKS)
    parts["old"] = critics.function.normalised(value_PKS)
    return Samples({"features": critics.features, **parts}), metrics


def policy_samples(stack: Stack, advantage_N1S: Tensor, tensors: Tensors, config: PPOConfig) -> Samples:
    """What a stack of policies trains on."""
    names = [name for name in ("action", "log_prob", "alive", "legal") if name in tensors]
    parts = {"features": stack.pool(tensors["obs"])} | {name: stack.pool(tensors[name]) for name in names}
    parts["advantage"] = stack.pool(advantage_N1S)
    if config.advantage_normalisation:
        advantage_PS = parts["advantage"].squeeze(1)
        parts["advantage"] = normalise.standardise(advantage_PS, weights(parts, advantage_PS)).unsqueeze(1)
    return Samples(parts)
