"""Gradients in the parameter store: each is a policy there, until it is applied.

So fencing, checksums, bounds and deletion are those of weights. A gradient that is computed once more from other
rollouts or versions, after a coordinator has lost what it knew, is the next version under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence

PART = "gradient"
_PREFIX = "gradient/"
"""Policies of agents cannot have such a name: it cannot be one of a checkpoint's files."""


def name_of(learner: int, scope: int) -> str:
    """The policy under which the store keeps a learner's gradient of one scope."""
    return f"{_PREFIX}{learner}/{scope}"


def is_gradient(policy: str) -> bool:
    """True if the store keeps a gradient under this name."""
    return policy.startswith(_PREFIX)


def request_id(job: str, learner: int, scope: int, rollouts: Sequence[int], versions: Sequence[int]) -> str:
    """The idempotency key of its publish: equal rollouts and versions give equal gradients."""
    return f"{job}/{name_of(learner, scope)}/{','.join(map(str, rollouts))}@{','.join(map(str, versions))}"


def learner_of(policy: str) -> int:
    """The learner whose gradient is kept under this name."""
    return int(policy.removeprefix(_PREFIX).partition("/")[0])
