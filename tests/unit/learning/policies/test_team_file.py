"""A team in one file: it is the same team, and a file that was changed or cut is refused in one sentence."""

from __future__ import annotations

import json
import os
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors

import marless
from marless.core.errors import CorruptError, SpecError
from marless.core.limits import MAX_AGENTS
from marless.learning.envs.base import Discrete
from marless.learning.policies import policy_file
from marless.learning.policies.policy_file import digest
from tests.unit.learning.policies.saved import save, state
from tests.unit.learning.policies.test_load import teams

CARD = {"job": "job-1", "curve": [[4000, -26.5], [8000, -20.25]], "settings": {"actors.count": 2}}


@pytest.fixture
def team(tmp_path) -> marless.Team:
    states = {name: state(4, Discrete(3), seed=seed) for seed, name in enumerate(("x", "y"))}
    save(tmp_path / "job-1", states, {"x": ("a", "b"), "y": ("c",)}, round_=7)
    return marless.load_policy(tmp_path / "job-1")


def test_a_team_says_what_it_is(team, tmp_path):
    team.save(tmp_path / "team", CARD)
    held = marless.load_policy(tmp_path / "team")
    assert [(each.name, each.agents, each.version) for each in held.policies.values()] == [
        ("x", ("a", "b"), 17),
        ("y", ("c",), 17),
    ]
    assert (held.origin.job, held.origin.round, held.origin.env_options) == ("job-1", 7, {"agents": 2})
    assert (held.card, team.card) == (CARD, {})
    held.save(tmp_path / "again")  # with the card that it came with
    assert (tmp_path / "again").read_bytes() == (tmp_path / "team").read_bytes()
    held.export("y", tmp_path / "y")
    team.export("y", tmp_path / "the same")
    assert (tmp_path / "y").read_bytes() == (tmp_path / "the same").read_bytes()


@settings(max_examples=40)
@given(teams(), st.one_of(st.none(), st.integers(0, 4)), st.booleans(), st.integers(0, 2**32))
def test_a_team_in_a_file_acts_as_the_team(built, batch, explore, seed):
    states, groups = built
    rng, shape = np.random.default_rng(seed), () if batch is None else (batch,)
    with tempfile.TemporaryDirectory() as place:
        save(Path(place) / "job", states, groups)
        team = marless.load_policy(Path(place) / "job")
        team.save(Path(place) / "team")
        held = marless.load_policy(Path(place) / "team")
    assert held.agents == team.agents
    size = {agent: policy.obs_size for policy in team.policies.values() for agent in policy.agents}
    seen = {agent: rng.normal(size=(*shape, size[agent])) for agent in team.agents}
    did, expected = (each.act(seen, explore=explore, seed=1) for each in (held, team))
    assert did.keys() == expected.keys()
    for agent, action in did.items():
        np.testing.assert_array_equal(action, expected[agent])


def test_a_file_that_is_damaged_anywhere_is_refused(team, tmp_path):
    path = tmp_path / "team"
    team.save(path, CARD)
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in [8, len(good) - 1, *rng.integers(len(good), size=150)]:
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :])
        with pytest.raises((CorruptError, SpecError), match=str(path)) as caught:
            marless.load_policy(path)
        assert "\n" not in str(caught.value)
    for cut in (0, 5, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(CorruptError, match=f"^{path} is not a policy, or it is damaged: "):
            marless.load_policy(path)


def forged(path: Path, **changes: object) -> Path:
    """The file with other metadata, and the digest that belongs to them: a stranger can compute it."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    metadata = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["marless"])
    arrays = safetensors.load(data)
    metadata |= {key: value if isinstance(value, str) else json.dumps(value) for key, value in changes.items()}
    del metadata["sha256"]
    metadata["sha256"] = digest(metadata, arrays)
    path.write_bytes(safetensors.save(arrays, {"marless": json.dumps(metadata)}))
    return path


X, Y = {"name": "x", "agents": ["a"], "version": 1}, {"name": "y", "agents": ["b"], "version": 1}
FORGERIES = {
    "no policy": {"policies": []},
    "no list": {"policies": {"x": X}},
    "too many policies": {
        "policies": [X, Y | {"agents": []}] + [X | {"name": f"{i}", "agents": []} for i in range(MAX_AGENTS - 1)]
    },
    "fewer than there are weights": {"policies": [X]},
    "one name twice": {"policies": [X, Y | {"name": "x"}]},
    "an agent twice": {"policies": [X, Y | {"agents": ["a"]}]},
    "agents that are none": {"policies": [X, Y | {"agents": "b"}]},
    "a version of text": {"policies": [X, Y | {"version": "1"}]},
    "the words of a terminal": {"policies": [X, Y | {"name": "\x1b[2J"}]},
    "a name without a place": {"kind": "mlp"},
    "a place that is none": {"2/kind": "mlp"},
    "a deep card": {"card": "[" * 100_000},
    "a card that is none": {"card": [1]},
    "a card without end": {"card": {"curve": [[1, 2.0]] * 30_000}},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_header_that_cannot_be_is_refused(team, tmp_path, forgery):
    path = tmp_path / "team"
    team.save(path)
    forged(path, policies=[X, Y])
    assert marless.load_policy(path).agents == ("a", "b")
    forged(path, **FORGERIES[forgery])
    with pytest.raises(CorruptError, match=r"its header lacks something of marless export$"):
        marless.load_policy(path)


def test_what_could_not_be_read_again_is_not_written(team, tmp_path, monkeypatch):
    with pytest.raises(SpecError, match="the card: more than 20,000 values"):
        team.save(tmp_path / "team", {"curve": [[1, 2.0]] * 30_000})
    monkeypatch.setattr(policy_file, "MAX_PUBLISH_BYTES", 1000)
    with pytest.raises(SpecError, match=r"bytes, and one is read up to 1,000; export policies one by one"):
        team.save(tmp_path / "team")
    size = saved_size(team, tmp_path, monkeypatch)
    monkeypatch.setattr(policy_file, "MAX_PUBLISH_BYTES", size - 1)  # the header counts, too
    with pytest.raises(SpecError, match=f"would have {size:,} bytes"):
        team.save(tmp_path / "team")
    assert not (tmp_path / "team").exists()


def saved_size(team, folder, monkeypatch) -> int:
    with monkeypatch.context() as unlimited:
        unlimited.setattr(policy_file, "MAX_PUBLISH_BYTES", 2**30)
        team.save(folder / "large")
    return (folder / "large").stat().st_size


@pytest.mark.parametrize("path", [".", "/", "..", "folder", "pipe"])
def test_what_is_no_file_is_not_replaced_by_one(team, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("pipe")
    with pytest.raises(SpecError, match="is no file, but a directory or a device"):
        team.save(path)
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "job-1", "pipe"}
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize(("path", "why"), [("none/team", "No such file"), ("file/team", "Not a directory")])
def test_a_file_that_cannot_be_written_is_named(team, tmp_path, monkeypatch, path, why):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(OSError, match=why) as caught:
        team.save(path)
    assert caught.value.filename == path


def test_many_may_write_one_file_at_once(team, tmp_path):
    path = tmp_path / "team"
    team.save(path)
    with ThreadPoolExecutor(4) as threads:
        writes = [threads.submit(team.save, path) for _ in range(200)]
        while not all(each.done() for each in writes):
            assert marless.load_policy(path).agents == team.agents
    for each in writes:
        each.result()
    assert {each.name for each in tmp_path.iterdir()} == {"job-1", "team"}
