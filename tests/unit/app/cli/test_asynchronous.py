"""What the commands say of asynchronous runs: `explain`, its picture, and `simulate`."""

import json
from dataclasses import replace

import pytest

from marless.jobs.spec import parse
from tests.unit.cost.comparison.synthetic import record, spec, write
from tests.unit.cost.estimates.test_overlapping import version as made


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run folder of 24 versions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    document = spec().model_dump(mode="json", by_alias=True)
    document["schedule"] = {"name": "stellaris", "learners": 2, "aggregation": "async"}
    document["actors"] |= {"count": 3, "episodes": "fresh"}
    document |= {"scaling": "fixed", "sharing": "fixed"}
    records = [
        replace(record(number), actors=3, aggregation=made(number).aggregation, invocations=made(number).invocations)
        for number in range(24)
    ]
    return write(tmp_path / "runs" / "tiny", parse(document, "spec"), records)


def test_explain_sums_the_versions_up(folder, marless):
    code, out, _ = marless("explain", "tiny")
    assert code == 0
    assert "24 versions (24 by rule) from 24 gradients; staleness 0.00 on average, 0 at most" in " ".join(out.split())
    found = json.loads(marless("explain", "tiny", "-o", "json")[1])
    assert (found["versions"]["gradients"], found["versions"]["lost"]) == (24, 0)


def test_explain_shows_how_a_version_came_about(folder, marless):
    code, out, _ = marless("explain", "tiny", "--round", "3")
    assert code == 0
    assert "1 gradient, aggregated by rule, no bound:" in out
    assert "learner 2: staleness 0, weight 1.000, waited 0.000 s, 25 env steps of rollouts 2" in out
    assert "events: r2:25 g2" in out
    found = json.loads(marless("explain", "tiny", "--round", "3", "-o", "json")[1])
    assert found["aggregation"]["arrivals"] == "r2:25 g2"


def test_the_picture_has_staleness_and_idle_time(folder, marless, tmp_path):
    pytest.importorskip("matplotlib")
    code, _, _ = marless("explain", "tiny", "--picture", tmp_path / "tiny.svg")
    assert code == 0
    drawn = (tmp_path / "tiny.svg").read_text()
    assert "staleness of gradients" in drawn and "without a rollout" in drawn


def test_simulate_runs_the_rule_on_other_slots(folder, marless):
    code, out, said = marless("simulate", "tiny", "--slots", "16")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("gradients")] == ["24"]
    assert "nothing learns" in said
    few = json.loads(marless("simulate", "tiny", "--set", "schedule.learners=1", "-o", "json")[1])
    many = json.loads(marless("simulate", "tiny", "--set", "actors.count=8", "-o", "json")[1])
    assert few["learners"]["modelled"] == 1
    assert many["seconds"]["modelled"] < few["seconds"]["modelled"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("simulate", "tiny", "--slots", "2"), "2 learners and an actor need 3 vCPUs"),
        (("simulate", "tiny", "--set", "schedule.name=pipelined"), "a replay can change"),
        (("train", "--replay", "tiny", "--set", "seed=4"), "a replay has the settings of its run"),
        (("train", "--replay", "tiny", "--resume", "tiny"), "give one of these"),
        (("train", "--replay", "tiny", "--dry-run"), "--dry-run estimates a new job"),
    ],
)
def test_mistakes_are_one_sentence(folder, marless, argv, said):
    code, out, err = marless(*argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
