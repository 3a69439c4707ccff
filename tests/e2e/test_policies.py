"""A policy that was trained is the policy that is loaded: what evaluation reported, it scores again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from mpe2 import simple_spread_v3

import marless
from marless.jobs import spec as specs
from marless.jobs.record import RoundRecord
from marless.learning.data.episodes import total
from marless.learning.data.player import actor_seed, batch_seed
from marless.learning.data.returns import batches, returns_of
from marless.learning.data.rollout import play
from marless.learning.envs import registry
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, FloatArray
from marless.rpc.v1 import actor_pool_pb2
from marless.storage.round_file import read
from tests import misbehaving_env

ROOT = Path(__file__).parents[2]
AGENTS, STEPS, ROUNDS, EPISODES = 3, 25, 12, 90
JOB = {
    "name": "spread",
    "seed": 3,
    "env": {"name": "mpe/simple_spread", "options": {"agents": AGENTS}},
    "algorithm": {"name": "ippo", "epochs": 2, "minibatches": 2},
    "model": {"hidden": [16]},
    "actors": {"count": 2, "envs": 20, "steps": STEPS},
    "evaluation": {"every": 5, "episodes": EPISODES, "random_episodes": 20},
    "checkpoint": {"every": 5},
    "stop": {"rounds": ROUNDS},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The run folder of a job that was trained by `marless train`, called spread as in the README."""
    place = tmp_path_factory.mktemp("trained")
    (place / "job.yaml").write_text(yaml.safe_dump(JOB))
    command = [sys.executable, "-c", "from marless.app.cli import command; command()", "train", "job.yaml"]
    subprocess.run(
        [*command, "--job", "spread", "--in-process"], cwd=place, check=True, capture_output=True, timeout=90
    )
    return place / "runs" / "spread"


@pytest.fixture(scope="module")
def records(run) -> list[RoundRecord]:
    return list(read(run / "rounds.jsonl"))


class Played:
    """A team behind the protocol of rollouts, acting through nothing but `Team.begin` and `Team.act`."""

    def __init__(self, team: marless.Team, agents: AgentClass) -> None:
        self._team = team
        self._agents = agents.agents

    def begin(self, batch: int) -> None:
        self._team.begin()

    def reset_memory(self, anew_NB: BoolArray) -> None:
        for agent, anew_B in zip(self._agents, anew_NB, strict=True):
            self._team.begin(anew_B, agents=[agent])

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray | None) -> ActionArray:
        did = self._team.act(dict(zip(self._agents, obs_NBO, strict=True)))
        return np.stack([did[agent] for agent in self._agents])

    def to_env(self, action: ActionArray) -> ActionArray:
        return action


@pytest.mark.parametrize("round_", [10, ROUNDS])  # the last one is evaluated and saved out of turn
def test_acting_on_the_evaluations_seeds_scores_exactly_what_was_reported(run, records, round_):
    team, spec = marless.load_policy(run, round=round_), specs.load(run / "spec.yaml")
    stats, share = [], EPISODES // spec.actors.count
    for index in range(spec.actors.count):
        seed, played = actor_seed(spec.seed, actor_pool_pb2.ROLLOUT_MODE_GREEDY, round_, index), []
        for number, episodes in enumerate(batches(share, spec.actors.envs, one_by_one=False)):
            env = registry.make(spec.env.name, spec.env.options, episodes)
            policies = [Played(team, env.spaces.classes[0])]
            played.append(play(env, policies, episodes=episodes, seed=batch_seed(seed, number)))
        stats.append(total(played))
    evaluated = {each.rounds: each.returns for record in records for each in record.evaluations}
    assert returns_of(stats) == evaluated[round_]


def mpe2_returns(team: marless.Team, seeds: Sequence[int]) -> np.ndarray:
    """Return per agent of one episode a seed, in mpe2 itself."""
    env = simple_spread_v3.parallel_env(N=AGENTS, max_cycles=STEPS)
    return np.array([sum(_mpe2_rewards(env, team, seed)) / AGENTS for seed in seeds])


def _mpe2_rewards(env, team: marless.Team, seed: int) -> list[float]:
    earned: list[float] = []
    observations, _ = env.reset(seed=seed)
    while env.agents:
        observations, rewards, *_ = env.step(team.act(observations))
        earned.append(sum(rewards.values()))
    return earned


