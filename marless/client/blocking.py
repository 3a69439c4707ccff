"""The client for scripts and notebooks' cells: the same methods, without await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from marless.client.asynchronous import CONTACT_S, PATIENCE_S, AsyncClient, IfExists
from marless.client.jobs import Event, File, Info, Job, JobState, LogLine
from marless.errors import SpecError

if TYPE_CHECKING:
    from marless.spec import JobSpec

Result = TypeVar("Result")


class Client:
    """An `AsyncClient` on an event loop of its own, which runs on the caller's thread while a method does.

    A context manager. Not for use where an event loop runs already (raises SpecError), nor by several threads at once.
    """

    def __init__(
        self,
        coordinator: str | None = None,
        *,
        runs: Path | str | None = None,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        contact_s: float = CONTACT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._client = AsyncClient(
            coordinator,
            runs=runs,
            token=token,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            contact_s=contact_s,
            patience_s=patience_s,
        )
        self.address = self._client.address
        self._runner = asyncio.Runner()
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; jobs go on."""
        if not self._closed:
            self._run(self._client.close())
            self._runner.close()
            self._closed = True

    def submit(
        self,
        spec: JobSpec | Mapping[str, Any] | Path | str,  # Any: YAML
        *,
        job: str | None = None,
        if_exists: IfExists = "fail",
        overrides: Sequence[str] = (),
        request_id: str | None = None,
    ) -> Job:
        """See `AsyncClient.submit`."""
        return self._run(
            self._client.submit(spec, job=job, if_exists=if_exists, overrides=overrides, request_id=request_id)
        )

    def get(self, job: str) -> Job:
        """See `AsyncClient.get`."""
        return self._run(self._client.get(job))

    def list(self, *, states: Sequence[JobState | str] = ()) -> tuple[Job, ...]:
        """See `AsyncClient.list`."""
        return self._run(self._client.list(states=states))

    def cancel(self, job: str) -> Job:
        """See `AsyncClient.cancel`."""
        return self._run(self._client.cancel(job))

    def resume(
        self,
        job: str,
        *,
        stop: Mapping[str, Any] | None = None,  # Any: JSON
        request_id: str | None = None,
    ) -> Job:
        """See `AsyncClient.resume`."""
        return self._run(self._client.resume(job, stop=stop, request_id=request_id))

    def delete(self, job: str) -> None:
        """See `AsyncClient.delete`."""
        self._run(self._client.delete(job))

    def watch(self, job: str, *, cursor: int = 0) -> Generator[Event, None, None]:
        """See `AsyncClient.watch`."""
        return self._iterate(lambda: self._client.watch(job, cursor=cursor))

    def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """See `AsyncClient.wait`."""
        return self._run(self._client.wait(job, timeout_s=timeout_s))

    def logs(self, job: str, *, follow: bool = False, tail: int = 0, cursor: int = 0) -> Generator[LogLine, None, None]:
        """See `AsyncClient.logs`."""
        return self._iterate(lambda: self._client.logs(job, follow=follow, tail=tail, cursor=cursor))

    def files(self, job: str) -> tuple[File, ...]:
        """See `AsyncClient.files`."""
        return self._run(self._client.files(job))

    def read(self, job: str, path: str) -> bytes:
        """See `AsyncClient.read`."""
        return self._run(self._client.read(job, path))

    def download(self, job: str, to: Path | str) -> tuple[File, ...]:
        """See `AsyncClient.download`."""
        return self._run(self._client.download(job, to))

    def info(self) -> Info:
        """See `AsyncClient.info`."""
        return self._run(self._client.info())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._runner.run(work)
        work.close()
        raise SpecError("an event loop runs here already: use marless.client.AsyncClient, and await its methods")

    def _iterate(self, start: Callable[[], AsyncGenerator[Result, None]]) -> Generator[Result, None, None]:
        items = self._run(_started(start))
        try:
            while (item := self._run(_next(items))) is not None:
                yield item
        finally:
            if not self._closed:
                self._run(items.aclose())


async def _started(start: Callable[[], Result]) -> Result:
    """Begin on the loop: a channel belongs to the one that it is made on."""
    return start()


async def _next(items: AsyncGenerator[Result, None]) -> Result | None:
    return await anext(items, None)
