"""A policy, a checkpoint or a run folder of a stranger: it acts, or it is refused in a sentence, and nothing else."""

from __future__ import annotations

import json
import os
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors import numpy as safetensors

from marless import load_policy
from marless.core.documents import yaml_of
from marless.core.errors import CorruptError, MarlessError, SpecError
from marless.jobs.spec import load_resolved
from marless.learning.envs.base import Box, Discrete
from marless.learning.policies.policy_file import digest
from tests.unit.app.cli.conftest import marless
from tests.unit.learning.policies.saved import save, state

__all__ = ["marless"]  # a fixture

OBS = 6
QUICK_S = 5.0
SMALL_BYTES = 64 * 2**20


def written(path: Path, arrays: dict[str, np.ndarray], metadata: object) -> Path:
    """A policy file with these contents, whose digest is right: a stranger can compute it."""
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        metadata = metadata | {"sha256": digest(metadata, arrays)}
    path.write_bytes(safetensors.save(arrays, {"marless": json.dumps(metadata)}))
    return path


def honest(action: Discrete | Box | None = None) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    held = state(OBS, action or Discrete(5), seed=0)
    about = {"policy": "p", "agents": '["a"]', "version": "1", "job": "j", "round": "1", "algorithm": "ippo"}
    return dict(held.acting), dict(held.metadata) | about | {"env": "mpe/simple_spread", "env_options": "{}"}


def used(path: Path) -> str:
    """What came of loading it and acting with it: "acts" or the kind of the refusal. Small, quick, no other error."""
    tracemalloc.start()
    start_s = time.monotonic()
    try:
        team = load_policy(path)
        team.act({agent: [0.0] * OBS for agent in team.agents})
        return "acts"
    except MarlessError as error:
        assert len(str(error)) < 2000
        return type(error).__name__
    finally:
        assert tracemalloc.get_traced_memory()[1] < SMALL_BYTES
        tracemalloc.stop()
        assert time.monotonic() - start_s < QUICK_S


def test_what_was_exported_acts(tmp_path):
    for action in (Discrete(5), Box(low=(-1.0,), high=(1.0,))):
        assert used(written(tmp_path / "p", *honest(action))) == "acts"


NAMES = [f"agent_{i}" for i in range(200_000)]
BOMBS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "a million agents": lambda _, about: about.update(agents=json.dumps(NAMES)),
    "ids of a million agents": lambda _, about: about.update(inputs="obs+id", ids=json.dumps(NAMES)),
    "actions without number": lambda _, about: about.update(action=f"discrete:{10**12}"),
    "digits without end": lambda _, about: about.update(action=f"discrete:{'9' * 100_000}"),
    "more digits": lambda _, about: about.update(version="9" * 100_000),
    "no action": lambda _, about: about.update(action="discrete:0"),
    "a deep box": lambda _, about: about.update(action=f"box:{'[' * 100_000}"),
    "a box of text": lambda _, about: about.update(action='box:["ab","cd"]'),
    "a box of NaN": lambda _, about: about.update(action="box:[[NaN],[NaN]]"),
    "deep options": lambda _, about: about.update(env_options="[" * 100_000),
    "a terminal's words": lambda _, about: about.update(env="\x1b]0;evil\x07"),
    "an agent's, too": lambda _, about: about.update(agents='["\\u001b[2J"]'),
    "options that are none": lambda _, about: about.update(env_options="[1]"),
    "agents that are none": lambda _, about: about.update(agents='{"a": 1}'),
    "agents of numbers": lambda _, about: about.update(agents="[1, null]"),
    "no env": lambda _, about: about.pop("env"),
    "a round of text": lambda _, about: about.update(round="first"),
    "NaN": lambda arrays, _: arrays["policy.0.weight"].fill(np.nan),
    "inf": lambda arrays, _: arrays["policy.1.bias"].fill(np.inf),
    "a wide nothing": lambda arrays, _: arrays.update(
        {"policy.0.weight": np.zeros((0, 2**40), np.float32), "policy.0.bias": np.zeros(0, np.float32)}
    ),
    "a wide observation of nobody": lambda arrays, _: arrays.update(
        {"policy.0.weight": np.zeros((2**40, 0), np.float32)}
    ),
    "another dtype": lambda arrays, _: arrays.update({"policy.0.weight": np.zeros((8, OBS), np.int64)}),
    "no dimension": lambda arrays, _: arrays.update({"policy.0.weight": np.zeros((), np.float32)}),
    "many layers": lambda arrays, _: arrays.update(
        {f"policy.{i}.weight": np.zeros((1, 1), np.float32) for i in range(5000)}
    ),
    "no weights": lambda arrays, _: arrays.clear(),
    "a strange way to act": lambda _, about: about.update(acts="eval"),
    "a strange net": lambda _, about: about.update(kind="os"),
    "strange inputs": lambda _, about: about.update(inputs="obs+last_action+id", ids='[["a"]]'),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_header_or_an_array_that_cannot_be_is_refused(tmp_path, bomb):
    arrays, about = honest()
    BOMBS[bomb](arrays, about)
    found = used(written(tmp_path / "p", arrays, about))
    assert found in ("CorruptError", "SpecError") or bomb == "agents that are none"


@pytest.mark.parametrize("metadata", [[], 3, None, "x", {"a": 1}, {"a": {"b": "c"}}, {"sha256": []}])
def test_metadata_of_another_kind_are_refused(tmp_path, metadata):
    assert used(written(tmp_path / "p", honest()[0], metadata)) == "CorruptError"


