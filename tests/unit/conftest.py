"""What tests of several parts share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import newcomer


@pytest.fixture
def package(request, tmp_path, monkeypatch) -> Iterator[Path]:
    """The package that `marless new` makes of the test module's `KIND`, installed while a test runs."""
    name = newcomer.install(request.module.KIND, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]
