"""`JobSource`: where jobs come from; `CoordinatorSource` asks a coordinator as any client does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from marless.app.client import AsyncClient, File, Info, Job, LogLine
from marless.core.errors import NotFoundError
from marless.core.limits import MAX_SPEC_BYTES
from marless.jobs.record import RoundRecord


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
        async with aclosing(self._client.watch(job, cursor=cursor)) as events:
            async for event in events:
                if event.record:
                    yield (event.record.to_json().encode(),)
                elif event.job:
                    yield event.job

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
