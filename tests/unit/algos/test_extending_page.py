"""The page on adding an algorithm does what it says; tests/docs runs its tests, and trains a job with it."""

import importlib
import subprocess
import sys

import pytest

from marless import spec
from marless.algos.registry import algorithm
from marless.job import prepare
from tests.docs import programs
from tests.docs.blocks import text_of

PAGE = "docs/extending/algorithm.md"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The page's package, installed while a test runs."""
    programs.install(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def test_a_job_finds_it_by_its_entry_point(package, monkeypatch):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.algorithm.name == "spo"
    assert job.spec.algorithm.clip == 0.1
    assert algorithm("spo").config_type is type(job.spec.algorithm)


def test_its_config_loads_no_torch(package):
    program = "import my_package.spo, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=package, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_everything_it_names_is_there():
    table = text_of(PAGE).partition("| what you need")[2].partition("\n\n")[0]
    for path in {part for part in table.split("`") if part.startswith("marless.")}:
        module, _, name = path.rpartition(".")
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), name), path
