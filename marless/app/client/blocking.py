"""The blocking client, for scripts and notebooks: the methods of `AsyncClient` without await."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from marless.app.client.asynchronous import CONTACT_S, PATIENCE_S, AsyncClient, IfExists
from marless.app.client.jobs import Event, File, Info, Job, JobState, LogLine

if TYPE_CHECKING:
    from marless.jobs.spec import JobSpec

Result = TypeVar("Result")


class Client:
    """A blocking client; see `AsyncClient` for arguments and methods. A context manager.

    It has an event loop of its own, which runs only during calls: on the caller's thread or, if an event loop is
    already running there, as in a notebook, on another thread. Not thread-safe.
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
        # With a factory, the runner leaves the thread's current event loop, which is the caller's, as it is.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; jobs continue."""
        if not self._closed:
            self._run(self._client.close())
            self._drive(self._runner.close)
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
        return self._run(
            self._client.submit(spec, job=job, if_exists=if_exists, overrides=overrides, request_id=request_id)
        )

    def get(self, job: str) -> Job:
        return self._run(self._client.get(job))

    def list(self, *, states: Sequence[JobState | str] = (), limit: int | None = None) -> tuple[Job, ...]:
        return self._run(self._client.list(states=states, limit=limit))

    def cancel(self, job: str) -> Job:
        return self._run(self._client.cancel(job))

    def resume(
        self,
        job: str,
        *,
        stop: Mapping[str, Any] | None = None,  # Any: JSON
        request_id: str | None = None,
    ) -> Job:
        return self._run(self._client.resume(job, stop=stop, request_id=request_id))

    def delete(self, job: str) -> None:
        self._run(self._client.delete(job))

    def watch(self, job: str, *, cursor: int = 0) -> Generator[Event, None, None]:
        return self._iterate(self._client.watch(job, cursor=cursor))

    def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        return self._run(self._client.wait(job, timeout_s=timeout_s))

    def logs(self, job: str, *, follow: bool = False, tail: int = 0, cursor: int = 0) -> Generator[LogLine, None, None]:
        return self._iterate(self._client.logs(job, follow=follow, tail=tail, cursor=cursor))

    def files(self, job: str) -> tuple[File, ...]:
        return self._run(self._client.files(job))

    def read(self, job: str, path: str) -> bytes:
        return self._run(self._client.read(job, path))

    def download(self, job: str, to: Path | str, *, told: Callable[[int, int], None] | None = None) -> tuple[File, ...]:
        return self._run(self._client.download(job, to, told=told))

    def info(self) -> Info:
        return self._run(self._client.info())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return self._drive(lambda: _Interrupts(self._runner.get_loop()).run(self._runner, work))
        except KeyboardInterrupt:
            work.close()  # Python warns of a coroutine that an interrupt kept from starting
            raise

    def _drive(self, step: Callable[[], Result]) -> Result:
        """Call a function that runs our event loop; on another thread if a loop is already running on this one."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return step()
        return _in_thread(self._runner, step)

    def _iterate(self, items: AsyncGenerator[Result, None]) -> Generator[Result, None, None]:
        async def following() -> Result | None:
            return await anext(items, None)

        try:
            while (item := self._run(following())) is not None:
                yield item
        finally:
            if not self._closed:
                self._run(items.aclose())


def _in_thread(runner: asyncio.Runner, step: Callable[[], Result]) -> Result:
    """Run one step of our event loop on a temporary thread; Ctrl-C, or a notebook's interrupt, cancels its tasks."""
    loop = runner.get_loop()
    before = asyncio.all_tasks(loop)
    outcome: Future[Result] = Future()

    def run_step() -> None:
        try:
            outcome.set_result(step())
        except BaseException as error:  # noqa: BLE001  # passed to the caller's thread
            outcome.set_exception(error)

    def cancel() -> None:
        for task in asyncio.all_tasks(loop) - before:
            task.cancel()

    thread = threading.Thread(target=run_step, name="marless-client", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(cancel)
        raise
    finally:
        thread.join()


class _Interrupts:
    """Turns Ctrl-C into the cancellation of a call, from before its task is created until it has ended.

    asyncio.Runner does so only once the task exists: an interrupt in between would leave a task that nobody ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None
        self._asked = False

    def run(self, runner: asyncio.Runner, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` to its end; raises KeyboardInterrupt if it was interrupted."""
        on_main = threading.current_thread() is threading.main_thread()
        # As asyncio does: only the main thread can handle signals, and a handler that the
        # program has set is left alone.
        if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return runner.run(work)
        signal.signal(signal.SIGINT, self._ask)
        # Made only now: an interrupt before the handler is set would leave a coroutine that nobody ends.
        call = self._cancellable(work)
        try:
            result = runner.run(call)
        except asyncio.CancelledError:
            if self._asked:
                raise KeyboardInterrupt from None
            raise
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            call.close()  # Python warns of a coroutine that never started
        if self._asked:  # too late to cancel anything
            raise KeyboardInterrupt
        return result

    async def _cancellable(self, work: Coroutine[Any, Any, Result]) -> Result:
        self._task = asyncio.current_task()
        if self._asked:
            work.close()
            raise asyncio.CancelledError
        return await work

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        if self._task:
            self._loop.call_soon_threadsafe(self._task.cancel)  # it also wakes the loop
