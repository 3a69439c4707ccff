"""`JobSource`: where jobs come from. `CoordinatorSource` asks a coordinator as any client does; `FolderSource` reads a
directory of run folders, without any service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from marless.app.client import AsyncClient, File, Info, Job, JobState, LogLine
from marless.core import regular_files
from marless.core.errors import CorruptError, JobStateError, MarlessError, NotFoundError
from marless.core.limits import MAX_SPEC_BYTES
from marless.jobs.record import RoundRecord, from_json
from marless.storage.round_file import RoundReader


@dataclass(frozen=True)
class JobListing:
    """All jobs, newest first, and what could not be read."""

    jobs: tuple[Job, ...]
    problems: tuple[str, ...] = ()


Followed = Job | Sequence[bytes]
"""A change of a job's state, or lines of its records."""


class JobSource(Protocol):
    """What pages are made of. All methods raise the domain errors of `AsyncClient`."""

    place: str
    """What it reads from, for people."""
    writable: bool
    """True if jobs can be submitted, cancelled and resumed."""

    async def jobs(self) -> JobListing: ...
    async def get(self, job: str) -> Job: ...
    def follow(self, job: str, cursor: int) -> AsyncGenerator[Followed, None]:
        """Yield the lines of rounds from `cursor` on, and states, until the job has ended."""

    async def records(self, job: str, first: int, count: int) -> list[RoundRecord]: ...
    def logs(self, job: str, cursor: int) -> AsyncGenerator[LogLine, None]:
        """Yield the job's log from `cursor` on, until the job has ended."""

    async def files(self, job: str) -> tuple[File, ...]: ...
    def pieces(self, job: str, path: str) -> AsyncGenerator[bytes | memoryview, None]: ...
    async def info(self) -> Info | None: ...
    async def submit(self, document: Mapping[str, Any], job: str | None) -> Job: ...
    async def cancel(self, job: str) -> Job: ...
    async def resume(self, job: str, stop: Mapping[str, Any] | None) -> Job: ...
    async def close(self) -> None: ...


async def read(source: JobSource, job: str, path: str, most_bytes: int = MAX_SPEC_BYTES) -> bytes:
    """A file of at most `most_bytes` bytes; of a longer one, as many."""
    data = bytearray()
    async with aclosing(source.pieces(job, path)) as pieces:
        async for piece in pieces:
            data += piece
            if len(data) >= most_bytes:
                break
    return bytes(data[:most_bytes])


class CoordinatorSource:
    """The jobs of a coordinator."""

    writable = True

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.place = client.address

    async def jobs(self) -> JobListing:
        """All jobs of the coordinator."""
        return JobListing(await self._client.list())

    async def get(self, job: str) -> Job:
        """One job."""
        return await self._client.get(job)

    async def follow(self, job: str, cursor: int) -> AsyncGenerator[Followed, None]:
        """Read what is recorded as a file, which is faster than as events; then watch."""
        if cursor == 0:
            with suppress(NotFoundError):  # it has no round yet
                async with aclosing(self._lines(job)) as batches:
                    async for batch in batches:
                        cursor += len(batch)
                        yield batch
        async with aclosing(self._client.watch_lines(job, cursor=cursor)) as events:
            async for event in events:
                yield (event.encode(),) if isinstance(event, str) else event

    async def _lines(self, job: str) -> AsyncGenerator[Sequence[bytes], None]:
        begun = b""
        async with aclosing(self._client.pieces(job, "rounds.jsonl")) as pieces:
            async for piece in pieces:
                *lines, begun = (begun + bytes(piece)).split(b"\n")
                if lines:
                    yield lines

    async def records(self, job: str, first: int, count: int) -> list[RoundRecord]:
        """Whole records of some rounds, as far as they are recorded."""
        count = min(count, (await self.get(job)).rounds - first)
        found: list[RoundRecord] = []
        if count <= 0:
            return found
        async with aclosing(self._client.watch(job, cursor=first)) as events:
            async for event in events:
                if event.record:
                    found.append(event.record)
                if len(found) == count:
                    break
        return found

    def logs(self, job: str, cursor: int) -> AsyncGenerator[LogLine, None]:
        """The log of a job."""
        return self._client.logs(job, follow=True, cursor=cursor)

    async def files(self, job: str) -> tuple[File, ...]:
        """The files of a run folder."""
        return await self._client.files(job)

    def pieces(self, job: str, path: str) -> AsyncGenerator[bytes | memoryview, None]:
        """A file in pieces."""
        return self._client.pieces(job, path)

    async def info(self) -> Info | None:
        """The coordinator and its services."""
        return await self._client.info()

    async def submit(self, document: Mapping[str, Any], job: str | None) -> Job:
        """Submit a job."""
        return await self._client.submit(document, job=job)

    async def cancel(self, job: str) -> Job:
        """Cancel a job."""
        return await self._client.cancel(job)

    async def resume(self, job: str, stop: Mapping[str, Any] | None) -> Job:
        """Resume an ended job."""
        return await self._client.resume(job, stop=stop)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


POLL_S = 0.2
"""Seconds between two looks at a run folder that grows."""
PIECE_BYTES = 2**18
MOST_RAW_LINES = 10_000
"""Lines of a damaged file that are looked through at a time."""


