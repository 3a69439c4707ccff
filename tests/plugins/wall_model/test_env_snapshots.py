"""The cache of snapshots: made once, by one of several processes, the same each time, and anew if damaged."""

import hashlib
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from marless.app.cli.main import app
from marless_wall_model import snapshots
from marless_wall_model.options import WallModelOptions
from marless_wall_model.snapshots import Recipe, snapshots_of
from tests.plugins.wall_model.conftest import SMALL

RECIPE = Recipe.of(WallModelOptions(**SMALL), 2000.0)
PROGRAM = """
import hashlib
from marless_wall_model.options import WallModelOptions
from marless_wall_model.snapshots import Recipe, snapshots_of
flows = snapshots_of(Recipe.of(WallModelOptions(**{options}), 2000.0))
print("sha", hashlib.sha256(b"".join(flow["u"].tobytes() for flow in flows)).hexdigest())
"""


def sha(flows) -> str:
    return hashlib.sha256(b"".join(flow["u"].tobytes() for flow in flows)).hexdigest()


def files(directory) -> list:
    return sorted(directory.glob("*.safetensors"))


def test_flows_are_made_once_and_read_back_bit_for_bit(empty_cache, monkeypatch):
    made = snapshots_of(RECIPE)
    assert len(made) == 2 and float(made[1]["time"][0]) == pytest.approx(0.15)
    assert not np.array_equal(made[0]["u"], made[1]["u"])
    assert len(files(empty_cache)) == 1
    assert stat.S_IMODE(empty_cache.stat().st_mode) == 0o700
    monkeypatch.setattr(Recipe, "make", None)
    read = snapshots_of(RECIPE)
    for first, second in zip(made, read, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first) and first.keys() == second.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"subgrid": "vreman"},
        {"re_tau": 2001.0},
        {"seed": 1},
        {"spin_up": 0.2},
        {"apart": 0.1},
        {"count": 3},
        {"kernel": "another"},
        {"grid": replace(RECIPE.grid, nx=10)},
    ],
)
def test_all_that_flows_depend_on_is_in_the_name(change):
    assert replace(RECIPE, **change).digest != RECIPE.digest == replace(RECIPE).digest


@pytest.mark.parametrize("damage", ["cut short", "flipped", "emptied", "another's"])
def test_a_damaged_file_is_said_and_made_anew(empty_cache, damage):
    whole = sha(snapshots_of(RECIPE))
    (path,) = files(empty_cache)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes({"cut short": content[:-9], "flipped": content, "emptied": b""}.get(damage, b"8" * 100))
    with capture_logs() as said:
        assert sha(snapshots_of(RECIPE)) == whole
    assert [line["event"] for line in said].count("snapshots.damaged") == 1
    assert files(empty_cache) == [path]


def test_processes_that_need_the_same_flows_make_them_once(empty_cache):
    program = PROGRAM.format(options=SMALL)
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(3)
    ]
    said = [each.communicate(timeout=100)[0] for each in running]
    assert [each.returncode for each in running] == [0, 0, 0]
    assert sum(text.count("snapshots.made ") for text in said) == 1
    assert len({line for text in said for line in text.splitlines() if line.startswith("sha")}) == 1
    # Made here anew, they are the same again.
    snapshots.removed(RECIPE)
    assert f"sha {sha(snapshots_of(RECIPE))}" in said[0]


def test_a_maker_that_dies_keeps_nobody_waiting(empty_cache):
    dying = PROGRAM.format(options=SMALL).replace(
        "flows =", "Recipe.make = lambda self: __import__('os').kill(__import__('os').getpid(), 9)\nflows ="
    )
    assert subprocess.run([sys.executable, "-c", dying], env=dict(os.environ), check=False, timeout=60).returncode == -9
    assert files(empty_cache) == [] and len(snapshots_of(RECIPE)) == 2


def test_without_a_cache_flows_are_made_for_this_process(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with capture_logs() as said:
        assert len(snapshots_of(RECIPE)) == 2
    assert "snapshots.not_kept" in [line["event"] for line in said]


def test_another_users_directory_is_not_used(empty_cache, tmp_path):
    empty_cache.parent.mkdir(exist_ok=True)
    (tmp_path / "trap").mkdir()
    empty_cache.symlink_to(tmp_path / "trap")
    with capture_logs() as said:
        assert len(snapshots_of(RECIPE)) == 2
    assert "it is a symbolic link" in str(said) and not list((tmp_path / "trap").iterdir())


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.yaml"
    environment = {"name": "wall_model/llwm", "options": SMALL}
    path.write_text(json.dumps({"env": environment, "algorithm": {"name": "ippo"}, "stop": {"rounds": 1}}))
    return path


def data(done) -> dict:
    """The JSON at the end of what a command printed; in this process, the log is before it."""
    return json.loads(done.stdout[done.stdout.index("{\n") :])


def test_the_command_makes_them_and_makes_them_anew(empty_cache, job):
    done = CliRunner().invoke(app, ["wall-model", "snapshots", str(job)])
    assert done.exit_code == 0 and "2 flows for each Re_τ of 2000, 8000 are in" in done.output
    made = {path: path.stat().st_mtime_ns for path in files(empty_cache)}
    assert len(made) == 2
    CliRunner().invoke(app, ["wall-model", "snapshots", str(job)])
    assert {path: path.stat().st_mtime_ns for path in files(empty_cache)} == made
    again = CliRunner().invoke(app, ["wall-model", "snapshots", str(job), "--anew", "-o", "json"])
    assert data(again)["snapshots"].keys() == {"2000", "8000"}
    # Equal content has an equal name.
    assert (
        files(empty_cache) == sorted(made) and files(empty_cache)[0].stat().st_mtime_ns != made[files(empty_cache)[0]]
    )


def test_the_command_plays_controllers(job):
    done = CliRunner().invoke(app, ["wall-model", "baselines", str(job), "--episodes", "2", "-o", "json"])
    found = data(done)
    assert found["means"]["no-op"] == 0 and found["means"]["log-law"] > 0.05 > found["means"]["random"]
    assert len(found["returns"]["random"]) == 2


def test_the_command_refuses_another_environment(tmp_path):
    done = CliRunner().invoke(app, ["wall-model", "snapshots", "spread"])
    assert done.exit_code != 0 and "its environment is mpe/simple_spread" in str(done.exception or done.output)
