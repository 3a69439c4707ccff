"""Sinks by name: ours, and those that other packages offer as entry points of the group "marless.sinks"."""

from __future__ import annotations

from importlib.util import find_spec

from marless.errors import SpecError
from marless.registry import Registry
from marless.sinks.base import Sink, SinkConfig, SinkKind

SINKS: Registry[SinkKind] = Registry(
    "sink",
    "marless.sinks",
    "SINK",
    {name: f"marless.sinks.{name}" for name in ("tensorboard", "wandb", "mlflow")},
)

sink = SINKS.find
"""Look a sink up; raises SpecError with the nearest match for a name that is not registered."""


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
