"""The page on adding a net does what it says; tests/docs runs its test, and trains a job with it."""

import sys

import pytest

from marless import spec
from marless.job import prepare
from marless.nets.kinds import kind_of
from tests.docs import programs

PAGE = "docs/extending/net.md"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The page's package, installed while a test runs."""
    programs.install(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]


def test_a_job_finds_it_by_its_entry_point(package):
    job = prepare(spec.load(package / "job.yaml"))
    assert job.spec.model.kind == "residual"
    assert type(kind_of("residual")).__name__ == "Residual"
