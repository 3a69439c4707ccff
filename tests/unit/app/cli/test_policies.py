"""The verbs `evaluate` and `export`: data on standard output, one sentence for a mistake, an exit code for each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from marless import load_policy
from marless.learning.envs.base import Discrete
from marless.learning.policies.evaluation import evaluate
from tests.unit.learning.policies.saved import save, state


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    states = {f"agent_{i}": state(12, Discrete(5), seed=i) for i in range(2)}
    save(tmp_path / "runs" / "job-1", states, {name: (name,) for name in states}, round_=4)
    save(tmp_path / "runs" / "shared", {"agent": states["agent_0"]}, {"agent": tuple(states)})
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_evaluate_prints_a_score_beside_chance(marless):
    code, out, said = marless("evaluate", "job-1", "--episodes", "30", "--seed", "3", "-o", "json")
    assert (code, said) == (0, "")
    found = json.loads(out)
    expected = evaluate(load_policy("job-1"), episodes=30, seed=3)
    assert found["return"] == expected.team.returns.mean
    assert found["return_per_agent"] == expected.team.returns.per_agent
    assert found["standard_error_per_agent"] == expected.team.standard_errors
    assert found["random_return"] == expected.chance.returns.mean
    assert (found["job"], found["round"], found["env"]) == ("job-1", 4, "mpe/simple_spread")
    assert found["reported_return"] is None
    assert yaml.safe_load(marless("evaluate", "job-1", "--episodes", "30", "--seed", "3", "-o", "yaml")[1]) == found
    _, table, _ = marless("evaluate", "job-1", "--episodes", "30", "--seed", "3", "--runs", "runs")
    head, *agents, mean = (line.split() for line in table.splitlines())
    assert head == ["agent", "return", "random", "reported"]
    assert [row[0] for row in agents] == ["agent_0", "agent_1"]
    assert mean[1] == f"{found['return']:.2f}"
    assert mean[3] == f"{found['standard_error']:.2f}"


def test_evaluate_elsewhere_exploring_filmed(marless, tmp_path):
    plain = json.loads(marless("evaluate", "shared", "-o", "jsonl")[1])
    explored = json.loads(marless("evaluate", "shared", "--explore", "-o", "jsonl")[1])
    shorter = json.loads(marless("evaluate", "shared", "--env-option", "max_cycles=2", "-o", "jsonl")[1])
    assert plain["return"] != explored["return"]
    assert plain["return"] < 5 * shorter["return"] < 0
    code, out, said = marless("evaluate", "shared", "--render", "film.gif", "-o", "name")
    assert (code, out, said) == (0, "shared\n", "marless: filmed one episode: film.gif, 26 pictures\n")
    assert (tmp_path / "film.gif").read_bytes().startswith(b"GIF89a")


def test_evaluate_says_how_many_episodes_were_won(marless):
    words = ("--env", "game/matrix", "--env-option", "payoff=coordination", "--episodes", "40")
    save(Path("runs/game"), {"agent": state(3, Discrete(2), seed=0)}, {"agent": ("agent_0", "agent_1")})
    found = json.loads(marless("evaluate", "game", *words, "-o", "json")[1])
    assert found["win_rate"] == found["return"] / 10  # what is won pays 10, all else nothing
    assert 0.2 < found["random_win_rate"] < 0.8
    assert found["reported_win_rate"] is None
    *_, won = marless("evaluate", "game", *words)[1].splitlines()
    assert won.split() == ["won", f"{found['win_rate']:.0%}", f"{found['random_win_rate']:.0%}"]
    plain = json.loads(marless("evaluate", "job-1", "-o", "json")[1])
    assert (plain["win_rate"], plain["random_win_rate"]) == (None, None)


def test_export_and_evaluate_what_was_exported(marless):
    assert marless("export", "job-1", "--policy", "agent_1", "--to", "one") == (0, "one\n", "")
    assert load_policy("one").agents == ("agent_1",)
    assert marless("export", "job-1", "--policy", "agent_1")[1] == "job-1-agent_1.safetensors\n"
    assert load_policy("job-1-agent_1.safetensors").agents == ("agent_1",)


@pytest.mark.parametrize("job", ["job-1", "shared"])
def test_a_whole_team_is_exported_and_evaluated(marless, job):
    assert marless("export", job) == (0, f"{job}.safetensors\n", "")
    assert list(load_policy(f"{job}.safetensors").policies) == list(load_policy(job).policies)
    found = json.loads(marless("evaluate", f"{job}.safetensors", "-o", "json")[1])
    assert found["return_per_agent"] == json.loads(marless("evaluate", job, "-o", "json")[1])["return_per_agent"]


@pytest.mark.parametrize("job", ["job-1", "shared"])
def test_a_team_in_onnx_is_evaluated_as_others(marless, job):
    assert marless("export", job, "--onnx") == (0, f"{job}.onnx\n", "")
    assert marless("export", job, "--to", "team.onnx") == (0, "team.onnx\n", "")
    found = json.loads(marless("evaluate", "team.onnx", "-o", "json")[1])
    assert found["return_per_agent"] == json.loads(marless("evaluate", job, "-o", "json")[1])["return_per_agent"]


MISTAKES = {
    ("evaluate", "nope"): (
        102,
        "nope: there is no such policy file, checkpoint or run folder here",
    ),
    ("evaluate", "job-1", "--round", "3"): (102, "job job-1 has no checkpoint after 3 rounds; there is 4"),
    ("evaluate", "job-1", "--round", "best"): (102, "job job-1 has no checkpoint that was evaluated, of which one"),
    ("evaluate", "job-1", "--env", "mpe/spread"): (2, "unknown environment 'mpe/spread'; did you mean"),
    ("evaluate", "job-1", "--env-option", "agents"): (2, "--env-option 'agents': write it as name=value"),
    ("evaluate", "job-1", "--env-option", "agents=["): (2, "--env-option 'agents=[': '[' is not a YAML value"),
    ("evaluate", "job-1", "--env-option", "agent=2"): (2, "environment mpe/simple_spread: unknown option 'agent'"),
    ("evaluate", "job-1", "--env-option", "agents=3"): (2, "no policy for agent_2 of this environment"),
    ("evaluate", "runs/job-1/spec.yaml"): (1, "runs/job-1/spec.yaml is not a policy, or it is damaged"),
    ("evaluate", "job-1", "--render", "none/film.gif"): (1, "none/film.gif: there is no directory none; make"),
    ("evaluate", "nowhere", "--render", "film.mp4"): (
        2,
        "film.mp4: a film is an animated GIF or a PNG; give it a name that ends",
    ),
    ("export", "job-1", "--to", "one", "--policy", "agent_2"): (2, "unknown policy 'agent_2'; did you mean"),
    ("export", "job-1", "--to", "one", "--onnx"): (2, "--to one: the name of an ONNX file ends with .onnx"),
    ("card", "job-1"): (2, "job-1 does not say how it was trained; give a job, its run folder, or a team of"),
    ("export", "shared", "--to", "none/one"): (1, "none/one: No such file or directory"),
}


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_sentence_and_an_exit_code(marless, arguments):
    expected, sentence = MISTAKES[arguments]
    code, out, said = marless(*arguments)
    assert (code, out, len(said.splitlines())) == (expected, "", 1)
    assert said.startswith(f"marless: {sentence}")
