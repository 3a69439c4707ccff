"""A folder like that of StarCraft II, whose program is the stand-in."""

import json
import sys
from pathlib import Path

import pytest

from marless_smac.starcraft import installation

ROOT = Path(__file__).parents[4]
BUILDS = (69232, 75689)


@pytest.fixture
def sc2(tmp_path, monkeypatch):
    """Makes the folder with faults of the stand-in, and SC2PATH name it; returns its path."""

    def made(*maps, **faults):
        for build in BUILDS:
            program = tmp_path / "Versions" / f"Base{build}" / "SC2_x64"
            program.parent.mkdir(parents=True)
            module = "tests.plugins.smac.starcraft.stand_in"
            program.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m {module} "$@"\n')
            program.chmod(0o755)
        (tmp_path / "Maps" / "SMAC_Maps").mkdir(parents=True)
        for name in maps:
            (tmp_path / "Maps" / "SMAC_Maps" / f"{name}.SC2Map").write_bytes(b"the map " + name.encode())
        (tmp_path / "faults.json").write_text(json.dumps(faults))
        monkeypatch.setenv(installation.VARIABLE, str(tmp_path))
        return tmp_path

    return made


def processes(root):
    """How many processes of the stand-in have been started."""
    return len((root / "started.txt").read_text())
