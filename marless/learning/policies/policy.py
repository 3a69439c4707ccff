"""One trained policy, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from marless.core.errors import CorruptError
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import acting_heads
from marless.learning.nets.acting import Acting
from marless.learning.nets.inputs import Inputs


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The job and checkpoint that policies come from; fields are empty if unknown."""

    job: str = ""
    round: int = 0
    """Rounds done when they were saved."""
    algorithm: str = ""
    env: str = ""
    env_options: Mapping[str, object] = field(default_factory=dict)
    run_dir: Path | None = None
    """The run folder, if they were loaded from one."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy at one version, and the agents that use it."""

    name: str
    agents: tuple[str, ...]
    version: int
    state: Acting

    @property
    def obs_size(self) -> int:
        """O, the observation size of its agents; raises CorruptError if it does not follow from the weights."""
        weight = self.state.acting.get("policy.0.weight")
        if weight is None or weight.ndim != 2:
            raise CorruptError(f"policy {self.name}: its state holds no weights to act with")
        size = int(weight.shape[1]) - Inputs.parse(self.state.metadata).extra(self.action)
        if size < 0:
            raise CorruptError(f"policy {self.name}: its weights are too small for its inputs")
        return size

    @property
    def action(self) -> Discrete | Box:
        """The action space of its agents; raises CorruptError if its metadata lack it."""
        try:
            return acting_heads.parse_action(self.state.metadata.get("action", ""))
        except ValueError as error:
            raise CorruptError(f"policy {self.name}: {error}") from None
