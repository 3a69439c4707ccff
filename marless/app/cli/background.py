"""`marless up` and `marless down`: the four services in the background, for the run folders of one directory.

    <runs>/.stack/stack.json   the coordinator's address, while it serves
    <runs>/.stack/logs/        one log file per service, and the supervisor's
    <runs>/.stack/store/       the parameter store's data, and the id of the process that uses it

The supervisor is a process of its own: it starts the services, restarts them when they die, and stops them. Unfinished
jobs are resumed by the next supervisor.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Self

from marless.app.cli.stack import SERVICES, LocalStack, StackOptions, owner_of
from marless.app.cli.supervision import STOP_S, Log
from marless.app.client.connection import STACK_FILE
from marless.core import private_files, regular_files
from marless.core.errors import MarlessError, SpecError, UnavailableError, denied
from marless.core.limits import MAX_SMALL_BYTES
from marless.core.log import structlog
from marless.fleet.launchers.registry import LAUNCHERS, parse
from marless.rpc.addresses import advertised, is_everywhere
from marless.rpc.concurrency import delays
from marless.rpc.process import configure_logging
from marless.rpc.roles import Role
from marless.rpc.security import Security

MODULE = "marless.app.cli.background"
"""The supervisor's module; its only argument is a `StackSettings`."""
START_S = 120.0
DOWN_S = 5 * STOP_S
_POLL_S = 0.02
_log = structlog.get_logger("marless.supervisor")


@dataclass(frozen=True, kw_only=True)
class StackSettings:
    """Settings of a stack in the background; other options of its services are MARLESS_* variables."""

    runs: Path
    listen: str = ""
    """Address at which the coordinator listens, host:port; "": a private unix socket."""
    advertise: str = ""
    """The address, or the host, that clients dial; "": `listen`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all services."""
    dashboard: int | None = None
    """Port of 127.0.0.1 at which a dashboard is served; None: there is none."""

    def to_json(self) -> str:
        """Encode for the command line of the supervisor."""
        return json.dumps(asdict(self) | {"runs": str(self.runs.absolute())})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of `to_json`."""
        given = json.loads(text)
        return cls(**given | {"runs": Path(given["runs"])})

    def check(self) -> None:
        """Raise SpecError for an address that clients cannot dial or that is not secure, or an unknown launcher."""
        if launcher := self.environment.get("MARLESS_LAUNCHER"):
            LAUNCHERS.find(parse(launcher).name)
        if not self.listen:
            if self.advertise:
                raise SpecError(f"--advertise {self.advertise}: set --listen, too, which is what clients then dial")
            return
        _, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise SpecError(f"--listen {self.listen}: give the host and a fixed port for clients, e.g. 127.0.0.1:7070")
        if is_everywhere(self.listen) and not self.advertise:
            raise SpecError(f"--listen {self.listen} means all addresses: set --advertise to the one that clients dial")
        given = {name: os.environ.get(f"MARLESS_{name.upper()}", "") for name in ("tls_cert", "tls_key", "tls_ca")}
        Security.of_process(Role.SERVICE, os.environ.get("MARLESS_TOKENS", ""), **given).server_credentials(self.listen)
        Security.of_client().channel_credentials(advertised(self.listen, self.advertise))


@dataclass(frozen=True, kw_only=True)
class RunningStack:
    """A running stack: the contents of stack.json."""

    pid: int
    """Process id of the supervisor."""
    coordinator: str
    """Address of the coordinator."""
    version: str
    """Version of marless."""


@dataclass(frozen=True)
class StackFolder:
    """The directory of a stack in the background, in the directory of the run folders."""

    path: Path

    @classmethod
    def of(cls, runs: Path) -> Self:
        """The stack's directory for a directory of run folders."""
        return cls(runs.absolute() / Path(STACK_FILE).parent)

    @property
    def logs(self) -> Path:
        """Directory of the logs."""
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """Directory of the parameter store's data."""
        return self.path / "store"

    @property
    def dashboard_token(self) -> Path:
        """The file of the dashboard's token, which stays the same at the next `up`."""
        return self.path / "dashboard.token"

    @property
    def log(self) -> Log:
        """The supervisor's log."""
        return Log(self.logs / "supervisor.log")

    @property
    def _file(self) -> Path:
        return self.path / Path(STACK_FILE).name

    def supervisor(self) -> int | None:
        """Process id of the supervisor, if one is running; it may still be starting, or stopping.

        Raises UnavailableError if the directory is another user's who lets nobody look into it.
        """
        try:
            return owner_of(self.data) or self._without_data()
        except OSError as error:
            raise UnavailableError(f"{denied(error)}; is it another user's? choose another --runs") from None

    def _without_data(self) -> int | None:
        """Process id of a supervisor whose lock was deleted with the store's directory while it runs."""
        standing = self.read()
        if standing is None:
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            # The id may be another process's by now, which only its command line tells; that ends with a zero byte,
            # so that the last part is empty.
            module, settings = Path(f"/proc/{standing.pid}/cmdline").read_bytes().split(b"\0")[-3:-1]
            if module == MODULE.encode() and StackSettings.from_json(settings.decode()).runs == self.path.parent:
                return standing.pid
        return None

    def read(self) -> RunningStack | None:
        """The contents of stack.json, which may be outdated; None if it cannot be read."""
        try:
            return RunningStack(**json.loads(regular_files.read(self._file, MAX_SMALL_BYTES)))
        except (MarlessError, ValueError, TypeError, RecursionError):
            return None

    def gave_up(self) -> str:
        """The error with which the last supervisor ended, or ""; call it only while none is running."""
        return self.log.last_words()

    def warnings(self) -> tuple[str, ...]:
        """What the parameter store has warned of since it was started."""
        return Log(self.logs / "param_store.log").advice()

    def standing(self) -> RunningStack | None:
        """The stack, if it is running and serving."""
        standing = self.read()
        return standing if standing and standing.pid == self.supervisor() else None

    def write(self, standing: RunningStack) -> None:
        """Replace stack.json."""
        # Commands read it at any moment, and must find all of it or what was there before.
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(standing)), encoding="utf-8")
        partial.replace(self._file)

    def clear(self) -> None:
        """Remove stack.json."""
        self._file.unlink(missing_ok=True)


