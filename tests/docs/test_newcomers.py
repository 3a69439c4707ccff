"""Every command of the pages for those who have nothing yet does what it says: each page in an empty directory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from marless.core import private_files
from tests.docs import newcomer, typed
from tests.docs.workplace import Workplace, treatment


@pytest.fixture(scope="module")
def readers_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment in which pages install what they make."""
    return newcomer.environment(tmp_path_factory.mktemp("newcomer"))


@pytest.mark.timeout(300)  # it starts many programs
@pytest.mark.parametrize("page", typed.parameters(alone=True))
def test_its_commands_run(request, page, monkeypatch):
    own = {}
    if treatment(page).installs:
        # The other pages show that a home may be empty: each then compiles kernels and looks for fonts, for seconds.
        own = {"binaries": request.getfixturevalue("readers_programs"), "caches": private_files.caches()}
    with tempfile.TemporaryDirectory() as place:  # not in a directory of pytest, whose long path would part lines
        empty = Workplace.empty(Path(place), small=True, **own)
        monkeypatch.setenv("HOME", empty.variables["HOME"])
        monkeypatch.syspath_prepend(empty.path)
        typed.check_commands(empty, page, monkeypatch)
        monkeypatch.undo()  # leaves the directory
