"""Skips everything here where Ray is not installed; one cluster of one node for most tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from tests.plugins.ray.clusters.cluster import ACTOR, WORKER, eventually, processes, ray_cluster


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed; `make test-ray` installs it")


@pytest.fixture(scope="module")
def one_node(installed: None) -> Iterator[Any]:
    """A cluster of one node with three CPUs."""
    with ray_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test, neither an actor of ours nor a worker below one is left."""
    yield
    eventually(lambda: not processes(ACTOR) and not processes(WORKER), "actors and workers end")
