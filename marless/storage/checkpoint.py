"""Checkpoints: everything needed to resume a job, as safetensors files with a manifest.

    checkpoints/round-000050/manifest.json
    checkpoints/round-000050/<policy>.acting.safetensors, <policy>.learning.safetensors
    checkpoints/round-000050/lane-<index>.carry

"acting" holds the weights and normalisers used for inference, "learning" the rest of a policy's state: optimizer
moments and critics. No random generator state of the job is saved: every random stream follows from its seed and the
round. If episodes are carried, the carry of each lane of environment copies is saved, too
(`marless.learning.data.carry`); only the job itself goes on with them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from marless.core import regular_files
from marless.core.errors import CorruptError, NotFoundError
from marless.core.group import LaneRecord
from marless.core.limits import MAX_CARRY_BYTES, MAX_MANIFEST_BYTES, MAX_PUBLISH_BYTES

WhichRound: TypeAlias = int | Literal["best"] | None
"""Which checkpoint of a job: the one after so many rounds, the one that was evaluated best, or the newest."""
PARTS = ("acting", "learning")
EARLIER = "earlier"
"""The part "acting" of the version before, if that one acts in the next round (schedule `pipelined`)."""
MANIFEST = "manifest.json"
_LONGEST_NAME_BYTES = 200
_ROUND = re.compile(r"round-(\d{6,15})")
_UNFINISHED = re.compile(r"round-\d{6,15}\.[0-9a-f]{8}\.partial")


@dataclass(frozen=True, kw_only=True)
class SavedPolicy:
    """One policy or joint critic at one version."""

    version: int
    blobs: Mapping[str, bytes | memoryview]
    """Safetensors bytes by part."""


@dataclass(frozen=True)
class SavedLane:
    """A lane of environment copies: its version and digest, and its carry."""

    lane: LaneRecord
    data: bytes

    @property
    def name(self) -> str:
        """File name in the checkpoint's directory."""
        return _carry_name(self.lane)


@dataclass(frozen=True, kw_only=True)
class CheckpointProgress:
    """The progress of a job: its counters and groups."""

    round: int
    """Number of completed rounds, and so the number of the next round (rounds count from 0)."""
    env_steps: int
    """Env steps sampled for training so far."""
    seed: int
    """Seed of the job; with `round` it determines every later random stream."""
    actors: int
    """Number of actors in the newest round; the next round's number follows from the records."""
    algorithm: str = ""
    """Name of the algorithm; "" in older checkpoints, which did not store it."""
    groups: Mapping[str, tuple[str, ...]]
    """Policy → agents that it controls, as trained and evaluated in the newest round."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a job after a round."""

    progress: CheckpointProgress
    policies: Mapping[str, SavedPolicy]
    lanes: tuple[SavedLane, ...] = ()
    """() if episodes are not carried, and if they were not asked for."""


