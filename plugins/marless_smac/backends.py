"""Backends that fight the battles of a job: marless's engine, or StarCraft II itself."""

from __future__ import annotations

from dataclasses import dataclass

from marless.core.errors import SpecError, shown, unknown_name
from marless_smac.embedded import EmbeddedSmac
from marless_smac.env import SmacEnv
from marless_smac.maps import SmacMap
from marless_smac.options import SmacOptions

BACKENDS = ("embedded", "sc2")


@dataclass(frozen=True, kw_only=True)
class BattleOptions(SmacOptions):
    """The options of `smac/<map>` in job files: SMAC's, and the backend."""

    backend: str = "embedded"
    """`embedded`, or `sc2` for the real game."""
    build: int = 0
    """The build of StarCraft II to use, e.g. 75689 for version 4.10; 0: the newest one that is installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend not in BACKENDS:
            raise SpecError(unknown_name("backend", str(self.backend), BACKENDS))
        if isinstance(self.build, bool) or not isinstance(self.build, int) or self.build < 0:
            raise SpecError(f"build must be a number of a folder Versions/Base<build>, or 0, got {shown(self.build)}")


def make(smac_map: SmacMap, options: BattleOptions, batch: int) -> SmacEnv:
    """B battles on a map; raises SpecError if the backend is not there."""
    if options.backend == "embedded":
        return EmbeddedSmac(smac_map, options, batch)
    from marless_smac.starcraft import battles, installation  # imported here: needs the extra `starcraft`

    return SmacEnv(smac_map, options, battles.GameBattles(smac_map, batch, installation.find(options.build)))
