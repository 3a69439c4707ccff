"""The comparison with Stable-Baselines3: one evaluation for both sides, and what "no worse" means."""

import numpy as np
import pytest

from bench import one_agent
from bench.one_agent import RunsKept, Trained, ours, row, verdict
from bench.one_agent_task import EPISODES, returns
from bench.systems import named


def runs(*means, rate=100.0):
    return [Trained((mean - 1, mean + 1), 1000, 1000 / rate) for mean in means]


def test_no_worse_means_that_the_whole_interval_is_above_the_margin():
    # differences of 10, 10 and 10: an interval without width
    assert verdict(runs(110, 120, 130), runs(100, 110, 120)) == "yes: +10 (+10 – +10)"
    # mean −10, Student's interval ± 4.303 · 10 / √3 = 24.8: below −15 % of 100
    assert verdict(runs(80, 90, 100), runs(100, 100, 100)).startswith("not shown: -10 (-35 – +15)")
    assert verdict(runs(86, 86, 86), runs(100, 100, 100)).startswith("yes: -14")
    assert verdict(runs(84, 84, 84), runs(100, 100, 100)).startswith("not shown: -16")
    assert verdict(runs(5), runs(1)) == verdict(runs(5, 5), runs(1, 1)) == "too few seeds"


def test_a_row_has_returns_rates_and_ratios_of_the_same_seed():
    mine, peer = (dict(enumerate(runs(10, 20, 30, rate=rate))) for rate in (300.0, 100.0))
    found = row("hopper", "peer", peer, mine)
    assert (found["task"], found["system"]) == ("hopper", "peer")
    assert found["greedy return"].startswith("20 (")
    assert found["marless is faster"]["median"] == pytest.approx(3.0)
    assert row("hopper", "marless", mine, mine)["marless is faster"] == ""
    fewer = row("hopper", "peer", {2: Trained((5.0,), 1000, 20.0)}, mine)
    assert (fewer["seeds"], fewer["marless is faster"]["median"]) == (1, 6.0)


def test_episodes_are_played_from_equal_seeds():
    first, second, other = (returns("hopper", lambda seen: np.zeros(3), seed) for seed in (1, 1, 2))
    assert len(first) == EPISODES
    assert first == second != other
    assert all(5 < each < 1000 for each in first)  # it stands, and falls


def test_runs_are_kept_and_those_of_others_are_taken_over(tmp_path, monkeypatch):
    trained = []

    def train(algorithm, task, env_steps, seed):
        trained.append((task, seed))
        return Trained((float(seed), 2.0), env_steps, 3.0)

    monkeypatch.setattr(one_agent, "TRAIN", {"marless": train, "zoo": train})
    file = tmp_path / "runs.jsonl"
    mine, other = RunsKept(file, {}), RunsKept(file, {"cores": 2})
    first = mine.trained("marless", "ppo", "hopper", 1000, 0)
    assert other.trained("marless", "ppo", "hopper", 1000, 0) == first == Trained((0.0, 2.0), 1000, 3.0)
    other.trained("zoo", "ppo", "hopper", 1000, 0)
    other.trained("marless", "ppo", "hopper", 1000, 1)
    mine.trained("marless", "ppo", "hopper", 1000, 1)
    assert trained == [("hopper", 0), ("hopper", 0), ("hopper", 1)]
    monkeypatch.setattr(one_agent, "TUNED", {"hopper": {"algorithm.gamma": 0.9}})
    mine.trained("marless", "ppo", "hopper", 1000, 1)  # with other settings it is another run
    assert len(trained) == 4
    RunsKept(None, {}).trained("marless", "ppo", "hopper", 1000, 1)
    assert len(trained) == 5
    assert mine.trained("marless", "ppo", "hopper", 1000, 7, train=False) is None


@pytest.mark.parametrize("algorithm, env_steps", [("ppo", 2048), ("td3", 512)])
def test_marless_trains_and_is_played(algorithm, env_steps):
    found = ours(algorithm, "inverted_double_pendulum", env_steps, seed=3)
    assert (len(found.returns), found.env_steps) == (EPISODES, env_steps)
    assert 0 < found.rate < 1e6
    assert found.mean > 20


def test_peers_for_one_agent_are_no_peers_of_teams():
    with pytest.raises(Exception, match="unknown: sb3"):
        named("sb3")
