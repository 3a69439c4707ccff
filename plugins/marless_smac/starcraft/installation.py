"""Finds StarCraft II on this machine: its versions and SMAC's maps."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from marless.core.errors import SpecError

VARIABLE = "SC2PATH"
_PROGRAM = "SC2_x64"
_MAPS = Path("Maps", "SMAC_Maps")
_LARGEST_MAP = 32 * 2**20


@dataclass(frozen=True)
class Installation:
    """One version of the game in the folder that SC2PATH names."""

    root: Path
    build: int
    """The number of its folder, e.g. 75689 for version 4.10."""

    @property
    def program(self) -> Path:
        """The game's executable."""
        return self.root / "Versions" / f"Base{self.build}" / _PROGRAM

    def map_file(self, name: str) -> Path:
        """The file of one of SMAC's maps; raises SpecError if it is missing."""
        path = self.root / _MAPS / f"{name}.SC2Map"
        if not path.is_file():
            raise SpecError(
                f"StarCraft II has no map {name}: {path} is missing; unpack SMAC_Maps.zip, which the project"
                f" oxwhirl/smac offers, into {self.root / 'Maps'}"
            )
        return path

    def map_data(self, name: str) -> bytes:
        """What `map_file` holds; raises SpecError if it cannot be read or is too large."""
        path = self.map_file(name)
        try:
            if path.stat().st_size > _LARGEST_MAP:
                raise SpecError(f"{path} is no map: it has more than {_LARGEST_MAP // 2**20} MiB")
            return path.read_bytes()
        except OSError as error:
            raise SpecError(f"cannot read the map {path}: {error.strerror}") from error


def find(build: int = 0, environment: Mapping[str, str] = os.environ) -> Installation:
    """The game with this build number, or the newest one for 0; raises SpecError with what is missing, and where."""
    given = environment.get(VARIABLE, "")
    if not given:
        raise SpecError(
            f"backend sc2 needs StarCraft II: install Blizzard's Linux package, and set {VARIABLE} to its folder"
            " where actor workers and the coordinator run; backend embedded needs no game"
        )
    root = Path(given)
    builds = _builds(root)
    if not builds:
        raise SpecError(f"{VARIABLE}={given}: no StarCraft II is there; {root / 'Versions'} has no Base*/{_PROGRAM}")
    chosen = build or max(builds)
    if chosen not in builds:
        known = ", ".join(str(each) for each in sorted(builds))
        raise SpecError(f"{VARIABLE}={given}: build {build} is not installed; installed: {known}")
    found = Installation(root, chosen)
    if not os.access(found.program, os.X_OK):
        raise SpecError(f"{found.program} cannot be executed: `chmod +x` it")
    return found


def _builds(root: Path) -> set[int]:
    names = (path.parent.name for path in root.glob(f"Versions/Base*/{_PROGRAM}"))
    return {int(match[1]) for name in names if (match := re.fullmatch(r"Base(\d{1,9})", name))}
