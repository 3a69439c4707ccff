"""SMAC's battles on 23 maps, in batched NumPy or in the real game, with the interface of SMAC's class."""

from marless.envs.smac.backends import BattleOptions, make
from marless.envs.smac.embedded import EmbeddedSmac
from marless.envs.smac.maps import MAPS
from marless.envs.smac.options import SmacOptions

__all__ = ["MAPS", "BattleOptions", "EmbeddedSmac", "SmacOptions", "make"]