class DiskCheckpoints:
    """Checkpoints as directories under one directory.

    Users put other things beside them, such as copies under other names. What does not have the name of a checkpoint,
    or is no directory, is not one: it is neither read nor removed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, checkpoint: Checkpoint, keep: int, spared: Collection[int] = ()) -> None:
        """Write a checkpoint atomically, and delete all but the `keep` newest and those of the rounds `spared`.

        Raises OSError.
        """
        target = self.path(checkpoint.progress.round)
        partial = target.with_suffix(f".{secrets.token_hex(4)}.partial")  # unique: another process may be saving too
        # Left by a process that was killed while it saved; nothing refers to them.
        for unfinished in self._directories(_UNFINISHED):
            shutil.rmtree(unfinished)
        make_directory(self.directory)
        partial.mkdir()
        policies = {}
        for name, saved in checkpoint.policies.items():
            for part, blob in saved.blobs.items():
                _write(partial / f"{name}.{part}.safetensors", blob)
            digests = {part: hashlib.sha256(blob).hexdigest() for part, blob in saved.blobs.items()}
            policies[name] = {"version": saved.version, "sha256": digests}
        for held in checkpoint.lanes:
            _write(partial / held.name, held.data)
        lanes = [dataclasses.asdict(held.lane) for held in checkpoint.lanes]
        manifest = dataclasses.asdict(checkpoint.progress) | {"policies": policies, "lanes": lanes}
        _write(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
        # The entries of its files must be on the disk before it gets its name: after a power loss it is whole, or not
        # there.
        fsync(partial)
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)  # it has the name of this checkpoint and is none
        # A rename does not replace a directory that has files in it.
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        # Before old ones are removed: their removal must not be on the disk while the new name is not.
        fsync(self.directory)
        earlier = [round_ for round_ in self.rounds() if round_ <= checkpoint.progress.round]
        for old in earlier[:-keep]:  # a later one is no state of this job, and must not displace this one
            if old not in spared:
                self.remove(old)

    def remove(self, round_: int) -> None:
        """Remove a round's checkpoint; if a user has put a link in its place, only the link. Raises OSError."""
        path = self.path(round_)
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)

    def rounds(self) -> tuple[int, ...]:
        """Rounds that have a checkpoint, ascending."""
        found = ((round_of(path.name), path) for path in self._directories(_ROUND))
        whole = (round_ for round_, path in found if regular_files.is_there(path / MANIFEST))
        return tuple(sorted(round_ for round_ in whole if round_ is not None))

    def has(self, round_: int) -> bool:
        """True if there is a checkpoint of this round, and not only a directory with its name."""
        try:
            return _manifest(self.path(round_)).progress.round == round_
        except (NotFoundError, CorruptError):
            return False

    def load(self, round_: int, parts: Collection[str] = PARTS, *, lanes: bool = False) -> Checkpoint:
        """Read these parts of a round's checkpoint.

        Raises NotFoundError; CorruptError if a checksum differs, or if it is the copy of another round's.
        """
        found = read(self.path(round_), parts, lanes=lanes)
        _check_round(self.path(round_), found.progress)
        return found

    def _directories(self, pattern: re.Pattern[str]) -> list[Path]:
        """The directories whose names match; raises UnavailableError if they cannot be listed."""
        try:
            with os.scandir(self.directory) as entries:
                names = [each.name for each in entries if pattern.fullmatch(each.name) and each.is_dir()]
        except OSError as error:
            if isinstance(refusal := regular_files.refused(self.directory, error), NotFoundError):
                return []
            raise refusal from None
        return [self.directory / name for name in names]

    def path(self, round_: int) -> Path:
        """Directory of a round's checkpoint."""
        return self.directory / _name(round_)


def round_of(name: str) -> int | None:
    """The round whose checkpoint a directory of this name holds; None if it is no such name, as `round-000010-best`."""
    found = _ROUND.fullmatch(name)
    return int(found[1]) if found and name == _name(int(found[1])) else None


def _name(round_: int) -> str:
    return f"round-{round_:06d}"


def newest(folder: Path) -> Path:
    """The checkpoint directory to use: `folder` itself if it is a checkpoint, else the newest one of that run folder.

    Raises NotFoundError, CorruptError if it is the copy of another round's.
    """
    if regular_files.is_there(folder / MANIFEST):
        return folder
    checkpoints = DiskCheckpoints(folder / "checkpoints")
    rounds = checkpoints.rounds()
    if not rounds:
        raise NotFoundError(f"{folder} contains no checkpoint; give a checkpoint, or the run folder of a job with one")
    path = checkpoints.path(rounds[-1])
    _check_round(path, _manifest(path).progress)
    return path


def _check_round(path: Path, progress: CheckpointProgress) -> None:
    """Raise CorruptError unless a checkpoint lies under the name of its round."""
    if path.name != _name(progress.round):
        raise CorruptError(
            f"{path} holds the checkpoint after {progress.round} rounds, a copy under another name; move it out of the "
            "directory of checkpoints"
        )


def _manifest(directory: Path) -> Manifest:
    path = directory / MANIFEST
    return Manifest.parse(regular_files.read(path, MAX_MANIFEST_BYTES), str(path))


