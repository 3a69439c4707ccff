"""SMAC's battles on 23 maps, in batched NumPy or in the real game, with the interface of SMAC's class."""

from marless.learning.envs.smac.backends import BattleOptions, make
from marless.learning.envs.smac.embedded import EmbeddedSmac
from marless.learning.envs.smac.maps import MAPS
from marless.learning.envs.smac.options import SmacOptions

__all__ = ["MAPS", "BattleOptions", "EmbeddedSmac", "SmacOptions", "make"]
