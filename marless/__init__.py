"""Serverless multi-agent reinforcement learning."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from marless.app.result import Result as Result
    from marless.app.training import train as train
    from marless.learning.policies.team import Team as Team
    from marless.storage.saved_policies import load_policy as load_policy

_HOMES = {
    "Result": "marless.app.result",
    "Team": "marless.learning.policies.team",
    "load_policy": "marless.storage.saved_policies",
    "train": "marless.app.training",
}
"""Public name → module that defines it. Imported on first use, so that importing `marless` stays cheap."""


def __getattr__(name: str) -> Any:  # Any: the type depends on the name
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("marless")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