def test_in_mpe2_it_scores_what_was_reported(run, records):
    team, reported = marless.load_policy(run), records[-1].evaluation
    scores = mpe2_returns(team, range(1000, 1100))
    error = np.hypot(scores.std() / np.sqrt(len(scores)), reported.standard_error)
    assert abs(scores.mean() - reported.mean) < 2 * error
    assert reported.standard_error < 2.0


def test_an_episode_in_mpe2_is_the_same_episode_in_ours(run):
    team = marless.load_policy(run)
    for seed, score in zip(range(5), mpe2_returns(team, range(5)), strict=True):
        env = registry.make("mpe/simple_spread", JOB["env"]["options"], 1)
        frame, policies, total = env.reset(seed), team.acting(env.spaces), 0.0
        for _ in range(STEPS):
            transition = env.step((policies[0].greedy(frame.obs[0], None),))
            frame, total = transition.frame, total + transition.rewards[0].mean()
        assert score == pytest.approx(total, rel=1e-4)


def test_marless_evaluate_shows_what_was_reported_beside_what_it_finds(run, records):
    out = _marless(run, "evaluate", "spread", "--episodes", "300", "-o", "json")
    found = json.loads(out)
    reported = records[-1].evaluation
    assert (found["round"], found["reported_return"]) == (ROUNDS, reported.mean)
    assert found["reported_return_per_agent"] == reported.per_agent
    error = np.hypot(found["standard_error"], reported.standard_error)
    assert abs(found["return"] - reported.mean) < 3 * error


def test_the_example_plays_the_team(run):
    example = ROOT / "examples" / "play_pettingzoo.py"
    assert len(example.read_text().splitlines()) <= 25
    done = subprocess.run(
        [sys.executable, str(example), str(run), "7"], capture_output=True, text=True, check=True, timeout=60
    )
    printed = [line.split() for line in done.stdout.splitlines()]
    assert [agent for agent, _ in printed] == ["agent_0", "agent_1", "agent_2"]
    mean = np.mean([float(score) for _, score in printed])
    assert mean == pytest.approx(mpe2_returns(marless.load_policy(run), [7])[0], abs=0.01)


def _marless(run: Path, *arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", "from marless.app.cli import command; command()", *arguments]
    settings: Mapping[str, str] = os.environ | environment
    done = subprocess.run(command, cwd=run.parent.parent, capture_output=True, text=True, check=True, env=settings)
    return done.stdout


@pytest.mark.parametrize(
    ("way", "how"),
    [
        ("segmentation_fault", "was ended by SIGSEGV"),
        ("exit_0", "ended itself with exit code 0"),
        ("sigterm", "was ended by SIGTERM"),
    ],
)
def test_an_environment_that_ends_its_process_is_said_by_evaluate(misled, way, how):
    """Before, the command ended without a word, with exit code 139 or even 0."""
    options = ("--env-option", "call=step", "--env-option", f"way={way}")
    done = misled("evaluate", "misled", "--episodes", "3", *options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"marless: the process that plays the environment {how}; ")


def test_an_environment_that_goes_on_is_evaluated_as_ever(misled):
    done = misled("evaluate", "misled", "--episodes", "3", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["return"] >= 0.0


def test_ctrl_c_ends_an_evaluation_without_a_traceback(run):
    command = (sys.executable, "-c", "from marless.app.cli import command; command()", "evaluate", str(run))
    playing = subprocess.Popen((*command, "--episodes", "10000000"), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    assert b"playing" in playing.stderr.read(len("marless: playing"))
    playing.send_signal(signal.SIGINT)  # to the command alone; the process that plays is another one
    out, said = playing.communicate(timeout=20)
    assert (playing.returncode, out) == (130, b"")
    assert b"Traceback" not in said
    assert b"ended" not in said  # by the environment


@pytest.fixture(scope="module")
def misled(tmp_path_factory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs commands beside a job, `misled`, that was trained in an environment which misbehaves if it is told to."""
    place = tmp_path_factory.mktemp("misled")
    env = {"name": misbehaving_env.NAME, "options": {"call": "none"}}
    (place / "job.yaml").write_text(yaml.safe_dump(JOB | {"env": env, "stop": {"rounds": 1}}))
    allowed = os.environ | {"MARLESS_ENV_MODULES": "tests.misbehaving_env", "PYTHONPATH": str(ROOT)}

    def marless(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-c", "from marless.app.cli import command; command()", *arguments)
        return subprocess.run(command, cwd=place, env=allowed, capture_output=True, text=True, timeout=90, check=False)

    done = marless("train", "job.yaml", "--job", "misled", "--in-process")
    assert done.returncode == 0, done.stderr
    return marless
