"""SMAC's battles without the game: 23 maps in batched NumPy, with the interface of SMAC's class."""

from marless.envs.smac.embedded import EmbeddedSmac
from marless.envs.smac.maps import MAPS
from marless.envs.smac.options import SmacOptions

__all__ = ["MAPS", "EmbeddedSmac", "SmacOptions"]
