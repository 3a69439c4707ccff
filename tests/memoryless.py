"""The part of a policy behind the protocol of rollouts that those need who remember nothing."""

from __future__ import annotations


class Memoryless:
    """Nothing to forget."""

    def begin(self, batch: int) -> None:
        """Where an episode starts in each copy."""

    def reset_memory(self, anew_NB: object) -> None:
        """Where agents begin anew in some."""