@pytest.mark.parametrize("size", [pytest.param(400, id="400"), pytest.param(10_000, marks=pytest.mark.slow, id="10k")])
def test_whatever_is_changed_in_a_file_it_acts_or_is_refused(tmp_path, size):
    rng, original = random.Random(7), written(tmp_path / "p", *honest()).read_bytes()
    for _ in range(size):
        data = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 40)]
                case 2:
                    data[at:at] = rng.randbytes(rng.randint(1, 20))
                case _:
                    data[: 8 + rng.randrange(8)] = rng.randbytes(8)
        (tmp_path / "p").write_bytes(data)
        try:
            load_policy(tmp_path / "p").act({"a": [0.0] * OBS})
        except MarlessError:
            continue


ODD = (None, True, -1, 2**70, 1.5, "x", "../../x", [], {}, [[]], {"a": None}, float("nan"), "\x00")


@pytest.mark.parametrize("size", [pytest.param(300, id="300"), pytest.param(10_000, marks=pytest.mark.slow, id="10k")])
def test_whatever_is_changed_in_a_manifest_or_a_spec_it_acts_or_is_refused(tmp_path, size):
    rng = random.Random(7)
    checkpoint = save(tmp_path / "run", {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("a",)})
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    spec = yaml.safe_load((tmp_path / "run" / "spec.yaml").read_text("utf-8"))
    for _ in range(size):
        for path, document, write in (
            (checkpoint / "manifest.json", manifest, json.dumps),
            (tmp_path / "run" / "spec.yaml", spec, yaml.safe_dump),
        ):
            path.write_text(write(changed(document, rng)), "utf-8")
        try:
            load_policy(tmp_path / "run").act({"a": [0.0] * OBS})
        except MarlessError:
            continue


def changed(document: Any, rng: random.Random) -> Any:
    """A copy with one value changed, somewhere."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.2:
        return rng.choice(ODD)
    copy = document.copy()
    key = rng.choice(list(copy) if isinstance(copy, dict) else range(len(copy)))
    if isinstance(copy, dict) and rng.random() < 0.2:
        copy[rng.choice(["x", "../x", ""])] = copy.pop(key)
    else:
        copy[key] = changed(copy[key], rng)
    return copy


def test_what_is_no_file_is_not_waited_for(tmp_path):
    checkpoint = save(tmp_path / "run", {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("a",)})
    for name in ("p.acting.safetensors", "manifest.json"):
        (checkpoint / name).unlink()
        os.mkfifo(checkpoint / name)
        with pytest.raises(CorruptError, match="is a pipe, not a file"):
            load_policy(tmp_path / "run")


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
DOCUMENTS = (
    LAUGHS + "env: {name: pettingzoo/mpe2.simple_spread_v3, options: {N: *a11}}\nalgorithm: {name: ippo}\n",
    "[" * 100_000,
    "a: &a [*a]\n",
    "seed: 0x" + "f" * 9000,
    "a: 2026-13-45\n",
    "x" * (5 * 2**20),
    "- 1\n" * 300_000,
)


@pytest.mark.parametrize("number", range(len(DOCUMENTS)))
def test_a_small_document_does_not_become_a_huge_one(tmp_path, number):
    run = save(tmp_path / "run", {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("a",)}).parents[1]
    (run / "spec.yaml").write_text(DOCUMENTS[number], "utf-8")
    for read in (load_policy, lambda folder: load_resolved(folder / "spec.yaml")):
        start_s = time.monotonic()
        with pytest.raises((CorruptError, SpecError)) as caught:
            read(run)
        assert len(str(caught.value)) < 2000
        assert time.monotonic() - start_s < QUICK_S


def test_tags_of_python_are_not_built(tmp_path):
    marker = tmp_path / "ran"
    for tag in ("python/object/apply:os.system", "python/object/new:os.system", "python/name:os.system"):
        with pytest.raises(SpecError):
            yaml_of(f"!!{tag} ['touch {marker}']", "spec")
    assert not marker.exists()


def test_no_word_of_a_file_steers_the_terminal(tmp_path, marless):
    run = save(tmp_path / "run", {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("a",)}).parents[1]
    for env in ("\x1b]0;evil\x07", "pettingzoo/\x1b[2Jevil", "\x9b2J"):
        spec = {"algorithm": {"name": "ippo"}, "env": {"name": env, "options": {}}, "stop": {"rounds": 1}}
        (run / "spec.yaml").write_text(yaml.safe_dump(spec), "utf-8")
        (run / "job.json").write_text('{"job": "run", "state": "SUCCEEDED"}', "utf-8")
        for verb in (
            ("evaluate", run),
            ("explain", run),
            ("cost", run),
            ("simulate", run),
            ("train", run / "spec.yaml"),
        ):
            _, out, said = marless(*verb)
            assert not any(word in out + said for word in ("\x1b]", "\x1b[2J", "\x07", "\x9b"))


def test_a_status_of_another_kind_is_a_sentence(tmp_path, marless):
    run = save(tmp_path / "run", {"p": state(OBS, Discrete(5), seed=0)}, {"p": ("a",)}).parents[1]
    spec = {"algorithm": {"name": "ippo"}, "env": {"name": "mpe/simple_spread"}, "stop": {"rounds": 1}}
    (run / "spec.yaml").write_text(yaml.safe_dump(spec), "utf-8")
    (run / "rounds.jsonl").write_text("", "utf-8")
    for status in ("[]", "3", '"x"', '{"job": 1, "state": "x"}', '{"job": "x", "state": {}}', "[" * 99_999):
        (run / "job.json").write_text(status, "utf-8")
        code, out, said = marless("cost", run)
        assert (code != 0, out, said.count("\n")) == (True, "", 1)
        assert "job.json or spec.yaml is damaged" in said
