"""What a coordinator tells of its jobs, as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from marless.errors import CorruptError, SpecError, unknown_name
from marless.record import RoundRecord, from_json
from marless.rpc.v1 import coordinator_pb2 as pb


class JobState(StrEnum):
    """Where a job is in its life."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Nothing happens any more, unless somebody resumes the job."""
        return self not in (JobState.PENDING, JobState.RUNNING)

    @classmethod
    def named(cls, name: str) -> JobState:
        """The state of this name, in capitals or not; raises SpecError, with the nearest that there is."""
        try:
            return cls(name.upper())
        except ValueError:
            raise SpecError(unknown_name("state", name.upper(), map(str, cls))) from None


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job as it is now. Times are Unix seconds of the coordinator's clock."""

    job: str
    """Its id."""
    state: JobState
    reason: str
    """Why it ended, or what it waits for."""
    env: str
    algorithm: str
    rounds: int
    """Recorded so far."""
    env_steps: int
    """Sampled for training so far: all agents act once in one copy."""
    greedy_return: float | None
    """Of the newest evaluation, per agent."""
    random_return: float | None
    """What chance scores, per agent."""
    accepted_s: float
    ended_s: float | None
    resumes: int
    """How often it was continued after an interruption or an end."""
    run_dir: str
    """Its run folder, on the coordinator's machine."""
    summary: Mapping[str, Any] | None  # Any: JSON
    """What `marless train -o json` prints, once the job has ended."""
    win_rate: float | None = None
    """Share of the newest evaluation's episodes that were won; None where the environment knows no wins."""
    random_win_rate: float | None = None
    """The same of chance."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to a job: a round was recorded, or its state changed. One of `record` and `job` is set."""

    cursor: int
    """Watching from here goes on with what comes next."""
    record: RoundRecord | None = None
    job: Job | None = None


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line of a job's log."""

    cursor: int
    """Reading from here goes on with the next line."""
    text: str
    """As it was written: one JSON object."""

    @property
    def fields(self) -> dict[str, Any]:  # Any: JSON
        """timestamp, level, event and whatever belongs to the event."""
        found = json.loads(self.text)
        return found if isinstance(found, dict) else {"event": found}


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a run folder."""

    path: str
    """Relative to the run folder, with forward slashes."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Service:
    """One service as the coordinator sees it."""

    name: str
    address: str
    serving: bool


@dataclass(frozen=True, kw_only=True)
class Info:
    """What a coordinator is."""

    version: str
    now_s: float
    """Its clock, Unix seconds."""
    runs: str
    """Directory of the run folders, on its machine."""
    services: tuple[Service, ...]


def job_of(message: pb.Job) -> Job:
    """A job as it came over the wire."""

    def known(name: str) -> float | None:
        return getattr(message, name) if message.HasField(name) else None  # type: ignore[arg-type]  # one of its fields

    return Job(
        job=message.job,
        state=JobState(pb.JobState.Name(message.state).removeprefix("JOB_STATE_")),
        reason=message.reason,
        env=message.env,
        algorithm=message.algorithm,
        rounds=message.rounds,
        env_steps=message.env_steps,
        greedy_return=known("greedy_return"),
        random_return=known("random_return"),
        win_rate=known("win_rate"),
        random_win_rate=known("random_win_rate"),
        accepted_s=message.accepted_s,
        ended_s=message.ended_s or None,
        resumes=message.resumes,
        run_dir=message.run_dir,
        summary=json.loads(message.summary_json) if message.summary_json else None,
    )


def event_of(message: pb.JobEvent) -> Event:
    """An event as it came over the wire; raises CorruptError for a round that is none."""
    if message.HasField("record_json"):
        try:
            return Event(cursor=message.cursor, record=from_json(message.record_json))
        except ValueError:
            raise CorruptError(f"the record of round {message.cursor} is damaged on the coordinator's disk") from None
    return Event(cursor=message.cursor, job=job_of(message.state))


def info_of(message: pb.GetInfoResponse) -> Info:
    """A coordinator's words about itself as they came over the wire."""
    services = (Service(name=each.name, address=each.address, serving=each.serving) for each in message.services)
    return Info(version=message.version, now_s=message.now_s, runs=message.runs, services=tuple(services))
