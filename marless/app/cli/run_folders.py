"""Reads jobs from run folders, as `list`, `get` and `logs` show them where no coordinator answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from marless.app.cli.options import CoordinatorOptions
from marless.app.cli.output import say
from marless.app.cli.recorded import unfinished_of
from marless.app.client import Client, Job, JobState, LogLine
from marless.core import regular_files
from marless.core.errors import CorruptError, MarlessError, NotFoundError, UnreachableError
from marless.core.limits import MAX_STATUS_BYTES
from marless.learning.data.returns import EpisodeReturns
from marless.storage.progress import progress_of

Found = TypeVar("Found")


def asked_or_read(to: CoordinatorOptions, ask: Callable[[Client], Found], read: Callable[[Path], Found]) -> Found:
    """What the coordinator answers or, if none is named and none answers, what `read` finds in the runs directory.

    Raises UnreachableError if a named coordinator does not answer, or if there is no run either.
    """
    try:
        with to.client() as client:
            return ask(client)
    except UnreachableError:
        if to.coordinator or not any(to.runs.glob("*/job.json")):
            raise
    here = to.runs if to.runs.is_absolute() else f"./{to.runs}"
    say(f"no coordinator answers; these are the runs in {here}")
    return read(to.runs)


def jobs_in(runs: Path) -> list[Job]:
    """The jobs of a directory of run folders, by name; a damaged folder is reported, and left out."""
    found = []
    for path in sorted(runs.glob("*/job.json")):
        try:
            found.append(job_in(runs, path.parent.name))
        except MarlessError as error:
            say(f"note: {error}; it is left out")
    return found


def job_in(runs: Path, name: str) -> Job:
    """The job of the run folder `name`; if it has not ended and nobody runs it, its reason says how it continues.

    Raises NotFoundError if there is none, CorruptError or UnavailableError if it cannot be read.
    """
    folder = runs / name
    try:
        status = regular_files.text(folder / "job.json", MAX_STATUS_BYTES)
    except NotFoundError:
        raise NotFoundError(f"there is no job {name!r} in {runs.resolve()}, and no coordinator answers") from None
    try:
        known = json.loads(status)
        job, waiting = _job_of(known, folder), unfinished_of(known, folder)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(f"{folder}: job.json is damaged") from None
    if waiting is None or waiting.run_by_somebody:
        return job
    command = f"marless train --resume {name}" if waiting.attached else "marless up"
    if job.state is JobState.PENDING:
        return replace(job, reason=f"`{command}` starts it")
    return replace(job, state=JobState.INTERRUPTED, reason=f"interrupted; `{command}` continues it")


def log_of(runs: Path, name: str, tail: int) -> Iterator[LogLine]:
    """The lines of a job's log, or its last `tail`; one that is being written is left out. Raises as `job_in`."""
    path = runs / name / "log.jsonl"
    if not regular_files.is_there(path.with_name("job.json")):
        raise NotFoundError(f"there is no job {name!r} in {runs.resolve()}, and no coordinator answers")
    with regular_files.opened(path) as file:
        whole = (line for line in regular_files.lines(file, path) if line.endswith(b"\n"))
        cursor = 0
        for line in deque(whole, maxlen=tail) if tail else whole:
            cursor += len(line)
            yield LogLine(cursor=cursor, text=line.decode(errors="replace").rstrip("\n"))


def _job_of(status: Mapping[str, Any], folder: Path) -> Job:  # Any: JSON
    """A job from the content of job.json, in which older versions have less, and from its records."""
    progress = progress_of(folder / "rounds.jsonl")
    random = EpisodeReturns(**status["random"]) if status.get("random") else None
    summary = json.loads(status.get("summary_json") or "null")
    if not isinstance(status["job"], str) or not isinstance(summary, dict | None):
        raise TypeError(status)
    return Job(
        job=status["job"],
        state=JobState(status["state"]),
        reason=str(status.get("reason", "")),
        env=str(status.get("env", "")),
        algorithm=str(status.get("algorithm", "")),
        rounds=progress.rounds,
        env_steps=progress.env_steps,
        greedy_return=progress.greedy.mean if progress.greedy else None,
        random_return=random.mean if random else None,
        accepted_s=float(status.get("accepted_s", 0.0)),
        ended_s=float(status.get("ended_s", 0.0)) or None,
        resumes=int(status.get("resumes", 0)),
        run_dir=str(folder.resolve()),
        summary=summary,
        win_rate=progress.greedy.win_rate if progress.greedy else None,
        random_win_rate=random.win_rate if random else None,
    )
