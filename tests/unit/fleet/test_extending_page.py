"""The launcher that `marless new` makes; tests/docs runs its page."""

import importlib

import pytest

from marless.core.errors import SpecError

KIND = "launcher"


def test_it_refuses_options(package):
    with pytest.raises(SpecError, match="launcher plain: it has no options, and zone was given"):
        importlib.import_module("plain.launcher").PlainLauncher(None, {"zone": "b"})
