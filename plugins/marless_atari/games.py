"""The games that ale-py has, by the names of Gymnasium's ids (`ALE/SpaceInvaders-v5`), and their ROMs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from marless.core.errors import SpecError, told, unknown_name

try:
    from ale_py import ALEInterface, LoggerMode, roms
except ImportError as missing:
    raise SpecError(f"needs ale-py, which cannot be imported ({missing}); pip install 'marless[atari]'") from None

ALEInterface.setLoggerMode(LoggerMode.Error)  # ALE greets on stderr otherwise
_FOR_TWO = frozenset({"combat", "joust", "maze_craze", "warlords"})
"""Games without a mode for one player: ALE would end the process if it were told to load them."""


@cache
def names() -> Mapping[str, str]:
    """Name of a game → name of its ROM, such as `SpaceInvaders` → `space_invaders`."""
    return {rom.title().replace("_", ""): rom for rom in roms.get_all_rom_ids() if rom not in _FOR_TWO}


def rom_of(name: str) -> Path:
    """The ROM of a game; raises SpecError for an unknown game, and for a ROM that is missing or not the right one."""
    if name not in names():
        raise SpecError(unknown_name("game", name, names()))
    rom = names()[name]
    try:
        path = roms.get_rom_path(rom)
    except OSError as error:
        raise SpecError(f"the ROM {rom}.bin cannot be read: {told(error)}; {_REPAIR}") from None
    if path is None or ALEInterface.isSupportedROM(path) != rom:
        raise SpecError(f"this ale-py does not support the ROM {rom}.bin; {_REPAIR}")
    return path


_REPAIR = "ale-py's wheel has it: reinstall ale-py, or correct the environment variable ALE_ROMS_DIR if it is set"
