"""What a sink is to the rest of marless. Importing this module, or any sink's config, imports no vendor's package.

A sink shows the rounds of one job as curves over env steps. It is called from a thread of its own, so it may block;
what it raises is logged, and a new one is opened a little later. Whoever calls it keeps account of the rounds that it
has taken: after a crash it may be given the newest of them again, and after a resume from a checkpoint some anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marless.algos.base import Strict
from marless.record import RoundRecord

Setting = bool | int | float | str


class SinkConfig(Strict):
    """Base of every sink's config; `name` selects the sink in the registry. No secret belongs here: specs are kept."""

    name: str


@dataclass(frozen=True, kw_only=True)
class SinkJob:
    """The job whose rounds a sink is about to get."""

    id: str
    folder: Path
    """Its run folder; what a sink keeps there is named after the sink."""
    spec_yaml: str
    """The resolved spec."""
    settings: Mapping[str, Setting]
    """The resolved spec, flat: "algorithm.lr" and the like."""
    last: RoundRecord | None
    """The newest round that this sink has taken and that still counts: the next one follows it. None: a new curve."""


class Sink(Protocol):
    """One job's rounds on their way to somewhere; open, write …, close, in this order, and each may raise anything."""

    def open(self, job: SinkJob) -> None:
        """Begin, or continue the curve that an earlier process began: what it has of rounds after `job.last` goes."""

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Take one round; when this returns, the round survives the death of this process.

        `scalars` (see `marless.sinks.scalars`) belong at `record.env_steps` and `record.ended_s`.
        """

    def close(self, state: str) -> None:
        """Finish: the job is SUCCEEDED, FAILED or CANCELLED, or still RUNNING, and another process goes on with it."""


def _nothing(_: Any) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class SinkKind:
    """A sink as the registry knows it."""

    config_type: type[SinkConfig]
    make: Callable[[Any], Sink]  # Any: takes an instance of `config_type`
    package: str = ""
    """Top-level module that must be importable where the coordinator runs, if any."""
    install: str = ""
    """What to install to have that, as pip takes it."""
    check: Callable[[Any], None] = _nothing  # Any: as above
    """Asked where the coordinator runs, before the job starts; raises SpecError if the sink cannot work there."""
