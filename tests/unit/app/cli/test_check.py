"""`marless check`: what marless sees of a job, and what it warns of, without training."""

import json
import re

import pytest

DOCUMENT = """
env: {name: game/matrix}
algorithm: ippo
actors: {count: 2, envs: 4, steps: 5}
stop: {rounds: 1}
"""
ENDLESS = '''
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Endless(ParallelEnv):
    """Never ends, pays nothing, and observes one number, 1000."""

    metadata = {"name": "endless"}
    possible_agents = ["a", "b"]

    def __init__(self, seeded=True):
        self.seeded = seeded

    def observation_space(self, agent):
        return spaces.Box(0, 1e6, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Box(-np.inf, 2.0, (1,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._seen(), {a: {} for a in self.agents}

    def step(self, actions):
        no = dict.fromkeys(self.agents, False)
        return self._seen(), dict.fromkeys(self.agents, 0.0), no, no, {a: {} for a in self.agents}

    def _seen(self):
        return {a: np.full(1, 1000.0, np.float32) for a in self.agents}
'''


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(DOCUMENT)
    (tmp_path / "endless_game.py").write_text(ENDLESS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MARLESS_ENV_MODULES", "endless_game")
    return tmp_path / "job.yaml"


def test_what_marless_sees_of_a_job(marless, job):
    code, shown, said = marless("check", job)
    assert (code, said) == (0, "")
    assert "agent_0, agent_1" in shown
    assert "3 actions" in shown
    assert re.search(r"seen: [\d,]+ episodes of 1 step, 0 cut by a time limit", shown)
    assert "ippo trains 2 policies; 2 actors · 4 copies · 5 steps = 40 env steps a round" in shown


NUMBERS = {"image": None, "entities": []}
"""What is said of observations that are neither images nor lists of others."""


def test_the_same_as_json(marless, job):
    code, shown, _ = marless("check", job, "-o", "json")
    found = json.loads(shown)
    assert code == 0
    assert found["classes"] == [
        {"name": "agent", "agents": ["agent_0", "agent_1"], "obs_size": 3, "action": {"n": 3}, **NUMBERS}
    ]
    assert found["seen"]["episodes"] == found["seen"]["env_steps"]
    assert found["notes"] == []


def test_what_random_play_shows_to_be_doubtful_is_said(marless, job):
    endless = ("--set", "env.name=pettingzoo/endless_game:Endless")
    code, shown, said = marless("check", job, *endless, "-o", "json")
    notes = json.loads(shown)["notes"]
    assert code == 0
    assert json.loads(shown)["classes"][0]["action"] == {"low": [None], "high": [2.0]}  # JSON has no infinity
    for part in (
        "observes numbers from 1000 to 1000",
        "the same numbers in every step",
        "the reward of each agent was the same",
        "no episode ended within",
    ):
        assert any(part in note for note in notes), part
        assert part in said


def test_agents_that_cannot_see_what_they_do_are_told_of(marless, job):
    (job.parent / "endless_game.py").write_text(ENDLESS.replace("1000.0", 'ord(a) - ord("a")'))
    _, _, said = marless("check", job, "--set", "env.name=pettingzoo/endless_game:Endless")
    assert "observed stayed the same in each episode, whatever was done" in said


def test_fresh_episodes_are_advised_only_where_they_are_carried(marless, job):
    (job.parent / "endless_game.py").write_text(ENDLESS.replace("1000.0", "np.random.random()"))
    job.write_text(DOCUMENT.replace("game/matrix", "pettingzoo/endless_game:Endless"))
    advice = "so a run cannot be repeated, and actors.episodes: carried may fail; set actors.episodes: fresh"
    assert advice in marless("check", job)[2]
    assert "so a run cannot be repeated\n" in marless("check", job, "--set", "actors.episodes=fresh")[2]


def test_large_observations_are_no_trouble_where_they_are_normalised(marless, job):
    job.write_text(DOCUMENT.replace("game/matrix", "pettingzoo/endless_game:Endless"))
    assert "observes numbers from 1000 to 1000" in marless("check", job)[2]
    assert "observes numbers from" not in marless("check", job, "--set", "model.normalise_observations=true")[2]


def test_train_says_what_a_glance_shows(marless, job):
    """It trained on numbers of 1000 without a word: only `check` told."""
    ending = ENDLESS.replace("no = dict", "over = dict").replace(
        "None):\n        self", "None):\n        self.t = 0; self"
    )
    ending = ending.replace("self.agents, False)", "self.agents, True)").replace("no, no", "over, over")
    (job.parent / "endless_game.py").write_text(ending)
    job.write_text(DOCUMENT.replace("game/matrix", "pettingzoo/endless_game:Endless"))
    code, _, said = marless("train", job, "--in-process", "--workers", "1")
    assert code == 0
    assert "note: class a observes numbers from 1000 to 1000" in said
    assert "set model.normalise_observations: true, or scale them" in said
    assert "the reward of each agent" not in said  # which a glance is too short to tell


def test_train_says_why_there_is_no_greedy_return(marless, job):
    """Its row in the summary was empty, without a word."""
    job.write_text(DOCUMENT.replace("game/matrix", "pettingzoo/endless_game:Endless"))
    code, _, said = marless("train", job, "--in-process", "--workers", "1", "--set", "evaluation.limit_s=1.5")
    assert code == 0
    assert "no greedy return: no episode ended within evaluation.limit_s = 1.5 s" in said


def test_a_reward_for_every_step_is_something_to_learn_where_episodes_differ_in_length(marless, job):
    code, shown, said = marless("check", job, "--set", "env={name: gymnasium/CartPole-v1}", "-o", "json")
    assert (code, said) == (0, "")
    seen = json.loads(shown)["seen"]
    assert seen["shortest"] < seen["longest"]
    assert [(each["reward_low"], each["reward_high"]) for each in seen["agents"]] == [(1.0, 1.0)]


def test_a_job_that_cannot_run_is_refused_in_one_sentence(marless, job):
    code, shown, said = marless("check", job, "--set", "env.name=game/nothing")
    assert (code, shown) == (2, "")
    assert said.startswith(f"marless: {job}: env: unknown environment 'game/nothing'; did you mean ")
