"""The factory of `atari/<game>`, as the entry point of the group `marless.envs` names it."""

from __future__ import annotations

from marless.learning.envs.base import BatchedEnv
from marless.learning.envs.registry import Options, read_options
from marless_atari.options import AtariOptions


def family(name: str, options: Options, batch: int) -> BatchedEnv:
    """Copies of a game, by ALE's name such as `SpaceInvaders`; raises SpecError."""
    read = read_options(AtariOptions, options)
    from marless_atari.env import Atari  # imported here: it needs ale-py, which few have
    from marless_atari.games import rom_of

    return Atari(rom_of(name), read, batch)
