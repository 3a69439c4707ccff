"""A version of a policy, which consists of named arrays; and the optimizer step of a net, as an algorithm declares it,
so that one can be taken without its learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays: TypeAlias = "Mapping[str, NDArray[np.generic]]"
REPLAY = "replay"
"""The metadata "kind" of a state that holds a replay buffer instead of a policy."""


@dataclass(frozen=True)
class PolicyState:
    """One version of a policy as named arrays: the part that actors need, and the part that only its learner needs."""

    acting: Arrays
    """Weights that an actor needs, e.g. "policy.0.weight" float32 [H, O]; empty for a joint critic."""
    learning: Arrays
    """Critic weights, optimizer moments, step counts, normaliser statistics."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """How to interpret `acting`: kind of net, activation, action space."""


@dataclass(frozen=True, kw_only=True)
class ReturnScale:
    """How a critic's units follow the returns of a batch, before its step."""

    decay: float
    """Weight of earlier batches in mean and deviation of the returns."""
    popart: bool
    """True: the output layer is rescaled, so that values do not change (van Hasselt et al. 2016)."""


@dataclass(frozen=True, kw_only=True)
class NetStep:
    """One step of Adam (Kingma & Ba 2015) with the nets of one prefix ("policy", "critic")."""

    lr: float
    eps: float
    """Adam's ε."""
    max_grad_norm: float
    """Limit of the gradient's L2 norm."""
    returns: ReturnScale | None = None
    """For critics with normalised values; their gradients then have `prefix.returns`."""
    target_steps: int | None = None
    """Steps between two copies of the net to its target network, `prefix.target`; None if it has none."""
