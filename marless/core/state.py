"""What a version of a policy consists of: named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # the coordinator reads `REPLAY` without the time to import NumPy
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
