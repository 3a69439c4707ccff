"""A metrics sink that writes a CSV file into the run folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Literal

from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import SinkConfig, SinkJob, SinkKind


class MySinkConfig(SinkConfig):
    """Settings of an entry of `sinks` of a job. Read secrets from the environment: job files are stored."""

    name: Literal["my_sink"] = "my_sink"
    separator: str = ","


class MySink:
    """Writes the rounds of one job, in a thread of its own: it may block, and may raise."""

    def __init__(self, config: MySinkConfig) -> None:
        self._config = config

    def open(self, job: SinkJob) -> None:
        """Begin a curve, or go on after `job.last`: what was written of later rounds no longer counts."""
        path = job.folder / "curves.csv"
        kept: list[list[str]] = []
        if job.last and path.exists():
            with path.open(newline="") as file:
                rows = csv.reader(file, delimiter=self._config.separator)
                kept = [row for row in rows if len(row) == 3 and int(row[1]) <= job.last.env_steps]
        self._file = path.open("w", newline="")
        self._rows = csv.writer(self._file, delimiter=self._config.separator)
        self._rows.writerows(kept)

    def write(self, record: RoundRecord, scalars: Mapping[str, float]) -> None:
        """Write a round, with all of its numbers by name."""
        self._rows.writerows([name, record.env_steps, value] for name, value in scalars.items())
        self._file.flush()  # from here on it survives the death of this process

    def close(self, state: str) -> None:
        """Finish."""
        self._file.close()


SINK = SinkKind(config_type=MySinkConfig, make=MySink)
