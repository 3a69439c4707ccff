"""A job's run folder, which is its durable state: what has been acknowledged is in here, fsynced.

spec.yaml            the resolved spec, every default written out
job.json             state, reason, random baseline; replaced atomically
rounds.jsonl         one RoundRecord a line, appended before the next round starts
checkpoints/round-N/ every policy's newest version, as safetensors, with a manifest
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from marless.errors import AlreadyExistsError, UnavailableError
from marless.record import Returns, RoundRecord, read
from marless.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The content of job.json."""

    job: str
    state: str
    """PENDING, RUNNING, SUCCEEDED, FAILED or CANCELLED."""
    reason: str
    accepted_s: float
    """Unix seconds."""
    random: Returns | None = None
    """What chance scores, once measured."""
    summary_json: str = ""
    """Once the job has ended."""


@dataclass(frozen=True)
class Checkpoint:
    """What is saved of one policy."""

    version: int
    blobs: Mapping[str, bytes | memoryview]


class RunFolder:
    """Reads and writes one run folder. Raises UnavailableError, naming the path, when the disk does not let it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, spec: JobSpec) -> None:
        """Make the folder; raises AlreadyExistsError if a job has run in it."""
        with self._disk():
            if (self.path / "job.json").exists():
                raise AlreadyExistsError(f"{self.path} holds a job already; choose another job id")
            self.path.mkdir(parents=True, exist_ok=True)
            _replace(self.path / "spec.yaml", spec.to_yaml())

    def write_status(self, status: JobStatus) -> None:
        """Replace job.json."""
        with self._disk():
            _replace(self.path / "job.json", json.dumps(asdict(status), indent=1))

    def append(self, record: RoundRecord) -> None:
        """Append a round; it is on the disk when this returns, and nothing of it is if this fails."""
        with self._disk(), (self.path / "rounds.jsonl").open("ab", buffering=0) as file:
            line, before = record.to_json().encode() + b"\n", file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(file.fileno())
            except OSError:
                file.truncate(before)
                raise

    def records(self, first: int = 0) -> Iterator[RoundRecord]:
        """The recorded rounds from number `first` on; see `marless.record.read`."""
        return read(self.path / "rounds.jsonl", first)

    def save_checkpoint(self, round_: int, policies: Mapping[str, Checkpoint], keep: int) -> Path:
        """Write a checkpoint whole or not at all, and drop all but the `keep` newest."""
        target = self.path / "checkpoints" / f"round-{round_:06d}"
        partial = target.with_suffix(".partial")
        with self._disk():
            for unfinished in target.parent.glob("*.partial"):
                shutil.rmtree(unfinished)
            partial.mkdir(parents=True)
            for policy, saved in policies.items():
                for part, blob in saved.blobs.items():
                    _write(partial / f"{policy}.{part}.safetensors", blob)
            manifest = {
                policy: {"version": saved.version, "parts": sorted(saved.blobs)} for policy, saved in policies.items()
            }
            _write(partial / "manifest.json", json.dumps({"round": round_, "policies": manifest}, indent=1).encode())
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync_directory(target.parent)
            rounds = (path for path in target.parent.glob("round-*") if path.suffix != ".partial")
            for old in sorted(rounds, key=lambda path: int(path.name.removeprefix("round-")))[:-keep]:
                shutil.rmtree(old)
        return target

    def _disk(self) -> _DiskErrors:
        return _DiskErrors(self.path)


class _DiskErrors:
    """Turns an OSError of the block into a sentence that names the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise UnavailableError(f"run folder {self._path}: {error.strerror}; make room or choose another") from None


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    _write(partial, text.encode())
    partial.replace(path)
    _sync_directory(path.parent)


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
