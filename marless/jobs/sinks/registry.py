"""Registry of sinks: marless's own, and those of other packages, as entry points of the group "marless.sinks"."""

from __future__ import annotations

from importlib.util import find_spec

from marless.core.errors import SpecError
from marless.core.registry import Registry
from marless.jobs.sinks.base import Sink, SinkConfig, SinkKind

SINKS: Registry[SinkKind] = Registry(
    "sink",
    "marless.sinks",
    "SINK",
    {name: f"marless.jobs.sinks.{name}" for name in ("tensorboard", "wandb", "mlflow")},
)

sink = SINKS.find
"""Look up a sink; raises SpecError with the nearest match if the name is not registered."""


def check(*configs: SinkConfig) -> None:
    """Raise SpecError, saying what to do, if one of a job's sinks cannot work in this process."""
    for config in configs:
        kind = sink(config.name)
        if kind.package and find_spec(kind.package) is None:
            raise SpecError(
                f"sinks: {config.name} needs the package {kind.package!r} where the coordinator runs: "
                f"pip install '{kind.install}'"
            )
        kind.check(config)


def make(config: SinkConfig) -> Sink:
    """Create a sink for one job."""
    return sink(config.name).make(config)
