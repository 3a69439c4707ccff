"""The protocol of metrics sinks, and their registry. No vendor's package is imported with it or a sink's config.

A sink shows the rounds of one job as curves over env steps. It runs in a thread of its own, so it may block. Its
exceptions are logged, and a new sink is opened a little later. The caller tracks which rounds a sink has written: after
a crash the newest may be written again, and after a resume from a checkpoint, rounds that ran again.

Sinks are found by name: marless's own, and those of other packages, as entry points of the group "marless.sinks".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from marless.core.errors import SpecError
from marless.core.registry import Registry
from marless.core.validation import Strict
from marless.jobs.record import RoundRecord

Setting = bool | int | float | str


class SinkConfig(Strict):
    """Base of every sink's config; `name` selects the sink in the registry. No secrets here: specs are stored."""

    name: str


@dataclass(frozen=True, kw_only=True)
class SinkJob:
    """The job whose rounds a sink will receive."""

    id: str
    folder: Path
    """The run folder; files that a sink keeps there are named after the sink."""
    spec_yaml: str
    """The resolved spec as YAML."""
    settings: Mapping[str, Setting]
    """The resolved spec as flat keys, such as "algorithm.lr"."""
    last: RoundRecord | None
    """The newest valid round that this sink has written; the next round follows it. None: a new curve."""


class Sink(Protocol):
    """Writes one job's rounds. Called in the order open, write …, close; each method may raise any exception."""

    def open(self, job: SinkJob) -> None:
        """Begin a curve, or continue that of an earlier process; its points after `job.last` must be removed."""

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Write one round; once this returns, the round must survive a crash of this process.

        `scalars` (see `marless.jobs.sinks.scalars`) belong to env step `record.env_steps` and time `record.ended_s`.
        """

    def close(self, state: str) -> None:
        """Finish. `state` is SUCCEEDED, FAILED or CANCELLED, or RUNNING if another process continues the job."""


@dataclass(frozen=True, kw_only=True)
class SinkKind:
    """A kind of sink, as entered in the registry."""

    config_type: type[SinkConfig]
    make: Callable[[Any], Sink]  # Any: takes an instance of `config_type`
    package: str = ""
    """Top-level module that must be importable by the coordinator; "": none."""
    install: str = ""
    """The requirement to install for it, in pip's notation."""
    check: Callable[[Any], None] = lambda _: None  # Any: as above
    """Called by the coordinator before the job starts; raises SpecError if the sink cannot work there."""


SINKS: Registry[SinkKind] = Registry(
    "sink",
    "marless.sinks",
    "SINK",
    {name: f"marless.jobs.sinks.{name}" for name in ("tensorboard", "wandb", "mlflow")},
)


def check_sinks(*configs: SinkConfig) -> None:
    """Raise SpecError, saying what to do, if one of a job's sinks cannot work in this process."""
    for config in configs:
        kind = SINKS.find(config.name)
        if kind.package and find_spec(kind.package) is None:
            raise SpecError(
                f"sinks: {config.name} needs the package {kind.package!r} where the coordinator runs: "
                f"pip install '{kind.install}'"
            )
        kind.check(config)


def make_sink(config: SinkConfig) -> Sink:
    """Create a sink for one job."""
    return SINKS.find(config.name).make(config)
