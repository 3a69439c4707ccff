"""Nothing runs of the directory in which a command is given, which may be what a stranger packed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.running import DOCUMENT

PLANTED = (
    *("yaml", "numpy", "grpc", "structlog", "torch", "pettingzoo", "sitecustomize", "site"),
    *("services", "marless", "marless_smac"),
)
COMMAND = (sys.executable, "-P", "-c", "from marless.app.cli import command; command()")
"""As the installed command runs: its own directory is on the path, the working directory is not."""


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory with modules of the names of those that are imported, and a package with an entry point."""
    said = f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)\nraise SystemExit(3)\n"
    place = tmp_path / "unpacked"
    place.mkdir()
    for name in PLANTED:
        (place / f"{name}.py").write_text(said, "utf-8")
    (place / "evil.py").write_text(said, "utf-8")
    info = place / "evil-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("[marless.envs]\nevil = evil:make\n", "utf-8")
    document = DOCUMENT | {"stop": {"rounds": 1}, "evaluation": {"every": 0, "episodes": 1, "random_episodes": 1}}
    (place / "job.yaml").write_text(yaml.safe_dump(document), "utf-8")
    (place / "evil.yaml").write_text(yaml.safe_dump(document | {"env": {"name": "evil"}}), "utf-8")
    return place


def marless(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"TMPDIR": str(place.parent), "MARLESS_SPOOL": str(place.parent), "OMP_NUM_THREADS": "1"}
    command = (*COMMAND, *arguments)
    return subprocess.run(command, cwd=place, env=os.environ | own, capture_output=True, text=True, check=False)


def test_a_job_trains_there_and_nothing_of_the_directory_runs(place):
    done = marless(place, "train", "job.yaml", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "SUCCEEDED"
    assert not (place.parent / "ran").exists()


def test_an_entry_point_there_is_none(place):
    done = marless(place, "train", "evil.yaml")
    assert "unknown environment 'evil'" in done.stderr
    assert not (place.parent / "ran").exists()


def test_every_process_that_is_started_leaves_the_working_directory_out():
    root = Path(__file__).parents[2]
    sources = [
        path.read_text("utf-8") for part in ("marless", "services", "plugins") for path in (root / part).rglob("*.py")
    ]
    started = [after for text in sources for after in re.findall(r"sys\.executable, ([^\s\[]\S*)", text)]
    assert len(started) >= 5
    same = "*sys.orig_argv[1:]"  # a command that is run once more, with the options that it was given
    assert {after.rstrip("],") for after in started} <= {'"-P"', '"-I"', same.rstrip("]")}