def up(settings: StackSettings) -> tuple[RunningStack, bool]:
    """Start the stack unless it is running, and wait until it serves; returns it, and whether it was running before.

    Raises SpecError for invalid settings, UnavailableError with the reason if it cannot be started.
    """
    settings.check()
    folder = StackFolder.of(settings.runs)
    if standing := folder.standing():
        return standing, True
    supervisor = _spawn(settings, folder)
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        ended = supervisor.poll() is not None
        if standing := folder.standing():
            # Another `up` may have been faster: then its supervisor serves, and ours has ended.
            return standing, standing.pid != supervisor.pid
        if ended and folder.supervisor() is None:
            raise UnavailableError(f"{folder.gave_up() or 'the supervisor ended'} (log: {folder.log.path})")
        time.sleep(_POLL_S)
    raise UnavailableError(f"the services were not ready after {START_S:g} s; see {folder.logs}, and `marless doctor`")


def down(runs: Path) -> bool:
    """Stop the stack gracefully; returns False if none was running. Jobs remain on disk.

    Raises UnavailableError if it does not end in time, or is another user's.
    """
    folder = StackFolder.of(runs)
    pid = folder.supervisor()
    try:
        if pid is None:
            folder.clear()
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        whose = f"process {pid}, which supervises it," if pid else str(error.filename)
        raise UnavailableError(
            f"{whose} is another user's ({error.strerror}); ask them to stop it, or choose another --runs"
        ) from None
    give_up_s = time.monotonic() + DOWN_S
    while folder.supervisor() == pid:
        if time.monotonic() > give_up_s:
            raise UnavailableError(f"the supervisor, process {pid}, has not ended after {DOWN_S:g} s; `kill -9 {pid}`")
        time.sleep(_POLL_S)
    return True


async def supervise(settings: StackSettings) -> None:
    """Run the services until a signal arrives; raises as `LocalStack`, and UnavailableError for one
    that keeps dying.
    """
    configure_logging()
    settings.check()
    folder = StackFolder.of(settings.runs)
    stack = LocalStack(
        runs=settings.runs.absolute(),
        logs=folder.logs,
        data=folder.data,
        options=StackOptions(
            listen=settings.listen,
            advertise=settings.advertise,
            environment=dict.fromkeys(SERVICES, settings.environment),
            told=_log.warning,
        ),
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with stack:
        failing, stopping = asyncio.create_task(stack.failed()), asyncio.create_task(stop.wait())
        serving = asyncio.create_task(stack.serving())
        showing: asyncio.Task[None] | None = None
        try:
            await asyncio.wait([failing, stopping, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
                folder.write(RunningStack(pid=os.getpid(), coordinator=stack.coordinator, version=version("marless")))
                _log.info("serving", coordinator=stack.coordinator)
                if settings.dashboard is not None:
                    showing = asyncio.create_task(_keep_dashboard(settings.dashboard, folder, stack.coordinator))
                await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise failing.result()
        finally:
            # While the services still run, so that no command finds an address at which they are about to stop.
            folder.clear()
            tasks = [task for task in (failing, stopping, serving, showing) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_dashboard(port: int, folder: StackFolder, coordinator: str) -> None:
    """Serve the dashboard in a process of its own, which is started again whenever it ends, and ends with this one."""
    command = [sys.executable, "-P", "-m", "marless", "dashboard", "--coordinator", coordinator]
    command += ["--listen", f"127.0.0.1:{port}", "--token-file", str(folder.dashboard_token), "--until-eof"]
    log, pauses = Log(folder.logs / "dashboard.log"), delays(first_s=0.5, longest_s=30.0)
    log.put_aside()
    while True:
        with log.open() as file:
            # Nothing is written to its standard input, whose end it notices when this process ends, however it does.
            process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=file, stderr=file)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        _log.warning("dashboard.ended", code=code, reason=log.last_words())
        await asyncio.sleep(next(pauses))


def _spawn(settings: StackSettings, folder: StackFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own, so that it outlives this command and its terminal."""
    try:
        private_files.directory(folder.logs)
        if folder.supervisor() is None:
            # A new log, in which `gave_up` does not find the error of an earlier supervisor.
            folder.log.put_aside()
        with folder.log.open() as log:
            return subprocess.Popen(
                # -P leaves the working directory out of the path, where a module of anybody could lie.
                [sys.executable, "-P", "-m", MODULE, settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise UnavailableError(f"{denied(error)}; the services cannot be started") from None


if __name__ == "__main__":
    try:
        asyncio.run(supervise(StackSettings.from_json(sys.argv[1])))
    except MarlessError as gone:
        print(gone, file=sys.stderr)  # noqa: T201  # the final error message, for people
        sys.exit(1)
