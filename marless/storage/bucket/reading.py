"""Copies run folders, checkpoints and policies from a bucket to this machine, for the readers of local files.

What a bucket holds is untrusted: sizes are looked at before anything is copied, paths stay inside the target, and
digests are compared. A plain copy of a run folder (`aws s3 sync`) has no head.json; what it holds is found by listing.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from marless.core import regular_files
from marless.core.errors import CorruptError, NotFoundError, SpecError
from marless.core.machine import MACHINES
from marless.storage.bucket.head import (
    HEAD,
    MOST_FILES,
    MOST_HEAD_BYTES,
    MOST_PART_BYTES,
    ROUNDS,
    BucketPart,
    RunHead,
    Segment,
    is_path,
    key_of,
)
from marless.storage.bucket.objects import Objects, S3Objects
from marless.storage.checkpoint import WhichRound, round_of
from marless.storage.places import Address

STATUS, SPEC, PENDING = "job.json", "spec.yaml", "pending.json"
AT_ONCE = 8
ATTEMPTS = 3
"""A running job drops old checkpoints while they are copied; then its newest ones are looked up again."""
_CHECKPOINTS = "checkpoints/"
Choice = Callable[[Collection[str]], Iterable[str]]
"""Chooses among the paths of a run folder or checkpoint."""


def everything(paths: Collection[str]) -> Iterable[str]:
    """Choose all files."""
    return paths


def records(paths: Collection[str]) -> Iterable[str]:
    """What commands read that look at rounds."""
    return [path for path in paths if path in (ROUNDS, STATUS, SPEC, MACHINES)]


def checkpoint(round_: WhichRound = None, *, acting_only: bool = False, with_records: bool = False) -> Choice:
    """The checkpoint after this round, by default the newest, and what describes the job; "best": all, and the rounds.

    Args:
        acting_only: Only the parts that policies act with.
        with_records: The rounds, too.
    """

    def choice(paths: Collection[str]) -> Iterable[str]:
        names = {path.split("/")[1] for path in paths if path.startswith(_CHECKPOINTS)}
        rounds = {name: found for name in names if (found := round_of(name)) is not None}
        newest = max(rounds.values(), default=None) if round_ is None else round_
        wanted = [name for name, found in rounds.items() if round_ == "best" or found == newest]
        for path in paths:
            top, _, rest = path.partition("/")
            part_of_it = not rest or (f"{top}/" == _CHECKPOINTS and rest.split("/")[0] in wanted)
            needless = acting_only and path.endswith((".learning.safetensors", ".carry"))
            if part_of_it and not needless and (path != ROUNDS or with_records or round_ == "best"):
                yield path

    return choice


@contextmanager
def local_copy(address: str, choice: Choice) -> Iterator[Path]:
    """A copy of what an address names, in a temporary directory: a run folder, a checkpoint, or a file.

    Raises SpecError for a bad address, NotFoundError if nothing is there, CorruptError for damaged objects, and what
    `marless.storage.bucket.objects` lists.
    """
    from marless.storage.places import parse

    place = parse(address)
    objects = S3Objects(place.bucket)
    with tempfile.TemporaryDirectory(prefix="marless-") as directory:
        target = Path(directory) / (place.name or place.bucket)
        copy(objects, place, target, choice)
        yield target


def copy(objects: Objects, place: Address, target: Path, choice: Choice) -> None:
    """Copy what is at a place of a bucket into a directory, or to a file if the place is one object."""
    for attempt in range(1, ATTEMPTS + 1):
        head = read_head(objects, place)
        if head is None:
            _copy_plain(objects, place, target, choice)
            return
        try:
            restore(objects, place, head, target, choice)
            return
        except NotFoundError:
            if attempt == ATTEMPTS:
                raise


def read_head(objects: Objects, place: Address) -> RunHead | None:
    """The head of the run folder at a place; None if there is none."""
    with suppress(NotFoundError):
        held = objects.get(place.key(HEAD), MOST_HEAD_BYTES)
        head = RunHead.parse(held.data, f"{place}/{HEAD}") if held else None
        return None if head and head.deleted else head
    return None


def restore(objects: Objects, place: Address, head: RunHead, folder: Path, choice: Choice = everything) -> None:
    """Make a directory hold the chosen files of a head. Those that are there already are not copied again.

    Raises CorruptError for an object that differs from its digest, NotFoundError for one that is missing, OSError.
    """
    chosen = set(choice([*head.files, STATUS, ROUNDS]))
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(path, part) for path, part in head.files.items() if path in chosen]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        # The results are taken because only that raises the errors of the threads.
        for _ in threads.map(lambda each: _bring(objects, place, folder, *each), wanted):
            pass
    if ROUNDS in chosen:
        _bring_rounds(objects, place, head, folder / ROUNDS)
    if head.pending:
        (folder / PENDING).write_text(head.pending, encoding="utf-8")
    partial = folder / f"{STATUS}.partial"  # others may be reading it
    partial.write_text(head.status, encoding="utf-8")
    partial.replace(folder / STATUS)


def restore_whole(objects: Objects, place: Address, head: RunHead, folder: Path) -> None:
    """Restore everything; pending.json, start/ and checkpoints that are not in the head are removed.

    What a head never holds, such as logs, stays, and so does what is no checkpoint. Raises the errors of `restore`.
    """
    restore(objects, place, head, folder)
    if not head.pending:
        (folder / PENDING).unlink(missing_ok=True)
    tops = {path.rpartition("/")[0] for path in head.files}
    checkpoints = (path for path in (folder / _CHECKPOINTS).glob("*") if round_of(path.name) is not None)
    for directory in (folder / "start", *checkpoints):
        if str(directory.relative_to(folder)) not in tops:
            shutil.rmtree(directory, ignore_errors=True)


def digest(path: Path) -> str:
    """SHA-256 of a file's content; raises what `marless.core.regular_files` lists."""
    with regular_files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _bring(objects: Objects, place: Address, folder: Path, path: str, part: BucketPart) -> None:
    target = folder / path
    # Sizes first: to compare them costs nothing, and a digest takes all bytes.
    if target.is_file() and target.stat().st_size == part.bytes and digest(target) == part.sha256:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    # Whoever reads the folder meanwhile finds the old file or the new one, and never a part.
    partial = target.with_name(f"{target.name}.partial")
    key = place.key(key_of(path, part))
    objects.fetch(key, partial, part.bytes)
    if digest(partial) != part.sha256:
        partial.unlink()
        raise _changed(place.bucket, key)
    partial.replace(target)


