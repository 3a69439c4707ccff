"""What tests of several parts share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import programs


@pytest.fixture
def package(request, tmp_path, monkeypatch) -> Iterator[Path]:
    """The package of the test module's `PAGE`, installed while a test runs."""
    programs.install(request.module.PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_package"]:
        del sys.modules[name]