class FolderSource:
    """The jobs of a directory of run folders, which may grow while they are shown; nothing in it is changed.

    `listed` and `job_in` read the jobs of a directory and one of them; `log_of` reads a log. They are given, because
    commands use them, too.
    """

    writable = False

    def __init__(
        self,
        runs: Path,
        *,
        listed: Callable[[Path], JobListing],
        job_in: Callable[[Path, str], Job],
        log_of: Callable[[Path, str, int], Iterator[LogLine]],
    ) -> None:
        self._runs = runs
        self._listed, self._job_in, self._log_of = listed, job_in, log_of
        self.place = str(runs)

    async def jobs(self) -> JobListing:
        """All jobs, and a sentence for each folder that cannot be read."""
        return await asyncio.to_thread(self._listed, self._runs)

    async def get(self, job: str) -> Job:
        """One job."""
        return await asyncio.to_thread(self._job_in, self._runs, job)

    async def follow(self, job: str, cursor: int) -> AsyncGenerator[Followed, None]:
        """Read the records, and again whenever they have grown, until the job has ended."""
        reader, told = RoundReader(self._runs / job / "rounds.jsonl"), None
        while True:
            found = await self.get(job)
            if told is None:
                yield found
            try:
                while lines := await asyncio.to_thread(reader.batch, cursor):
                    cursor += len(lines)
                    yield [line.encode() for line in lines]
            except CorruptError:
                # The whole batch is refused because of one line: who follows finds which, after the rounds before it.
                yield await asyncio.to_thread(self._raw_lines, job, cursor)
                raise
            if told is not None and found != told:  # after the rounds: nothing follows the end of a job
                yield found
            told = found
            if found.state.ended or found.state is JobState.INTERRUPTED:
                return
            await asyncio.sleep(POLL_S)

    def _raw_lines(self, job: str, first: int) -> list[bytes]:
        path = self._runs / job / "rounds.jsonl"
        with regular_files.opened(path) as file:
            found = islice(regular_files.lines(file, path), first, first + MOST_RAW_LINES)
            return [line.rstrip(b"\n") or b"{}" for line in found if line.endswith(b"\n")]

    async def records(self, job: str, first: int, count: int) -> list[RoundRecord]:
        """Whole records of some rounds, as far as they are recorded."""
        return await asyncio.to_thread(self._records, job, first, count)

    def _records(self, job: str, first: int, count: int) -> list[RoundRecord]:
        path = self._runs / job / "rounds.jsonl"
        reader, found = RoundReader(path), list[RoundRecord]()
        while len(found) < count and (lines := reader.batch(first + len(found))):
            for line in lines[: count - len(found)]:
                try:
                    found.append(from_json(line))
                except ValueError:
                    number = first + len(found) + 1
                    raise CorruptError(f"{path}, line {number}: this is not a round record") from None
        return found

    async def logs(self, job: str, cursor: int) -> AsyncGenerator[LogLine, None]:
        """The log of a job; it is read again while the job runs."""
        while True:
            ended = (await self.get(job)).state not in (JobState.PENDING, JobState.RUNNING)
            for line in await asyncio.to_thread(lambda: list(self._log_of(self._runs, job, 0))):
                if line.cursor > cursor:
                    cursor = line.cursor
                    yield line
            if ended:
                return
            await asyncio.sleep(5 * POLL_S)

    async def files(self, job: str) -> tuple[File, ...]:
        """The regular files of a run folder, without those that are being written."""
        await self.get(job)
        return await asyncio.to_thread(self._files, job)

    def _files(self, job: str) -> tuple[File, ...]:
        folder, found = self._runs / job, list[File]()
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and _is_for_users(name):
                    found.append(File(path=name, bytes=path.stat().st_size))
        return tuple(found)

    async def pieces(self, job: str, path: str) -> AsyncGenerator[bytes | memoryview, None]:
        """A listed file in pieces; raises NotFoundError for any other path."""
        if path not in {each.path for each in await self.files(job)}:
            raise NotFoundError(f"there is no file {path!r} in the run folder of {job}")
        with await asyncio.to_thread(regular_files.opened, self._runs / job / path) as file:
            while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                yield piece

    async def info(self) -> Info | None:
        """None: there are no services."""
        return None

    async def submit(self, document: Mapping[str, Any], job: str | None) -> Job:
        """Refused: see `_refusal`."""
        raise self._refusal()

    async def cancel(self, job: str) -> Job:
        """Refused: see `_refusal`."""
        raise self._refusal()

    async def resume(self, job: str, stop: Mapping[str, Any] | None) -> Job:
        """Refused: see `_refusal`."""
        raise self._refusal()

    def _refusal(self) -> MarlessError:
        return JobStateError(
            f"this dashboard reads the folder {self.place}, and changes nothing; start it on a coordinator: "
            "`marless up`, then `marless dashboard`"
        )

    async def close(self) -> None:
        """Nothing is open."""


def _is_for_users(path: str) -> bool:
    parts = path.split("/")
    return parts[0] != "store" and not any(part.startswith("owner.lock") or part.endswith(".partial") for part in parts)