def _bring_rounds(objects: Objects, place: Address, head: RunHead, target: Path) -> None:
    """Write rounds.jsonl; pieces that the present one begins with are taken from there."""
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("wb") as file:
        present = regular_files.opened(target) if target.is_file() else None
        for segment in head.segments:
            file.write(_piece(objects, place, segment, present))
        file.writelines(line.encode() + b"\n" for line in head.tail)
        if present:
            present.close()
    partial.replace(target)


def _piece(objects: Objects, place: Address, segment: Segment, present: BinaryIO | None) -> bytes:
    part = segment.part
    if present and hashlib.sha256(data := present.read(part.bytes)).hexdigest() == part.sha256:
        return data
    key = place.key(key_of(ROUNDS, part))
    held = objects.get(key, part.bytes)
    if held is None or hashlib.sha256(held.data).hexdigest() != part.sha256:
        raise _changed(place.bucket, key)
    return held.data


def _changed(bucket: str, key: str) -> CorruptError:
    return CorruptError(f"{Address(bucket, key)} was changed after it was written: its sha256 differs from head.json's")


def _copy_plain(objects: Objects, place: Address, target: Path, choice: Choice) -> None:
    """Copy what has no head: a checkpoint, a plain copy of a run folder, or one file."""
    # With the slash, or objects beside the place whose names only begin like it would be listed.
    start = place.key("") + "/" if place.prefix else ""
    found = {each.key.removeprefix(start): each.bytes for each in islice(objects.listing(start), MOST_FILES + 1)}
    if len(found) > MOST_FILES:
        raise SpecError(f"{place} holds more than {MOST_FILES} objects; name the place of one run folder or checkpoint")
    files = [path for path in found if is_path(path)]
    if not {"manifest.json", STATUS, SPEC} & set(files):
        try:
            objects.fetch(place.prefix, target, MOST_PART_BYTES)
        except NotFoundError as error:
            if "bucket" in str(error):
                raise
            raise NotFoundError(f"{place}: there is no run folder, checkpoint or policy file in the bucket") from None
        return
    for path in choice(files):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        objects.fetch(place.key(path), target / path, found[path])
