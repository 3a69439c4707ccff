"""Cards of teams: what the records say, by hand; the same from a job, its folder and its file."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest

from marless import load_policy
from marless.app.cli.card import Card, card_of, changed_settings, markdown, thinned
from marless.core.errors import CorruptError
from marless.core.machine import MachineRecord
from marless.cost.billing.bill import bill
from marless.jobs import prices
from marless.jobs.record import Evaluation
from marless.learning.data.returns import EpisodeReturns
from marless.learning.envs.base import Discrete
from marless.learning.nets.acting import ActingState
from tests.unit.cost.billing.rounds import job, paper_round
from tests.unit.learning.policies.saved import save, state

SPEC = job(
    name="pair",
    seed=3,
    env={"name": "mpe/simple_spread", "options": {"agents": 2}},
    algorithm={"name": "ippo", "lr": 0.002},
    scaling="marless",
    stop={"rounds": 4},
)


def returns(mean: float, **more: object) -> EpisodeReturns:
    return EpisodeReturns(**{"episodes": 50, "mean": mean, "per_agent": {"a|b": mean}, "standard_error": 0.5} | more)


def greedy(rounds: int, mean: float) -> Evaluation:
    return Evaluation(rounds=rounds, env_steps=100 * rounds, returns=returns(mean))


MACHINE = MachineRecord(id="m", began_s=1e9, launcher="local", vcpus=2.0, present_s=60.0, work_s=60.0)
RECORDS = [replace(paper_round(i), env_steps=100 * (i + 1), machines=(MACHINE,)) for i in range(4)]
RECORDS[2] = replace(RECORDS[2], earlier_evaluation=greedy(2, -20.0))
RECORDS[3] = replace(RECORDS[3], evaluation=returns(-12.0))
STATUS = {
    "job": "pair",
    "state": "SUCCEEDED",
    "marless_version": "1.2",
    "random": dataclasses.asdict(returns(-26.0, wins=5)),
}


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "pair"
    states = {"p": state(12, Discrete(5), seed=0)}
    for rounds in (2, 4):
        save(folder, states, {"p": ("agent_0", "agent_1")}, round_=rounds)
    (folder / "spec.yaml").write_text(SPEC.to_yaml())
    (folder / "job.json").write_text(json.dumps(STATUS))
    (folder / "rounds.jsonl").write_text("".join(record.to_json() + "\n" for record in RECORDS))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_card_says_what_the_records_say():
    card = card_of(load_policy("pair"))
    assert (card.job, card.environment, card.environment_options) == ("pair", "mpe/simple_spread", {"agents": 2})
    assert (card.algorithm, card.seed, card.rounds, card.env_steps, card.marless) == ("ippo", 3, 4, 400, "1.2")
    assert card.settings == {"algorithm.lr": 0.002, "scaling.name": "marless", "stop.rounds": 4}
    assert (card.evaluation, card.random.mean) == (Evaluation(rounds=4, env_steps=400, returns=returns(-12.0)), -26.0)
    assert (card.curve_of, card.curve) == ("greedy", ((200, -20.0), (400, -12.0)))
    made = bill(RECORDS, SPEC, prices.load())
    assert card.cost_usd == {each: made.total_usd(each) for each in ("paper", "billed", "serverful")}
    assert (card.machines, card.vcpus, card.device) == (1, 2.0, "auto")
    assert card.training_s == pytest.approx(sum(record.spent_s for record in RECORDS), abs=1e-3)


def test_a_card_of_an_earlier_round_knows_nothing_of_later_ones():
    card = card_of(load_policy("pair", round=2))
    assert (card.rounds, card.env_steps, card.evaluation) == (2, 200, greedy(2, -20.0))
    assert card.cost_usd["billed"] == bill(RECORDS[:2], SPEC, prices.load()).total_usd("billed")


def test_a_job_its_folder_and_its_file_have_the_same_card(marless):
    code, text, said = marless("card", "pair")
    assert (code, said) == (0, "")
    assert marless("card", "runs/pair")[1] == text
    assert marless("export", "pair") == (0, "pair.safetensors\n", "")
    assert marless("card", "pair.safetensors") == (0, text, "")
    assert "| p | agent_0, agent_1 | 12 numbers | 5 to choose from |" in text
    assert "| greedy | -12.00 | 0.50 | 50 |  |\n| random actions | -26.00 | 0.50 | 50 | 10% |" in text
    assert "| 200 | -20.00 |\n| 400 | -12.00 |" in text
    assert '| algorithm.lr | `0.002` |\n| scaling.name | `"marless"` |' in text
    assert 'marless.load_policy("pair.safetensors")' in text
    assert text.rstrip().endswith("*To be filled in by the author.*")


def test_evaluate_shows_what_the_card_reports(marless):
    marless("export", "pair")
    marless("export", "pair", "--round", "2", "--to", "earlier")
    for source, mean in (("pair.safetensors", -12.0), ("earlier", -20.0)):
        found = json.loads(marless("evaluate", source, "--episodes", "2", "-o", "json")[1])
        assert (found["reported_return"], found["round"]) == (mean, 4 if mean == -12.0 else 2)


def test_settings_of_a_rule_that_needs_some_are_told_whole():
    spec = job(scaling={"name": "adapt", "goal": -20}, model={"hidden": [32]}, env={"name": "game/matrix"}, seed=9)
    found = changed_settings(spec)
    assert (found["scaling.goal"], found["scaling.window"], found["model.hidden"]) == (-20, 5, [32])
    assert not {"seed", "env.name", "stop.env_steps", "learner.device"} & set(found)


def test_a_curve_is_thinned_with_its_ends():
    points = [(step, -1.0 * step) for step in range(1000)]
    found = thinned(points, 50)
    assert (len(found), found[0], found[-1]) == (50, points[0], points[-1])
    gaps = {after[0] - before[0] for before, after in pairwise(found)}
    assert gaps == {20, 21}
    assert thinned(points[:50], 50) == tuple(points[:50])


@pytest.mark.parametrize(
    "change",
    [
        {"job": 3},
        {"curve": [[1]]},
        {"evaluation": {"rounds": 1}},
        {"random": dataclasses.asdict(returns(-1.0, episodes=0, wins=0))},
        {"settings": None},
        {"seed": None},
    ],
)
def test_a_card_that_is_none_is_refused(marless, change):
    team = load_policy("pair")
    card = dataclasses.asdict(card_of(team))
    team.save("good", card | {"of a later version": 1})
    assert marless("card", "good")[0] == 0
    team.save("forged", card | change)
    for verb in ("card", "evaluate", "export"):
        code, out, said = marless(verb, "forged")
        assert (code, out, said.count("\n")) == (1, "", 1)
        assert "the card in the file is none of marless export" in said
    with pytest.raises(CorruptError):
        card_of(load_policy("forged"))


def test_no_word_of_a_card_steers_the_terminal_or_breaks_a_table(marless):
    team = load_policy("pair")
    card = card_of(team)
    team.save("forged", dataclasses.asdict(replace(card, job="\x1b]0;evil\x07", settings={"a|b": "c|\x9b2J"})))
    _, out, said = marless("card", "forged")
    assert not any(each in out + said for each in ("\x1b", "\x07", "\x9b"))
    assert r"| a\|b | `" in out


def test_a_team_without_records_is_exported_without_a_card(marless, run):
    shutil.copytree(run / "checkpoints" / "round-000004", "mine")
    assert marless("export", "mine") == (0, "mine.safetensors\n", "")
    held = load_policy("mine.safetensors")
    assert (held.card, held.agents) == ({}, ("agent_0", "agent_1"))
    assert marless("card", "mine.safetensors")[0] == 2


def test_equal_cards_are_equal_text():
    team = load_policy("pair")
    card = card_of(team)
    again = Card(**dict(reversed(vars(card).items())))
    assert markdown(again, team) == markdown(card, team)


def test_a_card_says_that_a_team_remembers(run):
    assert "team.begin()" not in markdown(card_of(load_policy("pair")), load_policy("pair"))
    held = state(12 + 5, Discrete(5), seed=0)
    remembering = ActingState(held.acting, {**held.metadata, "inputs": "obs+last_action"})
    save(run, {"p": remembering}, {"p": ("agent_0", "agent_1")}, round_=4)
    (run / "spec.yaml").write_text(SPEC.to_yaml())
    team = load_policy("pair")
    assert "call `team.begin()` when an episode starts" in markdown(card_of(team), team)


def test_the_returns_of_each_agent_are_told():
    """The mean of sides that compete says nothing."""
    team = load_policy("pair")
    sides = {"hunter": 20.0, "prey": -21.5}
    evaluated = Evaluation(rounds=4, env_steps=400, returns=returns(-0.75, per_agent=sides))
    text = markdown(replace(card_of(team), evaluation=evaluated, random=returns(0.0, per_agent={"prey": -3.0})), team)
    assert "| hunter | 20.00 |  |\n| prey | -21.50 | -3.00 |" in text
    assert "greedy return" not in markdown(card_of(team), team)  # the mean of one agent is told already
