"""Statistics of a policy's gradient: how noisy it is, and how far the agents that share the policy agree on it.

They hold for the policy that played, before its training: afterwards it has been fitted to the noise of its samples.

The samples of each member are divided at random into parts of equal size, and the gradient of the objective is computed
for each part. How much the parts of one member differ tells the noise; how much the members' means agree tells
whether they want the same. All four statistics are unbiased, so that means over rounds come closer to the truth; a
single one may be negative where it should not. Shapes: P policies, D parameters, m members, u parts of a member.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from marless.core.interruption import Stopped, check
from marless.learning.algos.training.measurable import Measurable, Measured

_STREAM = 6
"""Number of the random stream that divides samples, which must differ from other streams of the same round."""
PARTS = 4
"""Parts of all samples, at least; a member has two of its own, at least."""


def gradient_statistics(
    policies: Measurable, samples: Measured, members: int, seed: tuple[int, int], stopped: Stopped
) -> dict[str, Tensor]:
    """The statistics of each policy's gradient, float64 [P] by name; {} if a member has fewer than two units.

    - "gradient_trace": tr Σ, the noise of one sample: the expected squared distance of its gradient to its agent's
      mean one. McCandlish et al. 2018, appendix A.1.
    - "gradient_signal": |G|², the squared norm of the mean over all agents, without the part that noise adds to it.
      The gradient noise scale is tr Σ / |G|², in samples.
    - "gradient_own" (only with several members): the mean over agents of the squared norm of an agent's own gradient.
    - "gradient_common" (likewise): the mean over pairs of agents of the product of their gradients. It equals
      "gradient_own" for agents that want the same, and is 0 or less for those that pull in different directions [ours].

    Args:
        samples: Units of members one after another, equally many of each.
        members: m, the number of agents of each policy.
        seed: The job's seed and the round, which decide which units of a member belong to which part.

    Raises StoppedError between two parts once `stopped` returns True.
    """
    of_member = samples.count // members
    parts = min(max(PARTS // members, 2), of_member)
    if parts < 2:
        return {}
    units = of_member // parts
    rng = np.random.default_rng([*seed, _STREAM])
    order_U = torch.from_numpy(rng.permutation(of_member)[: units * parts])
    size = units * samples.unit  # samples of a part
    mean_PD = torch.zeros_like(policies.tensors["flat"], dtype=torch.float64)
    trace_P, own_P = torch.zeros_like(mean_PD[:, 0]), torch.zeros_like(mean_PD[:, 0])
    for member in range(members):
        square_P, member_PD = torch.zeros_like(trace_P), torch.zeros_like(mean_PD)
        for part in range(parts):
            check(stopped)
            index_U = member * of_member + order_U[part * units : (part + 1) * units]
            gradient_PD = policies.score_gradient(samples.subset(index_U.to(mean_PD.device))).double()
            square_P += _square(gradient_PD) / parts
            member_PD += gradient_PD / parts
        noise_P = (square_P - _square(member_PD)) * parts / (parts - 1)  # of the gradient of one part
        trace_P += size * noise_P / members
        own_P += (_square(member_PD) - noise_P / parts) / members
        mean_PD += member_PD / members
    found = {"gradient_trace": trace_P, "gradient_signal": _square(mean_PD) - trace_P / (size * parts * members)}
    if members > 1:
        # m² |mean|² is the sum over all pairs; without the m pairs of an agent with itself, all noise is independent.
        own_noisy_P = own_P + trace_P / (size * parts)
        common_P = (members * _square(mean_PD) - own_noisy_P) / (members - 1)
        found |= {"gradient_own": own_P, "gradient_common": common_P}
    return found


def _square(x_PD: Tensor) -> Tensor:
    return x_PD.square().sum(dim=1)
