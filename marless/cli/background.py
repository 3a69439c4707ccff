"""`marless up` and `marless down`: the four services in the background, for the run folders of one directory.

    <runs>/.stack/stack.json   where the coordinator is, while it serves
    <runs>/.stack/logs/        one file a service, and the supervisor's
    <runs>/.stack/store/       the parameter store's data, and who uses them

The supervisor is a process of its own: it starts the services, keeps them alive, and stops them. Jobs outlive it: the
next one goes on with them.
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

import structlog

from marless import private_files
from marless.cli.stack import SERVICES, LocalStack, StackOptions, owner_of
from marless.cli.supervision import STOP_S, Log
from marless.client.address import STACK_FILE
from marless.errors import MarlessError, SpecError, UnavailableError
from marless.rpc.process import configure_logging
from marless.rpc.roles import Role
from marless.rpc.security import Security

START_S = 120.0
DOWN_S = 5 * STOP_S
_POLL_S = 0.02
_ANY = ("", "0.0.0.0", "::", "[::]")
_log = structlog.get_logger("marless.supervisor")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a stack in the background is told; the rest of its services' options are MARLESS_* variables."""

    runs: Path
    listen: str = ""
    """Where the coordinator listens, host:port; "": on a private socket."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of all services."""

    def to_json(self) -> str:
        """For the command line of a supervisor."""
        return json.dumps(asdict(self) | {"runs": str(self.runs.absolute())})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` wrote."""
        given = json.loads(text)
        return cls(**given | {"runs": Path(given["runs"])})

    def check(self) -> None:
        """Raise SpecError for an address that clients could not find again, or that is not safe."""
        if not self.listen:
            return
        host, _, port = self.listen.rpartition(":")
        if host in _ANY or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise SpecError(
                f"--listen {self.listen}: give the host:port that clients are to use, with a port of its own, e.g. "
                "127.0.0.1:7070"
            )
        given = {name: os.environ.get(f"MARLESS_{name.upper()}", "") for name in ("tls_cert", "tls_key", "tls_ca")}
        Security.of_process(Role.SERVICE, os.environ.get("MARLESS_TOKENS", ""), **given).server_credentials(self.listen)
        Security.of_client().channel_credentials(self.listen)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A stack that is up: the content of stack.json."""

    pid: int
    """Of the supervisor."""
    coordinator: str
    """Address."""
    version: str
    """Of marless."""


@dataclass(frozen=True)
class StackFolder:
    """What a stack in the background leaves in the directory of the run folders."""

    path: Path

    @classmethod
    def of(cls, runs: Path) -> Self:
        """That of one directory of run folders."""
        return cls(runs.absolute() / Path(STACK_FILE).parent)

    @property
    def logs(self) -> Path:
        """Directory of the logs."""
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """Directory of the store's data."""
        return self.path / "store"

    @property
    def log(self) -> Log:
        """The supervisor's."""
        return Log(self.logs / "supervisor.log")

    @property
    def _file(self) -> Path:
        return self.path / Path(STACK_FILE).name

    def supervisor(self) -> int | None:
        """The process that supervises, if there is one; it may still be starting, or stopping."""
        return owner_of(self.data)

    def read(self) -> Standing | None:
        """What stack.json says, whether that is still true or not."""
        try:
            return Standing(**json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def gave_up(self) -> str:
        """Why the last supervisor ended, if it did so by itself; asked while there is none."""
        return self.log.last_words() if self.log.path.exists() else ""

    def standing(self) -> Standing | None:
        """The stack, if it is up and serving."""
        standing = self.read()
        return standing if standing and standing.pid == self.supervisor() else None

    def write(self, standing: Standing) -> None:
        """Replace stack.json."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(standing)), encoding="utf-8")
        partial.replace(self._file)

    def clear(self) -> None:
        """Remove stack.json."""
        self._file.unlink(missing_ok=True)


def up(settings: Settings) -> tuple[Standing, bool]:
    """The stack that is up, once it serves; and whether it was up before.

    Raises SpecError for settings that cannot work, UnavailableError with the reason if it cannot be started.
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
            return standing, standing.pid != supervisor.pid
        if ended and folder.supervisor() is None:
            raise UnavailableError(f"{folder.gave_up() or 'the supervisor ended'} (log: {folder.log.path})")
        time.sleep(_POLL_S)
    raise UnavailableError(f"the services do not serve after {START_S:g} s; see {folder.logs}, and `marless doctor`")


def down(runs: Path) -> bool:
    """Stop the stack in an orderly way; False if none was up. Jobs stay as they are on the disk.

    Raises UnavailableError if it does not end.
    """
    folder = StackFolder.of(runs)
    pid = folder.supervisor()
    if pid is None:
        folder.clear()
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    give_up_s = time.monotonic() + DOWN_S
    while folder.supervisor() == pid:
        if time.monotonic() > give_up_s:
            raise UnavailableError(f"the supervisor, process {pid}, has not ended after {DOWN_S:g} s; `kill -9 {pid}`")
        time.sleep(_POLL_S)
    return True


async def supervise(settings: Settings) -> None:
    """Run the services until a signal comes; raises what `LocalStack` does, and UnavailableError if one is given up."""
    configure_logging()
    settings.check()
    folder = StackFolder.of(settings.runs)
    stack = LocalStack(
        runs=settings.runs.absolute(),
        logs=folder.logs,
        data=folder.data,
        options=StackOptions(
            listen=settings.listen, environment=dict.fromkeys(SERVICES, settings.environment), told=_log.warning
        ),
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with stack:
        failing, stopping = asyncio.create_task(stack.failed()), asyncio.create_task(stop.wait())
        serving = asyncio.create_task(stack.serving())
        try:
            await asyncio.wait([failing, stopping, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
                folder.write(Standing(pid=os.getpid(), coordinator=stack.coordinator, version=version("marless")))
                _log.info("serving", coordinator=stack.coordinator)
                await asyncio.wait([failing, stopping], return_when=asyncio.FIRST_COMPLETED)
            if failing.done():
                raise failing.result()
        finally:
            folder.clear()
            for task in (failing, stopping, serving):
                task.cancel()
            await asyncio.gather(failing, stopping, serving, return_exceptions=True)


def _spawn(settings: Settings, folder: StackFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor in a session of its own: it outlives this command and its terminal."""
    try:
        private_files.directory(folder.logs)
        if folder.supervisor() is None:
            folder.log.put_aside()
        with folder.log.open() as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "marless.cli.background", settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
    except OSError as error:
        raise UnavailableError(f"{error.filename}: {error.strerror}; the services cannot be started") from None


if __name__ == "__main__":
    try:
        asyncio.run(supervise(Settings.from_json(sys.argv[1])))
    except MarlessError as gone:
        print(gone, file=sys.stderr)  # noqa: T201  # the last words of a process, for people
        sys.exit(1)
