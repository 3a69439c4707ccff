"""The protocol of metrics sinks. Importing this module, or any sink's config, does not import a vendor's package.

A sink shows the rounds of one job as curves over env steps. It runs in a thread of its own, so it may block. Its
exceptions are logged, and a new sink is opened a little later. The caller tracks which rounds a sink has written: after
a crash the newest may be written again, and after a resume from a checkpoint, rounds that ran again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marless.core.settings import Strict
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


def _nothing(_: Any) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class SinkKind:
    """A kind of sink, as entered in the registry."""

    config_type: type[SinkConfig]
    make: Callable[[Any], Sink]  # Any: takes an instance of `config_type`
    package: str = ""
    """Top-level module that must be importable by the coordinator; "": none."""
    install: str = ""
    """The requirement to install for it, in pip's notation."""
    check: Callable[[Any], None] = _nothing  # Any: as above
    """Called by the coordinator before the job starts; raises SpecError if the sink cannot work there."""
