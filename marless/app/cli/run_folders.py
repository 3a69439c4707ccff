"""Reads jobs from run folders, as `list`, `get` and `logs` show them where no coordinator answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from marless.app.cli.options import CoordinatorOptions
from marless.app.cli.output import say
from marless.app.cli.recorded import ENDED, unfinished_of
from marless.app.client import Client, Job, JobState, LogLine
from marless.core import regular_files
from marless.core.errors import (
    CorruptError,
    MarlessError,
    NotFoundError,
    UnavailableError,
    UnreachableError,
    denied,
)
from marless.core.limits import MAX_STATUS_BYTES
from marless.learning.data.returns import EpisodeReturns
from marless.storage.round_file import progress_of

Found = TypeVar("Found")


def asked_or_read(to: CoordinatorOptions, ask: Callable[[Client], Found], read: Callable[[Path], Found]) -> Found:
    """What the coordinator answers or, if none is named and none answers, what `read` finds in the runs directory.

    Raises UnreachableError if a named coordinator does not answer, or if there is no run either.
    """
    try:
        with to.client() as client:
            return ask(client)
    except UnreachableError:
        if to.coordinator or not names(to.runs):
            raise
    here = to.runs if to.runs.is_absolute() else f"./{to.runs}"
    say(f"no coordinator answers; these are the runs in {here}")
    return read(to.runs)


def jobs_in(runs: Path) -> list[Job]:
    """The jobs of a directory of run folders, in a coordinator's order: the newest first.

    A folder that is damaged, or that cannot be read, is reported, and left out.
    """
    found = []
    for name in names(runs):
        try:
            found.append(job_in(runs, name))
        except MarlessError as error:
            say(f"note: {error}; it is left out")
    return sorted(found, key=lambda job: (job.accepted_s, job.job), reverse=True)


def job_in(runs: Path, name: str) -> Job:
    """The job of the run folder `name`; if it has not ended and nobody runs it, its reason says how it continues.

    Raises NotFoundError if there is none, CorruptError or UnavailableError if it cannot be read.
    """
    folder = _folder(runs, name)
    try:
        known = _status(folder)
        waiting = unfinished_of(known, folder)
        if waiting and not waiting.run_by_somebody:
            # Whoever ran it may have ended it, and itself, since its state was read.
            known = _status(folder)
            waiting = waiting if known["state"] not in ENDED else None
        job = _job_of(known, folder)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(f"{folder}: job.json is damaged") from None
    if waiting is None or waiting.run_by_somebody:
        return job
    command = f"marless train --resume {name}" if waiting.attached else "marless up"
    if waiting.cancelling and not waiting.attached:
        return replace(job, state=JobState.INTERRUPTED, reason=f"its cancellation was interrupted; `{command}` ends it")
    if job.state is JobState.PENDING:
        return replace(job, reason=f"`{command}` starts it")
    return replace(job, state=JobState.INTERRUPTED, reason=f"interrupted; `{command}` continues it")


def log_of(runs: Path, name: str, tail: int) -> Iterator[LogLine]:
    """The lines of a job's log, or its last `tail`; one that is being written is left out. Raises as `job_in`."""
    path = _folder(runs, name) / "log.jsonl"
    if not regular_files.is_there(path):
        return  # nothing was logged yet
    with regular_files.opened(path) as file:
        lines = _log_lines(file, path)
        yield from deque(lines, maxlen=tail) if tail else lines


def _log_lines(file: BinaryIO, path: Path) -> Iterator[LogLine]:
    cursor = 0
    for line in regular_files.lines(file, path):
        cursor += len(line)
        if line.endswith(b"\n"):
            yield LogLine(cursor=cursor, text=line.decode(errors="replace").rstrip("\n"))


def names(runs: Path) -> list[str]:
    """The folders that have a job, those that may not be looked into included, but none that is being deleted.

    Raises UnavailableError if the directory cannot be read.
    """
    try:
        shown = [path for path in runs.iterdir() if not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnavailableError(denied(error)) from None
    return sorted(path.name for path in shown if regular_files.is_there(path / "job.json"))


def _folder(runs: Path, name: str) -> Path:
    """The run folder of a job; raises NotFoundError if there is none."""
    if name != Path(name).name or not regular_files.is_there(runs / name / "job.json"):
        raise NotFoundError(f"there is no job {name!r} in {runs.resolve()}, and no coordinator answers")
    return runs / name


def _status(folder: Path) -> Mapping[str, Any]:  # Any: JSON
    status: Mapping[str, Any] = json.loads(regular_files.text(folder / "job.json", MAX_STATUS_BYTES))
    return status


def _job_of(status: Mapping[str, Any], folder: Path) -> Job:  # Any: JSON
    """A job from the content of job.json, in which older versions have less, and from its records."""
    summary = json.loads(status.get("summary_json") or "null")
    if not isinstance(status["job"], str) or not isinstance(summary, dict | None):
        raise TypeError(status)
    return Job(
        job=folder.name,  # by which commands find it, also if it is a copy
        state=JobState(status["state"]),
        reason=str(status.get("reason", "")),
        env=str(status.get("env", "")),
        algorithm=str(status.get("algorithm", "")),
        accepted_s=float(status.get("accepted_s", 0.0)),
        ended_s=float(status.get("ended_s", 0.0)) or None,
        resumes=int(status.get("resumes", 0)),
        run_dir=str(folder.resolve()),
        summary=summary,
        **(_summarised(summary) if summary else _recorded(status, folder)),
    )


def _summarised(summary: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON
    """How far a job has come by its summary, which a coordinator believes, too; older ones have no wins."""
    return {
        "rounds": int(summary["rounds"]),
        "env_steps": int(summary["env_steps"]),
        "greedy_return": _number(summary["return"]),
        "random_return": _number(summary["random_return"]),
        "win_rate": _number(summary.get("win_rate")),
        "random_win_rate": _number(summary.get("random_win_rate")),
    }


def _number(value: Any) -> float | None:  # Any: JSON
    return None if value is None else float(value)


def _recorded(status: Mapping[str, Any], folder: Path) -> dict[str, Any]:  # Any: JSON
    """How far a job without a summary has come, by its records."""
    progress = progress_of(folder / "rounds.jsonl")
    random = EpisodeReturns(**status["random"]) if status.get("random") else None
    return {
        "rounds": progress.rounds,
        "env_steps": progress.env_steps,
        "greedy_return": progress.greedy.mean if progress.greedy else None,
        "random_return": random.mean if random else None,
        "win_rate": progress.greedy.win_rate if progress.greedy else None,
        "random_win_rate": random.win_rate if random else None,
    }
