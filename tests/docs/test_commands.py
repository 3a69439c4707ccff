"""Every command of the documents does what it says: on one stack, beside the examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs import typed
from tests.docs.workplace import Workplace


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    place = Workplace(tmp_path_factory.mktemp("docs"), small=True)
    place.furnish()
    yield place
    place.close()


@pytest.mark.timeout(300)  # it starts many programs
@pytest.mark.parametrize("page", typed.parameters(alone=False))
def test_its_commands_run(workplace, page, monkeypatch):
    typed.check_commands(workplace, page, monkeypatch)
