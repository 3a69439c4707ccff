"""The four services on this machine, as processes that talk over private unix sockets and end with this one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from marless.errors import UnavailableError

STOP_S = 15.0
_SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")  # in the order they are of use to each other


class LocalStack:
    """An async context manager; inside it, `coordinator` is the address to submit jobs to.

    Sockets lie in a directory that only this user can enter. Logs go to `logs`, one file a service.
    """

    def __init__(self, *, runs: Path, logs: Path, data: Path) -> None:
        self._runs = runs
        self._logs = logs
        self._data = data
        self._sockets = Path()
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    @property
    def coordinator(self) -> str:
        """Address of the coordinator."""
        return self._address("coordinator")

    async def __aenter__(self) -> LocalStack:
        """Start all services; raises UnavailableError, with the reason, if the machine does not let us."""
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._sockets = Path(tempfile.mkdtemp(prefix="marless-"))
            for service in _SERVICES:
                self._processes[service] = await self._start(service)
        except OSError as error:
            await self._stop_all()
            raise UnavailableError(f"{error.filename}: {error.strerror}; the services cannot be started") from None
        except BaseException:
            await self._stop_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_all()

    async def failed(self) -> UnavailableError:
        """Wait until a service ends by itself; returns what to tell the user."""
        waits = {asyncio.create_task(process.wait()): name for name, process in self._processes.items()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return self._obituary(waits[next(iter(done))])

    def _address(self, service: str) -> str:
        return f"unix:{self._sockets / service}.sock"

    async def _start(self, service: str) -> asyncio.subprocess.Process:
        environment = os.environ | {
            "MARLESS_ACTOR_POOL": self._address("actor_pool"),
            "MARLESS_LEARNER_POOL": self._address("learner_pool"),
            "MARLESS_PARAM_STORE": self._address("param_store"),
            "MARLESS_RUNS": str(self._runs),
            "MARLESS_DATA_DIR": str(self._data),
            "MARLESS_WARM_WORKERS": "1",
        }
        command = (sys.executable, "-m", f"services.{service}", "--listen", self._address(service), "--exit-with-stdin")
        with (self._logs / f"{service}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,  # closes when this process ends, however it ends
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process, which stops the others in order
            )

    async def _stop_all(self) -> None:
        """Last started, first stopped: each can still say good-bye to those it needs. Twice is safe."""
        try:
            for service in reversed(_SERVICES):
                if process := self._processes.pop(service, None):
                    await _stop(process)
        finally:
            if self._sockets != Path():
                shutil.rmtree(self._sockets, ignore_errors=True)

    def _obituary(self, service: str) -> UnavailableError:
        log = self._logs / f"{service}.log"
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = next((line for line in reversed(lines) if not line.startswith("{")), "it left no message")
        return UnavailableError(f"{service} ended: {last.removeprefix(f'{service}: ')} (log: {log})")


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
