"""What `bench.learned_schedulers` runs on a task, in order."""

import json
from argparse import Namespace

import pytest

from bench import learned_schedulers
from bench.frontiers import TASKS
from bench.learned_schedulers import GROUPS, RECORDED, Learned, main
from marless.core.documents import from_yaml


@pytest.fixture
def called(monkeypatch):
    """The command lines; the frontier's result appears as if it had been made."""
    found = []

    def call(words, env):
        found.append(words)
        return 0

    monkeypatch.setattr(learned_schedulers.subprocess, "call", call)
    return found


def test_the_scheduler_learns_from_seeds_that_it_is_not_tried_on(called, tmp_path):
    task = next(each for each in TASKS if each.name == "mappo")
    work = Learned(task, Namespace(runs=tmp_path, seeds=5, processes=1, document=None))
    folder = tmp_path / "frontier-mappo-learned"
    folder.mkdir()
    best = {"goal": {"value": -11.5, "best": "4 independent synchronous"}}
    settings = {"settings": {"4 independent synchronous": {"actors": 4}}}
    (folder / "frontier.json").write_text(json.dumps(best | settings), "utf-8")
    assert work.make({}) == 0
    first, *recorded, learned, last = called
    assert first[first.index("--presets") + 1] == ""
    assert [word for words in recorded for word in words if word.startswith("seed=")] == ["seed=100", "seed=101"]
    assert not set(RECORDED) & set(range(5))
    # 600,000 env steps of 4 actors with 20 copies and 25 steps.
    assert all({"actors.count=4", "stop.rounds=300"} <= set(words) for words in recorded)
    assert learned[learned.index("--target") + 1] == "-11.5"
    file = tmp_path / "mappo-learned.yaml"
    assert last[last.index("--presets") + 1] == f"{file}:adapt,{file}:minions"
    presets = from_yaml(file, "presets")
    assert presets["adapt"]["scaling"] == {"name": "adapt", "goal": -11.5}
    assert presets["minions"]["sharing"] == {"name": "fixed", "groups": "independent"}


def test_it_ends_with_the_first_step_that_fails(monkeypatch, tmp_path):
    monkeypatch.setattr(learned_schedulers.subprocess, "call", lambda words, env: 7)
    work = Learned(TASKS[0], Namespace(runs=tmp_path, seeds=5, processes=1, document=None))
    assert work.make({}) == 7
    assert work.rows() == []


def test_every_task_is_one_of_the_frontiers():
    assert GROUPS.keys() <= {task.name for task in TASKS}


def test_an_unknown_task_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["learned_schedulers", "--tasks", "spread7"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown task 'spread7'; known: spread6" in capsys.readouterr().err
