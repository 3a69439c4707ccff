"""A cache of snapshots that only these tests use, and options of a small channel whose flows are made in a moment."""

import shutil
from pathlib import Path

import pytest

from marless.core import compiling
from marless_wall_model.kernel import SOURCE
from marless_wall_model.snapshots import cache_directory

SMALL = {
    "grid": {"nx": 8, "ny": 10, "nz": 8},
    "re_tau": [2000.0, 8000.0],
    "decisions": 4,
    "snapshots": 2,
    "spin_up": 0.1,
    "apart": 0.05,
}
"""Options of an environment with sixteen agents."""


def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for XDG_CACHE_HOME without snapshots, but with the kernels, compiled."""
    cache = tmp_path_factory.mktemp("cache")
    compiling.library(SOURCE)  # once for all caches, which takes seconds
    kernels = cache_directory().with_name("kernels")
    if kernels.is_dir():
        (cache / "marless").mkdir(mode=0o700)
        shutil.copytree(kernels, cache / "marless" / "kernels")
    return cache


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return private_cache(tmp_path_factory)


@pytest.fixture(autouse=True)
def own_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))


@pytest.fixture
def empty_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of snapshots of a cache in which there are none yet."""
    cache = private_cache(tmp_path_factory)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache / "marless" / "wall_model"
