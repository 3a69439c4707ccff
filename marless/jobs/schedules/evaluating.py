"""When policies are evaluated: beside the update of the round after the one that published them."""

from __future__ import annotations


def is_due(every: int, rounds: int) -> bool:
    """True if the policies that exist after this many rounds are to be evaluated beside the next update.

    Args:
        every: The job's `evaluation.every`; 0: only those of its last round.
    """
    return every > 0 and rounds > 0 and rounds % every == 0
