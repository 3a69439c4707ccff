"""The verb `simulate`: modelled figures under their own headings, the same data in every form, sentences."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import pytest
import yaml

from marless.cost.simulation.cluster import modelled, total
from marless.jobs.record import Evaluation
from tests.unit.cost.estimates.runs import run_of, spec_of

SPEC = spec_of(scaling={"name": "marless", "window": 3})


@pytest.fixture(scope="module")
def records():
    """Of five rounds; the policies of the second one were evaluated in the third, and those of the last at once."""
    made = run_of(SPEC, 5)
    early, late = (dataclasses.replace(made[0].returns, mean=mean) for mean in (-4.0, -5.0))
    third = dataclasses.replace(
        made[2], earlier_evaluation=Evaluation(rounds=2, env_steps=made[1].env_steps, returns=early)
    )
    return *made[:2], third, made[3], dataclasses.replace(made[4], evaluation=late)


@pytest.fixture
def simulate(records, tmp_path, monkeypatch, marless):
    """Runs `marless simulate`, where there are runs of five rounds and of none."""
    for name, rounds in (("job-1", records), ("empty", ())):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "spec.yaml").write_text(SPEC.to_yaml())
        (folder / "job.json").write_text(json.dumps({"job": name, "state": "SUCCEEDED", "random": None}))
        (folder / "rounds.jsonl").write_text("".join(record.to_json() + "\n" for record in rounds))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return partial(marless, "simulate")


def test_another_cluster_says_what_the_recorded_rounds_would_take_there(simulate, records):
    code, out, _ = simulate("job-1", "--slots", "64", "-o", "json")
    found = json.loads(out)
    assert code == 0
    assert found["slots"] == 64
    expected = sum(total(modelled(record, SPEC.functions, 64)) for record in records)
    assert found["recorded"]["modelled"]["seconds"] == found["replayed"]["modelled"]["seconds"] == expected
    assert found["recorded"]["measured"]["seconds"] == sum(total(record.phases) for record in records)
    assert [each["actors"] for each in found["rounds"]] == [record.actors for record in records]
    assert not any(each["differs"] for each in found["rounds"])
    assert found["rounds"][2]["return_as_recorded"] == records[2].returns.mean
    assert [each["evaluation_as_recorded"] for each in found["rounds"]] == [None, -4.0, None, None, -5.0]
    assert found["rounds"][2]["modelled_s"]["rollout"] == modelled(records[2], SPEC.functions, 64).rollout


def test_measured_and_modelled_never_share_a_column(simulate):
    _, out, said = simulate("job-1", "--scaling", "max", "--slots", "8")
    assert "returns are as recorded" in said
    head, *_ = out.splitlines()
    assert "seconds and USD modelled, 8 slots; return as recorded" in head
    totals = next(line for line in out.splitlines() if line.startswith("5 rounds"))
    assert totals.split("  ")[-1].strip() == "replayed, modelled"
    assert [part.strip() for part in totals.split("  ") if part.strip()] == [
        "5 rounds", "recorded, measured", "recorded, modelled", "replayed, modelled",
    ]  # fmt: skip
    serverful = next(line for line in out.splitlines() if line.startswith("serverful USD"))
    paper = next(line for line in out.splitlines() if line.startswith("paper USD"))
    assert len(serverful.split()) == 2 + 2  # a machine's hours are modelled in both cases
    assert len(paper.split()) == 2 + 2  # measured, and modelled of the replay


def test_other_policies_are_shown_beside_what_was_decided(simulate, records):
    _, out, _ = simulate("job-1", "--scaling", "fixed", "--set", "actors.count=3")
    assert f"3 (was {records[0].actors})" in out
    found = json.loads(simulate("job-1", "--scaling", "fixed", "--set", "actors.count=3", "-o", "json")[1])
    assert {each["actors"] for each in found["rounds"]} == {3}
    assert found["rounds"][0]["recorded"]["actors"] == records[0].actors
    assert found["scaling"]["name"] == "fixed"
    assert found["rounds"][0]["reasons"]["scaling"] == "fixed: 3 actors in every round"
    usd = found["replayed"]["modelled"]["usd"]
    assert usd["paper"] == pytest.approx(sum(each["modelled_usd"]["paper"] for each in found["rounds"]), abs=1e-9)


def test_all_forms_say_the_same_and_a_seed_the_same_again(simulate):
    asked = ("job-1", "--scaling", "max", "--set", "actors.count=9", "--seed", "4")
    found = json.loads(simulate(*asked, "-o", "json")[1])
    assert json.loads(simulate(*asked, "-o", "json")[1]) == found
    assert yaml.safe_load(simulate(*asked, "-o", "yaml")[1]) == found
    *rounds, about = map(json.loads, simulate(*asked, "-o", "jsonl")[1].splitlines())
    assert about | {"rounds": rounds} == found
    assert json.loads(simulate(*asked[:-1], "5", "-o", "json")[1])["rounds"] != found["rounds"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("nope",), 102, "there is no such run folder here, no such job in"),
        (("empty",), 2, "there is nothing to replay: no round has been recorded yet"),
        (("job-1", "--scaling", "nitroo"), 2, "unknown scaling policy 'nitroo'; did you mean 'nitro'?"),
        (("job-1", "--sharing", "marless"), 2, "asks how alike the agents are, and the recorded run measured it in no"),
        (("job-1", "--set", "env.name=x"), 2, "a replay can change scaling, sharing, functions, bill, stop and actors"),
        (("job-1", "--set", "scaling.window=1"), 2, "scaling.window: got 1"),
        (("job-1", "--slots", "2", "--set", "functions.actor.vcpus=4"), 2, "hold no actor of 4 vCPUs; give at least 4"),
    ],
)
def test_a_mistake_is_a_sentence(simulate, arguments, code, sentence):
    if arguments[1:] == ("--sharing", "marless"):
        arguments = (*arguments, "--set", "sharing.window=2", "--set", "sharing.threshold=0.9")
    found, out, said = simulate(*arguments)
    assert (found, out) == (code, "")
    assert sentence in said
    assert said.startswith("marless: ")


def test_a_shorter_replay_says_why_it_ended(simulate):
    _, _, said = simulate("job-1", "--set", "stop.rounds=2")
    assert "ended before the recording: 2 rounds done" in said
