"""One trained policy, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from marless.core.errors import CorruptError
from marless.learning.envs.base import AgentClass, Box, Discrete
from marless.learning.nets import acting_heads, observed_forms
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
    def agent_class(self) -> AgentClass:
        """The class of its agents; raises CorruptError if metadata and weights do not tell their spaces."""
        unknown = AgentClass(self.name, self.agents, 0, self.action)
        try:
            told = observed_forms.described(unknown, self.state.metadata)
        except CorruptError as error:
            raise CorruptError(f"policy {self.name}: {error}") from None
        return told if told.obs_size else replace(told, obs_size=self._weighed_size)

    @property
    def obs_size(self) -> int:
        """O, the observation size of its agents; raises CorruptError as `agent_class` does."""
        return self.agent_class.obs_size

    @property
    def _weighed_size(self) -> int:
        """The observation size by the weights of a net whose first layer reads all inputs."""
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
