"""Checkpoints: everything a job needs to go on, as safetensors files with a manifest.

    checkpoints/round-000050/manifest.json
    checkpoints/round-000050/<policy>.acting.safetensors, <policy>.learning.safetensors

"acting" holds the weights and normalisers that play, "learning" the rest of a policy's state: optimizer moments and
critics. Random streams have no position of their own: every one follows from the job's seed and the round.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from marless.errors import CorruptError, NotFoundError

PARTS = ("acting", "learning")


@dataclass(frozen=True, kw_only=True)
class SavedPolicy:
    """One policy or joint critic at one version."""

    version: int
    blobs: Mapping[str, bytes | memoryview]
    """Safetensors bytes by part."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a job stood: its counters and groups."""

    round: int
    """Rounds done: the next one has this number."""
    env_steps: int
    """Sampled for training so far."""
    seed: int
    """Of the job; with `round` it fixes every random stream from here on."""
    actors: int
    """Of the newest round; the next one's follow from the records."""
    algorithm: str = ""
    """Its name; "" in checkpoints of before it was kept."""
    groups: Mapping[str, tuple[str, ...]]
    """Policy to agents: who plays what, as the newest round trained and evaluated them."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A job after a round."""

    progress: Progress
    policies: Mapping[str, SavedPolicy]


class CheckpointStore(Protocol):
    """Where the checkpoints of one job are kept."""

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write it whole or not at all, and drop all but the `keep` newest; raises OSError."""

    def rounds(self) -> tuple[int, ...]:
        """Rounds of which there is a checkpoint, ascending."""

    def load(self, round_: int, parts: Collection[str] = PARTS) -> Checkpoint:
        """Read these parts of one; raises NotFoundError, or CorruptError if a file is not what was written."""


class DiskCheckpoints:
    """Checkpoints as directories under one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, checkpoint: Checkpoint, keep: int) -> None:
        """Write it whole or not at all, and drop all but the `keep` newest; raises OSError."""
        target = self.path(checkpoint.progress.round)
        partial = target.with_suffix(f".{secrets.token_hex(4)}.partial")  # never that of another who saves
        for unfinished in self.directory.glob("*.partial"):
            shutil.rmtree(unfinished)
        partial.mkdir(parents=True)
        policies = {name: _write_policy(partial, name, saved) for name, saved in checkpoint.policies.items()}
        manifest = dataclasses.asdict(checkpoint.progress) | {"policies": policies}
        _write(partial / "manifest.json", json.dumps(manifest, indent=1).encode())
        fsync(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        fsync(self.directory)
        for old in self.rounds()[:-keep]:
            shutil.rmtree(self.path(old))

    def rounds(self) -> tuple[int, ...]:
        """Rounds of which there is a checkpoint, ascending."""
        names = (path.name for path in self.directory.glob("round-*") if not path.suffix)
        return tuple(sorted(int(name.removeprefix("round-")) for name in names))

    def load(self, round_: int, parts: Collection[str] = PARTS) -> Checkpoint:
        """Read these parts of one; raises NotFoundError, or CorruptError if a file is not what was written."""
        return read(self.path(round_), parts)

    def path(self, round_: int) -> Path:
        """Directory of a round's checkpoint."""
        return self.directory / f"round-{round_:06d}"


def read(directory: Path, parts: Collection[str] = PARTS) -> Checkpoint:
    """Read these parts of a checkpoint; raises NotFoundError, or CorruptError if a file is not what was written."""
    path = directory / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())  # Any: JSON
        policies = manifest.pop("policies")
        groups = {policy: tuple(agents) for policy, agents in manifest.pop("groups").items()}
        saved = {name: _read_policy(directory, name, entry, parts) for name, entry in policies.items()}
        return Checkpoint(progress=Progress(**manifest, groups=groups), policies=saved)
    except FileNotFoundError as error:
        raise NotFoundError(f"{error.filename}: there is no such checkpoint file") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CorruptError(f"{path}: this is no checkpoint manifest") from None


def _write_policy(directory: Path, name: str, saved: SavedPolicy) -> dict[str, object]:
    for part, blob in saved.blobs.items():
        _write(directory / f"{name}.{part}.safetensors", blob)
    return {
        "version": saved.version,
        "sha256": {part: hashlib.sha256(blob).hexdigest() for part, blob in saved.blobs.items()},
    }


def _read_policy(
    directory: Path,
    name: str,
    entry: Mapping[str, Any],  # Any: JSON
    parts: Collection[str],
) -> SavedPolicy:
    blobs = {}
    for part, digest in entry["sha256"].items():
        if part not in parts:
            continue
        path = directory / f"{name}.{part}.safetensors"
        blobs[part] = path.read_bytes()
        if hashlib.sha256(blobs[part]).hexdigest() != digest:
            raise CorruptError(f"{path} is not what was written: its sha256 differs from the manifest's")
    return SavedPolicy(version=entry["version"], blobs=blobs)


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def fsync(path: Path) -> None:
    """Have a file's bytes, or a directory's names, on the disk when this returns; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
