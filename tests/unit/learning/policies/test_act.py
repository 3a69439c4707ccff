"""A loaded team acts as its weights say, and says what is wrong with what it is asked."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

import marless
from marless.core.errors import SpecError
from marless.learning.envs.base import Box, Discrete
from tests.unit.learning.policies.saved import outputs, save, state

BOX = Box((-2.0, 0.0), (2.0, 1.0))
STATES = {"walk": state(3, Discrete(4), seed=1), "reach": state(5, BOX, seed=4, activation="relu")}
GROUPS = {"walk": ("a", "b"), "reach": ("arm",)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "job"
    save(folder, STATES, GROUPS)
    return folder


@pytest.fixture(scope="module")
def team(run):
    return marless.load_policy(run)


def observations(batch: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {agent: rng.normal(size=(*batch, size)).astype(np.float32) for agent, size in (("a", 3), ("arm", 5))}


def scaled(means: np.ndarray) -> np.ndarray:
    low, high = np.array(BOX.low), np.array(BOX.high)
    return np.clip(low + (means + 1) / 2 * (high - low), low, high)


def test_single_observations(team):
    seen = observations(())
    did = team.act(seen)
    assert did.keys() == {"a", "arm"}
    assert type(did["a"]) is int
    assert did["a"] == outputs(STATES["walk"], seen["a"]).argmax()
    assert (did["arm"].dtype, did["arm"].shape) == (np.float32, (2,))
    np.testing.assert_allclose(did["arm"], scaled(outputs(STATES["reach"], seen["arm"])), rtol=1e-5)


def test_batches_equal_their_rows_and_are_the_callers_own(team):
    seen = observations((50,))
    did = team.act(seen)
    kept = {agent: action.copy() for agent, action in did.items()}
    assert (did["a"].dtype, did["a"].shape, did["arm"].shape) == (np.int32, (50,), (50, 2))
    assert len(set(did["a"])) > 1
    for row in range(50):
        alone = team.act({agent: rows[row] for agent, rows in seen.items()})
        assert alone["a"] == did["a"][row]
        np.testing.assert_allclose(alone["arm"], did["arm"][row], rtol=1e-5, atol=1e-6)
    for agent, action in kept.items():
        np.testing.assert_array_equal(did[agent], action)


def test_a_mask_forbids_and_where_it_allows_nothing_the_action_is_0(team):
    seen = {"a": observations((30,))["a"]}
    free = team.act(seen)["a"]
    mask = np.ones((30, 4), np.int8)  # as PettingZoo gives them
    mask[np.arange(30), free] = 0
    given = mask.copy()
    legal = team.act(seen, masks={"a": mask, "b": np.ones(4)})["a"]  # b has left
    second = [np.argsort(outputs(STATES["walk"], obs))[-2] for obs in seen["a"]]
    assert legal.tolist() == second
    np.testing.assert_array_equal(mask, given)
    for explore in (False, True):
        nothing = team.act(seen, masks={"a": np.zeros((30, 4))}, explore=explore)["a"]
        assert nothing.tolist() == [0] * 30


def test_exploring_follows_the_policys_probabilities_and_the_seed(team):
    seen = {"a": np.tile(observations(())["a"], (20_000, 1))}
    first = team.act(seen, explore=True, seed=7)["a"]
    second = team.act(seen, explore=True)["a"]
    assert (first != second).any()
    np.testing.assert_array_equal(team.act(seen, explore=True, seed=7)["a"], first)
    logits = outputs(STATES["walk"], seen["a"][0])
    expected = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(first, minlength=4) / 20_000, expected, atol=0.015)
    wide = team.act({"arm": np.zeros((5000, 5))}, explore=True, seed=1)["arm"]
    means, deviations = outputs(STATES["reach"], np.zeros(5)), np.exp(STATES["reach"].acting["policy.free"])
    drawn = scaled(means + deviations * np.random.default_rng(2).normal(size=(5000, 2)))
    np.testing.assert_allclose(wide.mean(axis=0), drawn.mean(axis=0), atol=0.05)


def test_teams_draw_apart_unless_seeded(run):
    seen = {"a": np.zeros((100, 3))}
    ones = [marless.load_policy(run).act(seen, explore=True)["a"] for _ in range(2)]
    assert (ones[0] != ones[1]).any()


SENTENCES = {
    "unknown agent 'agent_a'; known: a, arm, b": ({"agent_a": np.zeros(3)}, {}),
    "unknown agent 'armm'; did you mean 'arm'? known: a, arm, b": ({"a": np.zeros(3)}, {"armm": np.ones(4)}),
    "a observes [3] or [batch, 3] numbers, got shape [2]": ({"a": np.zeros(2)}, {}),
    "a observes [3] or [batch, 3] numbers, got shape []": ({"a": 1.0}, {}),
    "a observes [3] or [batch, 3] numbers, got shape [1, 1, 3]": ({"a": np.zeros((1, 1, 3))}, {}),
    "the observation of a is not an array of numbers: {'observation': 1}": ({"a": {"observation": 1}}, {}),
    "the mask of a must be of shape [4], got [3]": ({"a": np.zeros(3)}, {"a": np.ones(3)}),
    "the mask of a must be of shape [2, 4], got [4]": ({"a": np.zeros((2, 3))}, {"a": np.ones(4)}),
    "arm acts continuously: leave its mask out": ({"arm": np.zeros(5)}, {"arm": np.ones(2)}),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_what_does_not_fit_is_one_sentence(team, sentence):
    seen, masks = SENTENCES[sentence]
    with pytest.raises(SpecError) as caught:
        team.act(seen, masks=masks)
    assert str(caught.value) == sentence


def test_acting_needs_no_torch_and_importing_marless_loads_nothing(run):
    program = (
        "import sys, marless; print(*sys.modules, sep=',')\n"
        f"marless.load_policy({str(run)!r}).act({{'a': [0.0, 0.0, 0.0]}}); print(*sys.modules, sep=',')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    light, acting = (set(line.split(",")) for line in done.stdout.splitlines())
    assert not light & {"numpy", "yaml", "marless.learning.policies"}
    assert not acting & {"torch", "pydantic", "grpc", "asyncio"}


@pytest.mark.alone
def test_one_observation_and_loading_take_as_long_as_promised(tmp_path):
    save(tmp_path / "job", {"p": state(18, Discrete(5), seed=1, hidden=(64, 64))}, {"p": ("a",)})
    seen, times = {"a": np.zeros(18, np.float32)}, {"load": [], "act": []}
    for _ in range(20):
        started = time.perf_counter()
        team = marless.load_policy(tmp_path / "job")
        times["load"].append(time.perf_counter() - started)
    for _ in range(20):
        started = time.perf_counter()
        for _ in range(50):
            team.act(seen)
        times["act"].append((time.perf_counter() - started) / 50)
    assert min(times["load"]) < 20e-3
    assert min(times["act"]) < 50e-6
