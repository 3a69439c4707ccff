"""The examples of one file come to the weights of the services, bit for bit, and import no other part of marless than
its environments.
"""

from __future__ import annotations

import ast
import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from safetensors.numpy import load_file

from marless.jobs import spec as specs
from marless.learning.nets import serial
from tests.integration.running import Cluster, created, running, succeeded
from tests.templates import shared_templates

FOLDER = Path(__file__).parents[2] / "examples/one_file"
NAMES = ("ippo", "qmix", "maddpg")
RUNS = (*NAMES, "qmix-full", "maddpg-full")
MOST_LINES = 350
States = Mapping[str, Mapping[str, NDArray[np.generic]]]
"""Arrays by name, of each policy, critic or mixer."""
ROUNDS, SEED = 6, 4
"""Enough rounds for a copy to QMIX's target nets, after 200 gradient steps of 50 a round."""


one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(redis_url, tmp_path_factory) -> AsyncIterator[Cluster]:
    """Services whose learners use no compiled kernels, which round otherwise."""
    with shared_templates(MARLESS_KERNELS="numpy") as templates:
        async for each in running(tmp_path_factory.mktemp("cluster"), redis_url, templates):
            yield each


async def by_services(cluster: Cluster, path: Path, name: str, *settings: str) -> States:
    """What the job of an example publishes last, with other settings, written as for `--set`."""
    own = (f"seed={SEED}", f"stop.rounds={ROUNDS}", *settings)
    folder = created(path, specs.load(FOLDER / f"{name}.yaml", own))
    await succeeded(cluster, folder)
    found = {}
    for policy, saved in folder.checkpoints.load(ROUNDS).policies.items():
        state = serial.decode(bytes(saved.blobs["acting"]), bytes(saved.blobs["learning"]))
        found[policy] = {**state.acting, **state.learning}
    return found


PROGRAM = """
import importlib, json, sys
for name, constants, options in json.loads(sys.argv[1]):
    example = importlib.import_module(name)
    vars(example).update(constants)
    sys.argv = [name, *options]
    example.main()
"""
FULL = {"CAPACITY": 4_000}
"""Constants with which a replay is full: 4,000 transitions are those of four rounds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def by_examples(tmp_path_factory) -> Mapping[str, States]:
    """What each example saves, and as "qmix-full" with the constants of `FULL`; one process imports torch for all."""
    folder = tmp_path_factory.mktemp("examples")
    options = {name: ["--rounds", f"{ROUNDS}", "--seed", f"{SEED}", "--save", f"{folder / name}"] for name in RUNS}
    calls = [(name.removesuffix("-full"), FULL if name.endswith("-full") else {}, options[name]) for name in RUNS]
    call = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    done = await asyncio.to_thread(subprocess.run, call, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{ROUNDS * 1000:,} env steps") == len(RUNS)
    return {name: saved(folder / name) for name in RUNS}


def saved(folder: Path) -> States:
    return {path.stem: load_file(path) for path in folder.iterdir()}


def differences(found: States, expected: States) -> list[str]:
    return [
        f"{policy}: {name}"
        for policy, arrays in found.items()
        for name, array in arrays.items()
        if array.dtype != np.float32 or array.tobytes() != expected[policy][name].tobytes()
    ]


def weights(states: States) -> set[str]:
    """The names of all weights and biases."""
    return {
        f"{policy}: {name}" for policy, each in states.items() for name in each if name.endswith(("weight", "bias"))
    }


@one_loop
@pytest.mark.parametrize("name", NAMES)
async def test_weights_are_those_of_the_services(cluster, by_examples, tmp_path, name):
    expected = await by_services(cluster, tmp_path / name, name)
    found = by_examples[name]
    assert weights(found) == weights(expected)
    assert differences(found, expected) == []


@one_loop
@pytest.mark.parametrize("name", ["qmix", "maddpg"])
async def test_weights_are_those_of_the_services_where_the_replay_is_full(cluster, by_examples, tmp_path, name):
    """Of four rounds: 4,000 transitions, and the last observations of 160 episodes."""
    expected = await by_services(cluster, tmp_path / f"{name}-full", name, "algorithm.replay.capacity=4300")
    assert differences(by_examples[f"{name}-full"], expected) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_one_file(name):
    source = (FOLDER / f"{name}.py").read_text()
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module for node in imported if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    outside = {"numpy", "torch", "safetensors", *sys.stdlib_module_names}
    assert {module for module in modules if module.partition(".")[0] not in outside} == {"marless.learning.envs"}
    assert source.count("\n") <= MOST_LINES
