"""`marless scheduler train`: data on standard output, one sentence for a mistake, a folder that a job can use."""

from __future__ import annotations

import json
from functools import partial

import pytest
import yaml

from marless.jobs.job import prepare
from marless.jobs.spec import load
from tests.unit.cost.billing.rounds import paper_round
from tests.unit.jobs.test_record import RETURNS

JOB = {
    "env": {"name": "mpe/simple_spread"},
    "algorithm": "ippo",
    "actors": {"count": 3, "envs": 4, "steps": 25},
    "stop": {"rounds": 8},
}


@pytest.fixture
def train(tmp_path, monkeypatch, marless):
    """Runs `marless scheduler train` on the job, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return partial(marless, "scheduler", "train", "--spec", "job.yaml")


def recorded(runs, name: str, rounds: int = 6, **changes):
    """A run folder whose returns rise by 1 a round."""
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "spec.yaml").write_text(yaml.safe_dump(JOB | changes))
    (folder / "job.json").write_text(json.dumps({"job": name, "state": "SUCCEEDED"}))
    lines = []
    for number in range(rounds):
        record = paper_round(number, actors=2)
        mean = type(RETURNS)(episodes=4, mean=number - 20.0, per_agent={}, standard_error=0.0)
        lines.append(type(record)(**vars(record) | {"returns": mean, "env_steps": 200 * (number + 1)}).to_json())
    (folder / "rounds.jsonl").write_text("".join(line + "\n" for line in lines))


def test_without_a_record_it_learns_from_a_synthetic_model(train, tmp_path):
    code, out, said = train("--episodes", "10")
    assert code == 0
    title, head, *rows = out.splitlines()
    assert title.startswith("modelled")
    assert head.split() == [
        "actors",
        "by",
        "objective",
        "last",
        "return",
        "reached",
        "actors",
        "run",
        "s",
        "run",
        "USD",
    ]
    names = [row.split("  ")[0] for row in rows]
    assert names[:2] == ["best", "cheapest"]
    assert {"fixed 3", "random"} < set(names)
    assert "on 10 runs simulated after a synthetic model; use it with" in said
    job = JOB | {"scaling": {"name": "minions", "scheduler": "scheduler"}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    assert prepare(load(tmp_path / "job.yaml")).scaling.decide([], ()).actors in (1, 2, 3)


def test_it_says_what_it_learned_from_and_what_that_cost(train, tmp_path):
    recorded(tmp_path / "runs", "one")
    recorded(tmp_path / "runs", "two")
    asked = ("one", "runs/two", "--episodes", "6", "--seed", "5", "--target", "-16", "--out", "s", "-o", "json")
    code, out, said = train(*asked)
    assert code == 0
    found = json.loads(out)
    assert (found["scheduler"], found["seed"], found["episodes"]) == ("s", 5, 6)
    assert found["model"] == "2 recorded runs, 12 rounds"
    assert found["task"] == {
        "rounds": 8, "max_actors": 3, "target": -16.0, "budget_usd": None, "usd_per_gb_s": 1.66667e-5, "beta": 0.1,
    }  # fmt: skip
    assert [run["job"] for run in found["recorded"]] == ["one", "two"]
    # 6 rounds of 4.9 s; of 2 actors of 1 GB and 1.15 s, and 12 functions of 2 GB and 3.75 s
    cost = 6 * (2 * 1.15 + 12 * 2 * 3.75) * 1.66667e-5
    assert found["recorded"][0]["wall_s"] == pytest.approx(6 * 4.9)
    assert found["recorded"][0]["paper_usd"] == pytest.approx(cost, rel=1e-3)
    assert found["modelled"]["fixed 3"]["wall_s"] == pytest.approx(8 * (1.15 + 3.75 * 1.5))
    assert "the recorded runs sampled at most 1,200 env steps, and runs of this job sample up to 2,400" in said
    manifest = json.loads((tmp_path / "s" / "scheduler.json").read_text())
    assert manifest["report"] == {name: found[name] for name in manifest["report"]}
    weights = (tmp_path / "s" / "best.safetensors").read_bytes()
    assert train(*asked)[0] == 0  # again, in its place
    assert (tmp_path / "s" / "best.safetensors").read_bytes() == weights
    assert {path.name for path in (tmp_path / "s").iterdir()} == {
        "scheduler.json",
        "best.safetensors",
        "cheapest.safetensors",
    }


MISTAKES = {
    ("--set", "stop={env_steps: 9}"): "stop.rounds is not set: a scheduler learns runs of a fixed number of rounds",
    (
        "other",
    ): "other: actors.envs was 5, in job.yaml it is 4; give runs that were recorded with the settings of that file",
    ("short",): "the recorded runs have no 5 rounds in which episodes ended: give longer runs, or none at all",
    ("nobody",): "nobody: there is no such run folder here, no such job in",
    ("--out", "job.yaml"): "--out job.yaml: File exists; choose another folder",
    ("--out", "job.yaml/s"): "--out job.yaml/s: Not a directory; choose another folder",
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_sentence(train, tmp_path, arguments):
    recorded(tmp_path / "runs", "other", actors={"count": 2, "envs": 5, "steps": 25})
    recorded(tmp_path / "runs", "short", rounds=4)
    code, out, said = train("--episodes", "1", *arguments)
    assert code
    assert out == ""
    assert MISTAKES[arguments] in said
    assert len(said.splitlines()) == 1
