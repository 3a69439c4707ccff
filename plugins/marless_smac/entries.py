"""The factories of `smac/<map>`, as entry points of the group `marless.envs` name them.

Attribute `smac_<map>` of this module makes the battles of a map: `"smac/8m" = "marless_smac.entries:smac_8m"`.
"""

from __future__ import annotations

from functools import partial

from marless.learning.envs.base import BatchedEnv
from marless.learning.envs.registry import Factory, Options, read_options
from marless_smac.backends import BattleOptions, make
from marless_smac.maps import MAPS, SmacMap

_PREFIX = "smac_"


def __getattr__(name: str) -> Factory:
    """The factory of a map; raises AttributeError for a map that SMAC does not have."""
    if name.startswith(_PREFIX) and (smac_map := MAPS.get(name.removeprefix(_PREFIX))):
        return partial(_made, smac_map)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _made(smac_map: SmacMap, options: Options, batch: int) -> BatchedEnv:
    return make(smac_map, read_options(BattleOptions, options), batch)
