"""`start.checkpoint`: where the first versions of a job's policies come from, if not from chance."""

from __future__ import annotations

import re
from pathlib import Path

from marless.checkpoint import Checkpoint, DiskCheckpoints, read
from marless.errors import CorruptError, NotFoundError, SpecError
from marless.job import Job


def find(reference: str, runs: Path) -> Path:
    """The directory of the checkpoint that `reference` names: a job in `runs`, a run folder, or a checkpoint.

    Of a job or run folder it is the newest. Raises SpecError if there is none, or it is damaged.
    """
    folder = Path(reference)
    if re.fullmatch(r"[a-z0-9-]+", reference) and (runs / reference).is_dir():
        folder = runs / reference
    if not folder.is_dir():
        raise SpecError(
            f"start.checkpoint: {reference!r} is neither a job in {runs} nor a directory on the coordinator's machine"
        )
    if not (folder / "manifest.json").exists():
        rounds = DiskCheckpoints(folder / "checkpoints").rounds()
        if not rounds:
            raise SpecError(
                f"start.checkpoint: {folder} holds no checkpoint; give one, or the folder of a job with one"
            )
        folder = folder / "checkpoints" / f"round-{rounds[-1]:06d}"
    _read(folder)
    return folder


def load(directory: Path, job: Job) -> Checkpoint:
    """Read the checkpoint that a job starts from; raises SpecError if it is not one of this job's policies."""
    checkpoint = _read(directory)
    groups = job.sharing.decide(()).groups
    if missing := [group.policy for group in groups if group.policy not in checkpoint.policies]:
        raise SpecError(
            f"start.checkpoint holds no policy {', '.join(missing)}; it has {', '.join(sorted(checkpoint.policies))}: "
            "give this job the groups (sharing.groups) of the job that wrote it"
        )
    return checkpoint


def _read(directory: Path) -> Checkpoint:
    try:
        return read(directory)
    except (CorruptError, NotFoundError) as error:
        raise SpecError(f"start.checkpoint: {error}") from None
