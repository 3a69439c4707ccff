"""A job's durable state in a bucket, for a coordinator whose run folders are `s3://bucket/prefix`.

The run folder on this machine is then a working copy: everything is written there first, noted here, and durable once
`flush` has returned. `marless.storage.bucket.head` describes the objects.

A job has one owner at a time: the coordinator whose name is in the head. Whoever takes the job over replaces the head
on the condition that it is the one that it has seen, and each later write of the earlier owner is refused, because its
condition no longer holds. So what two coordinators write never mixes, whatever their clocks say. Time only decides when
a silent owner may be replaced: once the head has not changed for a lease. An owner therefore changes it at least three
times a lease.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from marless.core import regular_files
from marless.core.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    MarlessError,
    NotFoundError,
    SpecError,
    UnreachableError,
)
from marless.core.limits import MAX_SMALL_BYTES
from marless.services.coordinator.state.ownership import LOCK
from marless.storage.bucket import reading
from marless.storage.bucket.head import HEAD, MOST_HEAD_BYTES, ROUNDS, BucketPart, RunHead, Segment, key_of, without
from marless.storage.bucket.objects import Objects
from marless.storage.bucket.reading import Choice, digest
from marless.storage.places import Address

TAIL_BYTES = 2**17
"""Lines of rounds.jsonl that the head may hold; longer ones become a segment."""
RELEASE = "release-job"
"""Name of threads that give a job up."""
JOINED = 32
"""So many segments of about this size are joined, so that the head stays small however long the job runs."""
_OWNERS = f"{LOCK}.bucket"
"""File of the working copy: the names under which processes here have owned the job, and the tag of the copied head."""
_KEPT_OWNERS = 8
_ATTEMPTS = 5
_IN_MEMORY_BYTES = 2**24
_CHECKPOINTS = "checkpoints/"


class BucketState:
    """The objects of one job. All methods but the notes block on the network; any thread may call them.

    Methods raise what `marless.storage.bucket.objects` lists.
    """

    def __init__(self, objects: Objects, place: Address, folder: Path, lease_s: float) -> None:
        self.place = place
        self.lease_s = lease_s
        self._objects = objects
        self._folder = folder
        self._key = place.key(HEAD)
        self._owner = ""
        self._holder = f"{socket.gethostname()} {os.getpid()}"
        self.lost = False
        """True once another coordinator has taken the job over."""
        self._etag = ""
        self._committed: RunHead | None = None
        self._next = RunHead(owner="")
        self._unsent: set[str] = set()
        self._changes = 0
        self._state = threading.RLock()  # guards the two above, and is never held during a call
        # One change at a time: each write of the head needs the tag that the one before has got. A renewal may come at
        # any time, also while a flush sends files, so that the two have locks of their own.
        self._committing = threading.Lock()
        self._flushing = threading.Lock()

    # Ownership

    def look(self, *, unless: str = "") -> tuple[RunHead, str] | None:
        """The present head with its tag, None if its tag is `unless`; raises NotFoundError if there is no job."""
        held = self._objects.get(self._key, MOST_HEAD_BYTES, unless=unless)
        if held is None:
            return None
        head = RunHead.parse(held.data, f"{self.place}/{HEAD}")
        if head.deleted:
            raise NotFoundError(f"there is no job in {self.place}")
        return head, held.etag

    def acquire(self) -> bool:
        """Become the owner if there is none, or if it was a process that had this working copy; returns whether so.

        The working copy is then made equal to the bucket.
        """
        for _ in range(_ATTEMPTS):  # a thread of this process may be giving the job up meanwhile
            found = self.look()
            assert found
            head, etag = found
            # A name that this working copy knows was given to a process here, which has ended: its lock on the copy is
            # ours now.
            if head.owner and head.owner not in self._read_names()[0]:
                return False
            if self._claim_head(head, etag):
                return True
        return False

    def seize(self, etag: str) -> bool:
        """Become the owner if the head still has this tag, which it has had for a lease; returns whether so."""
        found = self.look()
        return found is not None and found[1] == etag and self._claim_head(*found)

    def begin(self) -> bool:
        """Prepare a new job, whose first `flush` creates its head; False if there is one."""
        try:
            if self.look():
                return False
        except NotFoundError:
            pass
        self._name_ourselves()
        # On servers that cannot delete on a condition, the head of a deleted job stays: it is replaced instead of
        # created.
        with suppress(NotFoundError):
            held = self._objects.get(self._key, MOST_HEAD_BYTES)  # of a deleted job
            self._etag = held.etag if held else ""
        self._committed, self._next = None, RunHead(owner=self._owner)
        return True

    def release(self) -> None:
        """Give the job up, in a thread that this process waits for at its end; calling it twice is safe."""
        owner, self._owner = self._owner, ""
        # In the background, because whoever releases a job is on the event loop, and a bucket may take long to answer.
        if owner and self._committed and not self.lost:
            threading.Thread(target=self._give_up, args=(owner,), name=RELEASE).start()

    def renew(self) -> None:
        """Show that this owner is alive."""
        # The next write of the job raises it, because `lost` is set.
        with suppress(FencedError):
            self._commit(always=True)

    # What the working copy has got

    def note(self, *, status: str | None = None, pending: str | None = None) -> None:
        """job.json or pending.json was replaced by this text; "": removed."""
        with self._state:
            now = self._next
            self._next = replace(
                now,
                status=now.status if status is None else status,
                pending=now.pending if pending is None else pending,
            )

    def note_round(self, line: str) -> None:
        """A line was added to rounds.jsonl."""
        with self._state:
            self._next = replace(self._next, tail=(*self._next.tail, line))

    def note_cut(self, rounds: int) -> None:
        """All but the first `rounds` lines of rounds.jsonl were removed."""
        with self._state:
            segments, left = [], rounds
            for segment in self._next.segments:
                # Objects are never changed, so the rest of a segment that is cut goes into the head as lines.
                if segment.rounds > left:
                    break
                segments.append(segment)
                left -= segment.rounds
            whole = len(segments) == len(self._next.segments)
            tail = self._next.tail[:left]
            if not whole:
                with regular_files.opened(self._folder / ROUNDS) as file:
                    tail = tuple(line.decode().rstrip("\n") for line in islice(file, rounds - left, rounds))
            self._next = replace(self._next, segments=tuple(segments), tail=tail)

    def note_files(self, paths: Iterable[str]) -> None:
        """Note which files of the working copy are new, or were replaced."""
        with self._state:
            self._unsent |= set(paths)

    def note_checkpoints(self, rounds: Iterable[int]) -> None:
        """The working copy has the checkpoints of these rounds, and no others."""
        kept = {f"round-{round_:06d}" for round_ in rounds}
        with self._state:
            known = self._next.files.keys() | self._unsent
            gone = {path for path in known if path.startswith(_CHECKPOINTS) and path.split("/")[1] not in kept}
            there = {
                f"{_CHECKPOINTS}{name}/{path.name}"
                for name in kept
                for path in (self._folder / _CHECKPOINTS / name).iterdir()
                if path.is_file()  # else it is none of a checkpoint's
            }
            self._next = without(self._next, gone)
            self._unsent = (self._unsent - gone) | (there - self._next.files.keys())

    @property
    def settled(self) -> bool:
        """True if the bucket holds all that was noted."""
        with self._state:
            return not self._unsent and self._committed is not None and self._next.same_content(self._committed)

    def flush(self) -> None:
        """Make durable all that was noted; raises FencedError if another coordinator owns the job."""
        with self._flushing:
            if self.settled:
                return
            # Objects before the head that names them: a kill in between leaves only what no head names, and the next
            # owner sweeps.
            self._send()
            self._commit()

    def delete(self) -> None:
        """Delete the job: first the head says so, then its objects go."""
        with self._state:
            self._next, self._unsent = RunHead(owner=self._owner, deleted=True), set()
        self._commit()
        self._objects.delete(
            each.key for each in self._objects.listing(self.place.key("") + "/") if each.key != self._key
        )
        with suppress(ConflictError, SpecError):  # a new job of this id; or a server that cannot, where the head stays
            self._objects.remove(self._key, self._etag)
        self._owner = ""

    def refresh(self, choice: Choice | None = None) -> None:
        """Make the working copy of a job that runs elsewhere equal to the bucket: its records, if they have changed, or
        what `choice` chooses; raises NotFoundError if there is no such job."""
        names, known = self._read_names()
        tag = "" if choice else known
        for attempt in range(reading.ATTEMPTS):
            found = self.look(unless=tag)
            if found is None:
                return
            try:
                reading.restore(self._objects, self.place, found[0], self._folder, choice or reading.records)
            except NotFoundError as error:  # its owner has replaced the object meanwhile, and the head before
                if attempt == reading.ATTEMPTS - 1:
                    raise CorruptError(f"{error}, and {HEAD} names it") from None
            else:
                self._write_names(names, found[1])
                return

    # Inside

    def _claim_head(self, head: RunHead, etag: str) -> bool:
        self._name_ourselves()
        ours = replace(head, owner=self._owner, holder=self._holder, serial=head.serial + 1)
        try:
            self._etag = self._objects.replace(self._key, ours.encoded(), etag)
        except ConflictError:
            found = self.look()
            if found is None or found[0] != ours:  # else the first answer was lost
                return False
            self._etag = found[1]
        self.lost, self._committed, self._next, self._unsent = False, ours, ours, set()
        try:
            # Not before the claim: only now do writes of the earlier owner fail, so that nothing is missing from the
            # copy.
            reading.restore_whole(self._objects, self.place, ours, self._folder)
            if head.owner:
                # What the last owner sent and no head names goes.
                named = ours.keys(self.place)
                with suppress(MarlessError):
                    sent = self._objects.listing(self.place.key(f"{head.owner}-"))
                    self._objects.delete(each.key for each in sent if each.key not in named)
        except BaseException:
            self.release()
            raise
        return True

    def _send(self) -> None:
        """Send new files, and lines that are too many for the head; the head names none of them yet."""
        self._join()
        with self._state:
            # No lock is held while anything is sent: rounds may be recorded meanwhile, and only what was sent is taken
            # out below.
            unsent, tail = set(self._unsent), self._next.tail
            self._changes += 1
        change = f"{self._owner}-{self._changes}"
        parts = {path: part for path in sorted(unsent) if (part := self._send_file(path, change))}
        segment, data = None, "".join(f"{line}\n" for line in tail).encode()
        if len(data) > TAIL_BYTES:
            segment = Segment(part=self._put(ROUNDS, data, change), rounds=len(tail))
        with self._state:
            self._next = replace(self._next, files={**self._next.files, **parts})
            self._unsent -= unsent
            if segment:
                segments = (*self._next.segments, segment)
                self._next = replace(self._next, segments=segments, tail=self._next.tail[len(tail) :])

    def _send_file(self, path: str, change: str) -> BucketPart | None:
        source = self._folder / path
        try:
            with regular_files.opened(source) as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(size) if size <= _IN_MEMORY_BYTES else None  # a log grows meanwhile
        except (NotFoundError, CorruptError):
            return None  # an old checkpoint, dropped meanwhile, or no file
        if data is not None:
            return self._put(path, data, change)
        part = BucketPart(change=change, bytes=size, sha256=digest(source))
        self._objects.send(self.place.key(key_of(path, part)), source)
        return part

    def _join(self) -> None:
        """Replace the last segments by one, if there are many small ones."""
        with self._state:
            kept, last = self._next.segments[:-JOINED], self._next.segments[-JOINED:]
            self._changes += 1
        if len(last) < JOINED or max(each.part.bytes for each in last) >= JOINED * TAIL_BYTES:
            return
        with regular_files.opened(self._folder / ROUNDS) as file:
            file.seek(sum(each.part.bytes for each in kept))
            data = file.read(sum(each.part.bytes for each in last))
        part = self._put(ROUNDS, data, f"{self._owner}-{self._changes}")
        joined = Segment(part=part, rounds=sum(each.rounds for each in last))
        with self._state:
            self._next = replace(self._next, segments=(*kept, joined))

    def _put(self, path: str, data: bytes, change: str) -> BucketPart:
        part = BucketPart(change=change, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        self._objects.put(self.place.key(key_of(path, part)), data)
        return part

    def _commit(self, *, always: bool = False) -> None:
        """Replace the head by what was noted, if that differs; with `always`, also if not."""
        with self._committing:
            for _ in range(_ATTEMPTS):
                with self._state:
                    wanted = self._next
                before = self._committed
                if before and not always and wanted.same_content(before):
                    return
                if self.lost or not self._owner:
                    raise FencedError(f"another coordinator has taken {self.place} over")
                serial = before.serial + 1 if before else 1
                head = replace(wanted, owner=self._owner, holder=self._holder, serial=serial)
                if self._write(head):
                    # Not before the new head is there: until then the one before is the truth, and a reader needs what
                    # it names. What stays only takes room: no head names it.
                    if before and (gone := before.keys(self.place) - head.keys(self.place)):
                        with suppress(MarlessError):
                            self._objects.delete(gone)
                    return
            raise UnreachableError(f"{self.place}: other writers were first, {_ATTEMPTS} times; try again")

    def _write(self, head: RunHead) -> bool:
        """Write the head on the condition that it is the one that we know; False if it is another one of ours."""
        try:
            data = head.encoded()
            etag = (
                self._objects.replace(self._key, data, self._etag)
                if self._etag
                else self._objects.create(self._key, data)
            )
        except ConflictError:
            with suppress(NotFoundError):
                found = self.look()
                if found and found[0].owner == self._owner:  # the answer to our last write was lost
                    self._committed, self._etag = found
                    return False
            self.lost = True
            raise FencedError(f"another coordinator has taken {self.place} over") from None
        self._committed, self._etag = head, etag
        return True

    def _give_up(self, owner: str) -> None:
        with suppress(MarlessError), self._committing:
            before = self._committed
            # The job may have been acquired anew by this process, under another name, before this thread came to run.
            if before and before.owner == owner:
                free = replace(self._next, owner="", holder="", serial=before.serial + 1)
                self._objects.replace(self._key, free.encoded(), self._etag)

    def _name_ourselves(self) -> None:
        """Choose a new name, and keep it in the working copy, so that the next process there knows it as its own."""
        self._owner = secrets.token_hex(8)
        names, etag = self._read_names()
        self._write_names([*names, self._owner][-_KEPT_OWNERS:], etag)

    def _read_names(self) -> tuple[list[str], str]:
        try:
            held = json.loads(regular_files.read(self._folder / _OWNERS, MAX_SMALL_BYTES))
            return [str(name) for name in held["owners"]], str(held["etag"])
        except (MarlessError, ValueError, KeyError, TypeError, RecursionError):
            return [], ""

    def _write_names(self, names: list[str], etag: str) -> None:
        partial = self._folder / f"{_OWNERS}.partial"
        partial.write_text(json.dumps({"owners": names, "etag": etag}), encoding="utf-8")
        partial.replace(self._folder / _OWNERS)
