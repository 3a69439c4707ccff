"""Sharing policy `fixed`: the same groups in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.sharing.base import SharingConfig, SharingDecision, SharingKind
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces


class FixedSharingConfig(SharingConfig):
    """Settings of `fixed`; every round has the groups of the first."""

    name: str = "fixed"


@dataclass(frozen=True)
class FixedSharing:
    """The same groups in every round."""

    groups: tuple[Group, ...]

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        return False

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        return SharingDecision(self.groups, f"fixed: {len(self.groups)} policies in every round")


class FixedSharingKind(SharingKind):
    """Makes the policy; see `SharingKind`."""

    config_type = FixedSharingConfig

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> FixedSharing:
        return FixedSharing(groups)


SHARING = FixedSharingKind()
