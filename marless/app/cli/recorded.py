"""Reads what is known of jobs: their records, from a run folder or a coordinator; and which have not ended."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marless.app.cli.options import CoordinatorOptions, job_ids
from marless.app.cli.output import say
from marless.core import regular_files
from marless.core.errors import CorruptError, MarlessError, NotFoundError, UnavailableError
from marless.core.limits import MAX_MACHINES_BYTES, MAX_SPEC_BYTES, MAX_STATUS_BYTES
from marless.storage.places import is_address

if TYPE_CHECKING:
    from marless.core.machine import Kept
    from marless.jobs.record import RoundRecord
    from marless.jobs.spec import JobSpec
    from marless.learning.data.returns import EpisodeReturns

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
RecordedArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB_OR_FOLDER", help="Job id, run folder, or s3://bucket/prefix/job.", autocompletion=job_ids
    ),
]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A job with its recorded rounds."""

    job: str
    spec: JobSpec
    records: tuple[RoundRecord, ...]
    """All rounds from the first on; empty if they were not read."""
    random: EpisodeReturns | None
    """Returns of the random baseline; None if it has not been evaluated yet."""
    state: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or CANCELLED."""
    kept: Kept | None = None
    """Its machines at its end and after it; None while it runs."""
    marless_version: str = ""
    """The version of marless that ran it last; "" if not recorded."""


def find(source: str, at: CoordinatorOptions) -> Recorded:
    """Find a job: in the run folder `source`, in a folder of this name in `at.runs`, else at the coordinator.

    If a coordinator was given (`--coordinator`), it is asked instead of `at.runs`. A source s3://... is read from its
    bucket. Raises NotFoundError for an unknown job, CorruptError for invalid files, UnavailableError if the coordinator
    does not answer, and what `marless.storage.bucket.objects` lists.
    """
    if is_address(source):
        from marless.storage.bucket import reading

        with reading.local_copy(source, reading.records) as copy:
            return from_folder(copy)
    if at.coordinator and not regular_files.is_there(Path(source) / "rounds.jsonl"):
        return _asked(source, at)
    _say_which(source, at)
    for folder in (Path(source), at.runs / source):
        if regular_files.is_there(folder / "job.json"):
            return from_folder(folder)
    try:
        return _asked(source, at)
    except UnavailableError:
        raise NotFoundError(
            f"{source}: there is no such run folder here, no such job in {at.runs.resolve()}, and no coordinator "
            "answers; start one with `marless up`, or give its address with --coordinator"
        ) from None


def _say_which(source: str, at: CoordinatorOptions) -> None:
    """Print which job was taken if a name is ambiguous, and how to select the other."""
    if not regular_files.is_there(Path(source) / "job.json"):
        return  # a folder that is no run folder shadows nothing
    from marless.storage import places

    if note := places.ambiguity_note(source, at.runs):
        say(note)
    elif at.coordinator and Path(source).name == source:
        say(
            f"note: {source} is read from ./{source}, not from a job of the coordinator; run this in another directory "
            f"to ask the coordinator, or write `./{source}` to leave no doubt"
        )


def from_folder(folder: Path, *, records: bool = True) -> Recorded:
    """Read the job of a run folder, with or without its `records`.

    Raises CorruptError or UnavailableError if it cannot be read.
    """
    from marless.core.machine import MACHINES
    from marless.storage.round_file import read

    known = tuple(read(folder / "rounds.jsonl")) if records else ()
    try:
        spec = regular_files.text(folder / "spec.yaml", MAX_SPEC_BYTES)
        status = regular_files.text(folder / "job.json", MAX_STATUS_BYTES)
    except NotFoundError as error:
        raise UnavailableError(f"{error}; the run folder is incomplete") from None
    kept = _kept(lambda: regular_files.text(folder / MACHINES, MAX_MACHINES_BYTES))
    return _recorded(str(folder), spec, status, known, kept)


def _asked(job: str, at: CoordinatorOptions) -> Recorded:
    from marless.core.machine import MACHINES
    from marless.jobs.record import from_json
    from marless.storage.round_file import check_order

    def read(name: str) -> str:
        return regular_files.decoded(client.read(job, name), f"{name} of job {job}")

    with at.client() as client:
        spec, status = read("spec.yaml"), read("job.json")
        kept = _kept(lambda: read(MACHINES))
        try:
            lines = client.read(job, "rounds.jsonl").split(b"\n")[:-1]  # what follows the last newline is incomplete
        except NotFoundError:
            lines = []  # it has no round yet
    records, where = [], f"rounds.jsonl of job {job}"
    for number, line in enumerate(lines):
        try:
            record = from_json(line.decode())
        except ValueError:
            raise CorruptError(f"{where}, line {number + 1}: this is not a round record") from None
        check_order(record, number, where)
        records.append(record)
    return _recorded(f"job {job}", spec, status, tuple(records), kept)


def _kept(text: Callable[[], str]) -> Kept | None:
    """What machines did at a job's end and after it; None if it is not known.

    A file that cannot be read is said, and left out: everything else that a job has cost is in its records.
    """
    from marless.core.machine import kept_from_json

    try:
        return kept_from_json(text())
    except NotFoundError:
        return None
    except (CorruptError, UnavailableError) as error:
        say(f"note: {error}; what machines cost after the job's end is left out")
        return None


def _recorded(source: str, spec: str, status: str, records: tuple[RoundRecord, ...], kept: Kept | None) -> Recorded:
    from marless.core import documents
    from marless.jobs import spec as specs
    from marless.learning.data.returns import EpisodeReturns

    try:
        known = json.loads(status)
        if not (isinstance(known["job"], str) and isinstance(known["state"], str)):
            raise TypeError(known)
        random = EpisodeReturns(**known["random"]) if known.get("random") else None
        return Recorded(
            job=known["job"],
            spec=specs.parse(documents.yaml_of(spec, f"{source}: spec.yaml"), f"{source}: spec.yaml"),
            records=records,
            random=random,
            state=known["state"],
            # A job that was resumed still has the file of its end before.
            kept=kept if known["state"] in ENDED else None,
            marless_version=str(known.get("marless_version", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CorruptError(f"{source}: job.json or spec.yaml is damaged") from None


_UNFINISHED = ("PENDING", "RUNNING")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A job that has not ended."""

    job: str
    attached: bool
    """True if it was started by `marless train`; then only `marless train --resume` resumes it."""
    cancelling: bool
    """True if its user has cancelled it, and the services were stopped before it had ended."""
    run_by_somebody: bool
    """True if a coordinator is running it now."""


def unfinished(runs: Path) -> tuple[Unfinished, ...]:
    """The unfinished jobs in a directory of run folders."""
    found = []
    for path in sorted(runs.glob("*/job.json")):
        try:
            status = json.loads(regular_files.read(path, MAX_STATUS_BYTES))
            found.append(unfinished_of(status, path.parent))
        except (MarlessError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not a readable job, so nothing to resume
    return tuple(each for each in found if each)


def unfinished_of(status: Mapping[str, Any], folder: Path) -> Unfinished | None:  # Any: JSON
    """The job of a run folder with this content of job.json; None if it has ended."""
    if status["state"] not in _UNFINISHED:
        return None
    return Unfinished(
        job=folder.name,
        attached=bool(status.get("attached")),
        cancelling=bool(status.get("cancelling")),
        run_by_somebody=_is_locked(folder / "owner.lock"),
    )


def _is_locked(path: Path) -> bool:
    try:
        with regular_files.opened(path) as file:
            # Shared, so that two commands that look at once do not take each other for a coordinator.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (NotFoundError, CorruptError):
        return False
    except BlockingIOError:
        return True
    return False