def read(directory: Path, parts: Collection[str] = PARTS, *, lanes: bool = False) -> Checkpoint:
    """Read these parts of the checkpoint in a directory, with `lanes` the carries, too.

    Raises NotFoundError if a file is missing, CorruptError for an invalid manifest or a checksum that differs,
    UnavailableError if the system refuses to read a file.
    """
    manifest = _manifest(directory)
    blobs: dict[str, dict[str, bytes]] = {policy: {} for policy in manifest.versions}
    for file in manifest.files:
        if file.part in parts:
            blobs[file.policy][file.part] = data = regular_files.read(directory / file.name, MAX_PUBLISH_BYTES)
            file.check(data, str(directory / file.name))
    held = []
    for lane in manifest.lanes if lanes else ():
        path = directory / _carry_name(lane)
        held.append(SavedLane(lane, regular_files.read(path, MAX_CARRY_BYTES)))
        _check(held[-1].data, lane.digest, str(path))
    saved = {name: SavedPolicy(version=manifest.versions[name], blobs=blobs[name]) for name in blobs}
    return Checkpoint(progress=manifest.progress, policies=saved, lanes=tuple(held))


@dataclass(frozen=True, kw_only=True)
class PolicyFile:
    """One file of a checkpoint, as its manifest lists it."""

    policy: str
    part: str
    sha256: str

    @property
    def name(self) -> str:
        """File name in the checkpoint's directory."""
        return f"{self.policy}.{self.part}.safetensors"

    def check(self, data: bytes | memoryview, where: str) -> None:
        """Raise CorruptError unless these are the bytes that were written."""
        _check(data, self.sha256, where)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of manifest.json. Untrusted: policy names become file names, so `parse` validates them."""

    progress: CheckpointProgress
    versions: Mapping[str, int]
    """Version by policy."""
    files: tuple[PolicyFile, ...]
    """Of the policies, in the manifest's order."""
    lanes: tuple[LaneRecord, ...] = ()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """Read a manifest; raises CorruptError for anything that `DiskCheckpoints.save` does not write."""
        try:
            held: dict[str, Any] = json.loads(data)  # Any: JSON
            policies = held.pop("policies")
            lanes = tuple(
                LaneRecord(lane=_whole(each["lane"]), version=_whole(each["version"]), digest=_text(each["digest"]))
                for each in held.pop("lanes")
            )
            files = tuple(
                PolicyFile(policy=_policy(policy), part=part, sha256=_text(digest))
                for policy, entry in policies.items()
                for part, digest in entry["sha256"].items()
            )
            if odd := {file.part for file in files} - {*PARTS, EARLIER}:
                raise ValueError(odd)
            versions = {policy: _whole(entry["version"]) for policy, entry in policies.items()}
            groups = {_text(policy): tuple(map(_text, agents)) for policy, agents in held.pop("groups").items()}
            algorithm = _text(held.pop("algorithm"))
            counters = {name: _whole(value) for name, value in held.items()}
            progress = CheckpointProgress(**counters, algorithm=algorithm, groups=groups)
            return cls(progress=progress, versions=versions, files=files, lanes=lanes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise CorruptError(f"{where}: this is not a checkpoint manifest") from None


def _carry_name(lane: LaneRecord) -> str:
    return f"lane-{lane.lane}.carry"


def _check(data: bytes | memoryview, sha256: str, where: str) -> None:
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptError(f"{where} was changed after it was written: its sha256 differs from the manifest's")


def _whole(value: object) -> int:
    # Not `isinstance`, for which `true` is a whole number, too.
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(value)
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise TypeError(value)
    return value


def _policy(name: str) -> str:
    if not name.isprintable() or "/" in name or name.startswith(".") or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ValueError(name)
    return name


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents durably: their entries are synced to disk. Raises OSError."""
    # Looked up before they are made: the entries of the others are on the disk already.
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        fsync(each.parent)


def fsync(path: Path) -> None:
    """Sync a file's contents, or a directory's entries, to disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
