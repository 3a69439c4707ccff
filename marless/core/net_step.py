"""What an algorithm says about the optimizer step of a net, so that one can be taken without its learner. No NumPy."""

from __future__ import annotations

from dataclasses import dataclass


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
