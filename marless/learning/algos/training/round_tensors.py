"""A round's samples of an agent class on the learner's device, as learners without a replay read them.

Shapes: N agents of the class, S samples, J normalised inputs, I features + 1, P policies of a stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.training.policy_batching import Stack
from marless.learning.algos.training.table import Table
from marless.learning.nets.normalising import centre_and_scale

Tensors = Mapping[str, Tensor]
"""The arrays of a `Table` on the learner's device."""


def upload(table: Table, device: torch.device, known: Sequence[str] = ()) -> Tensors:
    """Copy a table to the device, with the ids of `known` agents among the inputs of policies.

    On the CPU, memory is shared instead.
    """
    arrays = {field.name: getattr(table, field.name) for field in fields(table)}
    # From ordinary memory: a round is uploaded once, before its gradient steps, so there is little to wait for.
    tensors = {
        name: torch.from_numpy(array).to(device, non_blocking=True)
        for name, array in arrays.items()
        if isinstance(array, np.ndarray)
    }
    return tensors | {name: with_ids(tensors[name], known) for name in ("obs", "boot_obs")}


def with_ids(x_NIS: Tensor, known: Sequence[str]) -> Tensor:
    """Inputs with the one-hot ids of the class's agents before the row of ones; the same if no agent is known."""
    if not known:
        return x_NIS
    ids_NKS = torch.eye(len(known), device=x_NIS.device).unsqueeze(2).expand(-1, -1, x_NIS.shape[2])
    return torch.cat([x_NIS[:, :-1], ids_NKS, x_NIS[:, -1:]], dim=1)


def normalised(x_NIS: Tensor, seen_NJ3: Tensor, clip: float | None) -> Tensor:
    """A copy of inputs whose first J rows are normalised by their statistics, as actors normalise them."""
    centre_NJ, scale_NJ = map(torch.from_numpy, centre_and_scale(seen_NJ3.cpu().numpy()))
    found_NIS = x_NIS.clone()
    rows_NJS = found_NIS[:, : seen_NJ3.shape[1]]
    rows_NJS.sub_(centre_NJ.to(x_NIS.device).unsqueeze(2)).mul_(scale_NJ.to(x_NIS.device).unsqueeze(2))
    if clip is not None:
        rows_NJS.clamp_(-clip, clip)
    return found_NIS


def by_agent(stacked: Iterable[tuple[Stack, Tensor]], agents: int) -> Tensor:
    """Numbers of each agent's policy, [N, ...], given those of the policies of each stack, [P, ...]."""
    parts = list(stacked)
    like = parts[0][1]
    found = like.new_empty(agents, *like.shape[1:])
    for stack, numbers in parts:
        found[stack.agents] = numbers[list(stack.owners)]
    return found
