"""Sinks by name: ours, and those that other packages offer as entry points of the group "marless.sinks"."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec

from marless.errors import SpecError, unknown_name
from marless.sinks.base import Sink, SinkConfig, SinkKind

_MODULES = {name: f"marless.sinks.{name}" for name in ("tensorboard", "wandb", "mlflow")}
"""Name → module with a `SINK`."""


def sink(name: str) -> SinkKind:
    """Look a sink up; raises SpecError with the nearest match for a name that is not registered."""
    if name in _MODULES:
        ours: SinkKind = import_module(_MODULES[name]).SINK
        return ours
    others = entry_points(group="marless.sinks")
    if name in others.names:
        theirs: SinkKind = others[name].load()
        return theirs
    raise SpecError(unknown_name("sink", name, _MODULES.keys() | others.names))


def check(config: SinkConfig) -> None:
    """Refuse a sink that cannot work in this process; raises SpecError, saying what to do."""
    kind = sink(config.name)
    if kind.package and find_spec(kind.package) is None:
        raise SpecError(
            f"sinks: {config.name} needs the package {kind.package!r} where the coordinator runs: "
            f"pip install '{kind.install}'"
        )
    kind.check(config)


def make(config: SinkConfig) -> Sink:
    """A sink for one job."""
    return sink(config.name).make(config)
