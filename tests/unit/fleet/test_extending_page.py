"""The page that teaches how to add a launcher does what it says; its last snippet runs the contract test."""

import pytest

from marless.core.errors import SpecError
from tests.docs import programs


def test_its_launcher_passes_the_contract_and_refuses_options():
    page = programs.run("docs/extending/launcher.md")
    with pytest.raises(SpecError, match="it has no options, and zone was given"):
        page["PlainLauncher"](None, {"zone": "b"})
