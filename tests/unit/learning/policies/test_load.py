"""What `load_policy` finds, what it refuses; and that an exported policy is the same policy."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marless
from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.group import Group, LaneRecord
from marless.learning.algos import registry as algorithms
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext
from marless.learning.envs import registry
from marless.learning.envs.base import Box, Discrete
from marless.learning.nets import serial
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from marless.storage.checkpoint import PARTS, Checkpoint, CheckpointProgress, DiskCheckpoints, SavedLane, SavedPolicy
from tests.unit.learning.policies.saved import save, state

PAIR = {"x": ("x",), "y": ("y",)}


def pair(seed: int = 0) -> dict:
    return {name: state(4, Discrete(3), seed=seed + i) for i, name in enumerate(PAIR)}


@pytest.fixture
def run(tmp_path) -> Path:
    for round_ in (10, 20):
        save(tmp_path / "runs" / "job-1", pair(round_), PAIR, round_=round_)
    return tmp_path / "runs" / "job-1"


def weights(team: marless.Team) -> float:
    return float(team.policies["x"].state.acting["policy.0.bias"][0])


# What can be loaded


def test_a_run_folder_a_job_id_and_a_checkpoint(run, monkeypatch):
    newest = marless.load_policy(run)
    assert newest.agents == ("x", "y")
    assert newest.policies["x"].version == 30
    origin = newest.origin
    assert (origin.job, origin.round, origin.algorithm, origin.env) == ("job-1", 20, "ippo", "mpe/simple_spread")
    assert weights(newest) == pair(20)["x"].acting["policy.0.bias"][0]
    monkeypatch.setenv("MARLESS_RUNS", str(run.parent))
    assert weights(marless.load_policy("job-1")) == weights(newest)
    monkeypatch.delenv("MARLESS_RUNS")
    monkeypatch.chdir(run.parent.parent)
    assert weights(marless.load_policy("job-1")) == weights(newest)
    assert weights(marless.load_policy("job-1", runs=run.parent)) == weights(newest)
    monkeypatch.chdir(run)
    assert marless.load_policy(".").origin.job == "job-1"
    older = marless.load_policy(run, round=10)
    direct = marless.load_policy(run / "checkpoints" / "round-000010")
    assert weights(older) == weights(direct) != weights(newest)
    assert older.origin == direct.origin


def test_a_checkpoint_that_was_taken_elsewhere(run, tmp_path):
    moved = shutil.copytree(run / "checkpoints" / "round-000020", tmp_path / "elsewhere" / "mine")
    team = marless.load_policy(str(moved))
    assert (team.origin.job, team.origin.env, team.origin.round) == ("", "", 20)
    assert weights(team) == weights(marless.load_policy(run))


def test_joint_critics_and_the_learners_part_are_left_alone(tmp_path):
    critic = state(4, Discrete(3), seed=5)
    checkpoint = save(tmp_path / "job", pair() | {"critic.x": critic}, PAIR)
    for part in checkpoint.glob("*.learning.safetensors"):
        part.unlink()
    assert set(marless.load_policy(tmp_path / "job").policies) == {"x", "y"}


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_what_a_learner_publishes(tmp_path, algorithm):
    spaces = registry.spaces("mpe/simple_adversary", {"continuous_actions": algorithm == "mappo"})
    found, groups, expected = algorithms.algorithm(algorithm), {}, []
    policies: dict[str, SavedPolicy] = {}
    config = found.config_type(name=algorithm)
    for scope in scopes(found, config, spaces):
        [agents] = scope.agent_classes(spaces)
        learner = found.learner(config, LearnerContext(ModelSpec(), spaces, scope, "cpu"))
        chosen = [Group(f"{agents.name}-{i}", (agent,)) for i, agent in enumerate(agents.agents)]
        for name in learner.names(chosen):
            blobs = dict(zip(PARTS, serial.encode(learner.initial(name, 1)), strict=True))
            policies[name] = SavedPolicy(version=1, blobs=blobs)
        groups |= {group.policy: group.agents for group in chosen}
        states = [learner.initial(group.policy, 1) for group in chosen]
        expected.append(ActingPolicies.from_states(agents, states))
    progress = CheckpointProgress(round=1, env_steps=1, seed=1, actors=1, groups=groups)
    DiskCheckpoints(tmp_path).save(Checkpoint(progress=progress, policies=policies), 1)
    team = marless.load_policy(tmp_path / "round-000001")
    for agents, acting in zip(spaces.classes, expected, strict=True):
        obs_NBO = np.random.default_rng(0).normal(size=(len(agents.agents), 30, agents.obs_size)).astype(np.float32)
        did = team.act(dict(zip(agents.agents, obs_NBO, strict=True)))
        np.testing.assert_array_equal(np.stack(list(did.values())), acting.to_env(acting.greedy(obs_NBO, None)))


# What cannot


def refusal(error: type[Exception] | tuple[type[Exception], ...], *arguments, **options) -> str:
    with pytest.raises(error) as caught:
        marless.load_policy(*arguments, **options)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_nothing_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for wanted in ("nope", "empty", "no/such/file.safetensors"):
        assert refusal(NotFoundError, wanted) == (
            f"{wanted}: there is no such policy file, checkpoint or run folder here, and no such job in {tmp_path}/runs"
        )


def test_no_checkpoint_yet_or_not_of_this_round(run):
    assert refusal(NotFoundError, run, round=15) == "job job-1 has no checkpoint after 15 rounds; there is 10, 20"
    shutil.rmtree(run / "checkpoints")
    assert refusal(NotFoundError, run) == (
        "job job-1 has no checkpoint yet; one is written every checkpoint.every rounds and at the end"
    )
    assert refusal(NotFoundError, run, round=3).endswith("there is none yet")


def test_no_checkpoint_that_was_evaluated(run):
    assert refusal(NotFoundError, run, round="best") == (
        "job job-1 has no checkpoint that was evaluated, of which one could be the best; there is 10, 20. With "
        "checkpoint.best, a job keeps the best one of those that evaluation.every asks for"
    )
    assert refusal(SpecError, run, round="bset") == f"round 'bset' of {run}: give a number of rounds, or 'best'"
    assert "a single checkpoint" in refusal(SpecError, run / "checkpoints" / "round-000010", round="best")


def test_a_round_of_what_is_one_checkpoint(run, tmp_path):
    marless.load_policy(run).export("x", tmp_path / "x.safetensors")
    for one in (run / "checkpoints" / "round-000010", tmp_path / "x.safetensors"):
        assert "that is a single checkpoint" in refusal(SpecError, one, round=10)


def test_damage_is_named(run):
    checkpoint = run / "checkpoints" / "round-000020"
    part = checkpoint / "x.acting.safetensors"
    good = part.read_bytes()
    part.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert refusal(CorruptError, run).startswith(f"{part} was changed after it was written")
    part.unlink()
    assert refusal(NotFoundError, run) == f"{part}: there is no such file"
    part.write_bytes(good)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for damaged in ("{", "[]", json.dumps(manifest | {"policies": {}}), json.dumps(manifest | {"groups": {}})):
        (checkpoint / "manifest.json").write_text(damaged)
        assert refusal(CorruptError, run)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (run / "spec.yaml").write_text("env: [")
    assert refusal(CorruptError, run) == f"{run}/spec.yaml: it is missing, or not a job's resolved spec"


def test_only_the_job_itself_reads_the_carries_of_a_checkpoint(run):
    checkpoints = DiskCheckpoints(run / "checkpoints")
    carry = SavedLane(LaneRecord(lane=3, version=7, digest=hashlib.sha256(b"carry").hexdigest()), b"carry")
    checkpoints.save(replace(checkpoints.load(20), lanes=(carry,)), 2)
    assert (checkpoints.load(20).lanes, checkpoints.load(20, lanes=True).lanes) == ((), (carry,))
    assert checkpoints.load(10, lanes=True).lanes == ()
    file = checkpoints.path(20) / "lane-3.carry"
    file.write_bytes(b"other")
    with pytest.raises(CorruptError, match=r"lane-3.carry was changed after it was written"):
        checkpoints.load(20, lanes=True)
    file.unlink()
    with pytest.raises(NotFoundError, match=r"lane-3.carry: there is no such file"):
        checkpoints.load(20, lanes=True)
    assert marless.load_policy(run).policies.keys() == PAIR.keys()
    manifest = checkpoints.path(20) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"lane": 3', '"lane": "../x"'))
    assert refusal(CorruptError, run)


@pytest.mark.parametrize("lost", ["policy.0.weight", "policy.1.bias"])
def test_weights_that_do_not_make_a_net(tmp_path, lost):
    broken = pair()
    del broken["x"].acting[lost]
    save(tmp_path / "job", broken, PAIR)
    assert "x" in refusal(CorruptError, tmp_path / "job")


@pytest.mark.parametrize("said", ["", "box:[1]", "box:3", "box:[[1.0],[0.0]]", "discrete:", "discrete:-1", "walk:3"])
def test_an_action_space_that_is_none(tmp_path, said):
    broken = pair()
    broken["x"].metadata["action"] = said
    save(tmp_path / "job", broken, PAIR)
    assert refusal(CorruptError, tmp_path / "job") == f"policy x: {said!r} is no action space"


def test_an_export_that_is_damaged_anywhere(run, tmp_path):
    path = tmp_path / "x.safetensors"
    marless.load_policy(run).export("x", path)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in [8, len(good) - 1, *rng.integers(len(good), size=150)]:
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :])
        assert str(path) in refusal((CorruptError, SpecError), path)
    for cut in (0, 5, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        assert refusal(CorruptError, path).startswith(f"{path} is not a policy, or it is damaged: ")


def test_a_file_that_is_no_export(run, tmp_path):
    part = run / "checkpoints" / "round-000020" / "x.acting.safetensors"
    assert refusal(SpecError, part).startswith(f"{part} holds no exported policy")
    assert refusal(CorruptError, run / "spec.yaml").startswith(f"{run}/spec.yaml is not a policy")


# Export


def test_an_export_says_what_it_is(run, tmp_path):
    team = marless.load_policy(run)
    team.export("y", tmp_path / "y.safetensors")
    one = marless.load_policy(tmp_path / "y.safetensors")
    assert one.agents == ("y",)
    assert one.policies["y"].version == 30
    assert (one.origin.job, one.origin.env_options, one.origin.round) == ("job-1", {"agents": 2}, 20)
    one.export("y", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.safetensors", "runs", "y.safetensors"]


def test_an_export_that_cannot_be(run, tmp_path):
    team = marless.load_policy(run)
    with pytest.raises(SpecError, match="unknown policy 'z'; known: x, y"):
        team.export("z", tmp_path / "z")
    with pytest.raises(OSError, match="No such file"):
        team.export("x", tmp_path / "none" / "x")
    (tmp_path / "taken").mkdir()
    with pytest.raises(SpecError, match="taken is no file, but a directory"):
        team.export("x", tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "taken"]


@st.composite
def teams(draw) -> tuple[dict, dict]:
    """Up to three agent classes, each with policies of its own for all, for each, or for some of its agents."""
    states, groups = {}, {}
    for k in range(draw(st.integers(1, 3))):
        agents = [f"class{k}_{i}" for i in range(draw(st.integers(1, 3)))]
        edge = st.floats(-10, 0, width=32), st.floats(1, 10, width=32)
        boxes = st.lists(st.tuples(*edge), min_size=1, max_size=3).map(lambda b: Box(*zip(*b, strict=True)))
        action = draw(st.integers(2, 5).map(Discrete) | boxes)
        obs_size = draw(st.integers(1, 6))
        hidden = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
        activation = draw(st.sampled_from(("tanh", "relu")))
        for agent, owner in zip(agents, draw(st.lists(st.integers(0, 2), min_size=3, max_size=3)), strict=False):
            name = f"p{k}.{owner}"
            groups[name] = (*groups.get(name, ()), agent)
            states[name] = state(obs_size, action, seed=owner, hidden=hidden, activation=activation)
    return states, groups


@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_observations_that_are_not_finite_are_refused(tmp_path, odd):
    save(tmp_path / "job", {"p": state(2, Discrete(3), seed=0)}, {"p": ("a",)})
    team = marless.load_policy(tmp_path / "job")
    with pytest.raises(SpecError, match="the observation of a holds NaN or infinite numbers: "):
        team.act({"a": np.array([0.0, odd])})


@settings(max_examples=40)
@given(teams(), st.one_of(st.none(), st.integers(0, 4)), st.booleans(), st.integers(0, 2**32))
def test_what_was_exported_acts_as_what_was_loaded(built, batch, explore, seed):
    states, groups = built
    rng, shape = np.random.default_rng(seed), () if batch is None else (batch,)
    with tempfile.TemporaryDirectory() as place:
        save(Path(place) / "job", states, groups)
        team = marless.load_policy(Path(place) / "job")
        assert set(team.agents) == {agent for agents in groups.values() for agent in agents}
        for name, agents in groups.items():
            file = Path(place) / f"{name}.safetensors"
            team.export(name, file)
            alone = marless.load_policy(file)
            assert (alone.agents, alone.policies[name].action) == (agents, team.policies[name].action)
            policy = team.policies[name]
            seen = {agent: rng.normal(size=(*shape, policy.obs_size)) for agent in agents}
            masks = {}
            if isinstance(policy.action, Discrete):
                masks = {agent: rng.random((*shape, policy.action.n)) < 0.6 for agent in agents[:1]}
            did, expected = (each.act(seen, masks=masks, explore=explore, seed=1) for each in (alone, team))
            assert did.keys() == expected.keys()
            for agent, action in did.items():
                np.testing.assert_array_equal(action, expected[agent])
                mask = masks.get(agent)
                if mask is not None and mask.any(axis=-1).all():
                    assert np.take_along_axis(mask, np.asarray(action)[..., None], -1).all()
