"""Builds the images once, and skips everything here where no engine answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.containers.deployment import Deployment, no_engine, up


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The images of deploy/Dockerfile, built from this source."""
    if why := no_engine():
        pytest.skip(why)
    Deployment(tmp_path_factory.mktemp("images")).build()


@pytest.fixture(scope="module")
def deployment(images: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One that the tests of a module share."""
    running = Deployment(tmp_path_factory.mktemp("deployment"))
    running.make_credentials()
    with up(running):
        yield running
