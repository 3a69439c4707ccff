"""SMAC's battles on 23 maps, in batched NumPy or in the real game, with the interface of SMAC's class."""

from marless_smac.backends import BattleOptions, make
from marless_smac.embedded import EmbeddedSmac
from marless_smac.maps import MAPS
from marless_smac.options import SmacOptions

__all__ = ["MAPS", "BattleOptions", "EmbeddedSmac", "SmacOptions", "make"]
