"""The page that teaches how to add a scaling policy does what it says."""

import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from marless.jobs import spec
from marless.jobs.job import prepare
from tests.docs import programs
from tests.docs.blocks import text_of
from tests.unit.jobs.scaling.rounds import actors, groups, record

PAGE = "docs/extending/scaling.md"


@pytest.fixture(scope="module")
def page():
    return programs.run(PAGE)  # its second block runs the contract check


def test_a_job_finds_it_by_its_entry_point(page, monkeypatch):
    group, name, where = re.findall(r'entry-points."([\w.]+)"\]\n(\w+) = "([\w.:]+)"', text_of(PAGE))[0]
    entry = EntryPoint(name, where, group)
    monkeypatch.setattr(EntryPoint, "load", lambda self: page["SCALING"])
    monkeypatch.setattr("marless.core.registry.entry_points", lambda group: EntryPoints([entry]).select(group=group))
    section = re.search(r"`scaling: (\{name: plateau.*\})`", text_of(PAGE))[1]
    job = spec.load(written(section), ["actors.count=40"])
    history = [record(number, "a", mean=mean, actors=10) for number, mean in enumerate([-3, -3, -3, -3, -2, -3, -4])]
    assert job.scaling.window == 3
    assert actors(prepare(job).scaling, history, groups("a")) == [1, 1, 1, 1, 1, 1, 5, 20]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(section: str) -> Path:
    path = Path("job.yaml")
    path.write_text(
        f"env: {{name: mpe/simple_spread}}\nalgorithm: ippo\nscaling: {section}\nstop: {{rounds: 2}}\n", "utf-8"
    )
    return path
