"""Runs the four services on this machine, as supervised child processes that end with this one."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from marless.app.cli.service_process import STARTED, Starter
from marless.app.cli.supervision import SERVING, Endpoint, Log, RestartLimits, SupervisedService, statuses
from marless.core import private_files
from marless.core.errors import JobStateError, UnavailableError, denied
from marless.core.private_files import Claim, UntrustedPathError
from marless.rpc.addresses import advertised
from marless.rpc.client import LEARNER_BYTES, SERVICE_FILES, allow_many_files, check_process_limits
from marless.rpc.security import SECRET_VARIABLES, Security

SERVICES = ("param_store", "learner_pool", "actor_pool", "coordinator")
"""Names of the services: each depends only on earlier ones."""
LEFTOVER_S = 60.0
"""Seconds that the services of a killed stack may take to end."""
PROBE_S = 0.5
"""Seconds to wait for the lock on `data`, which a process asking for the owner may hold briefly."""
POLL_S = 0.05
_OWNER, _LEASE = "owner", "services"
_SOCKETS = 8 * "[0-9a-f]"
"""Glob pattern of the names of socket directories."""
_PUBLIC = ("MARLESS_TOKENS", "MARLESS_TLS_CERT", "MARLESS_TLS_KEY", "MARLESS_TLS_CLIENT_CA")
"""Secrets of a service that other machines can reach. Services on private sockets do not need them."""
_REDIS = "MARLESS_REDIS_"


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Options of a stack besides its directories."""

    listen: str = ""
    """Address at which the coordinator listens, host:port; "": a private unix socket, like the other services."""
    advertise: str = ""
    """The address, or the host, that clients dial to reach the coordinator; "": `listen`."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Service name → environment variables in addition to this process's own."""
    restarts: RestartLimits = field(default_factory=RestartLimits)
    told: Callable[[str], None] = lambda _: None
    """Called with a message whenever a service was restarted."""
    starter: Starter | None = None
    """What starts the services, until the stack ends; None: a starter of its own."""


class LocalStack:
    """The running services; an async context manager. Inside it, `coordinator` is the address to submit jobs to.

    A service that dies, does not answer or has lost its socket is restarted at the same address. Sockets are in a
    directory that only this user can enter. Logs go to `logs`, one file per service. `data` is the parameter store's
    directory and belongs to one stack at a time.
    """

    def __init__(self, *, runs: Path, logs: Path, data: Path, options: StackOptions | None = None) -> None:
        self._runs = runs
        self._logs = logs
        self._data = data
        self._options = options or StackOptions()
        self._sockets = socket_directory(data)
        self._services: dict[str, SupervisedService] = {}
        self._keeping: dict[str, asyncio.Task[str]] = {}
        self._held = AsyncExitStack()
        self._starter = self._options.starter or Starter()
        self._lease: IO[str]
        self._claimed: int
        """Lock of the socket directory, inherited by the services, so that it is not swept before they have ended."""

    @property
    def coordinator(self) -> str:
        """Address of the coordinator."""
        return self.address("coordinator")

    @property
    def security(self) -> Security:
        """Tokens and TLS files for calls to the coordinator."""
        if not self._options.listen:
            return Security()
        return Security.of_client()

    @property
    def restarts(self) -> Mapping[str, int]:
        """Number of restarts of each service."""
        return {name: service.restarts for name, service in self._services.items()}

    def address(self, service: str) -> str:
        """Address to dial for a service; depends only on `data`, or on the `listen` and `advertise` options."""
        if service == "coordinator" and self._options.listen:
            return advertised(self._options.listen, self._options.advertise)
        return self._listen(service)

    def _listen(self, service: str) -> str:
        if service == "coordinator" and self._options.listen:
            return self._options.listen
        return f"unix:{self._sockets / service}.sock"

    def pid(self, service: str) -> int:
        """Process id of a service."""
        return self._services[service].pid

    def prepare(self, service: str, **environment: str) -> None:
        """Set environment variables for the next start of a service only."""
        self._services[service].next_environment = environment

    async def __aenter__(self) -> LocalStack:
        """Start all services.

        Raises UnavailableError, with the reason, if that fails, and JobStateError if another stack uses `data`.
        """
        allow_many_files()
        check_process_limits(files=SERVICE_FILES, address_bytes=LEARNER_BYTES)
        try:
            await self._hold()
            self._held.callback(self._starter.end)
            for name in STARTED:
                await self._start(name)
        except OSError as error:
            await self._stop_all()
            raise UnavailableError(f"{denied(error)}; the services cannot be started") from None
        except BaseException:
            await self._stop_all()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_all()

    async def serving(self) -> None:
        """Wait until the coordinator, and with it all services, is ready for jobs."""
        async with aclosing(statuses(self.coordinator, self.security)) as said:
            while await anext(said) != SERVING:
                pass

    async def failed(self) -> UnavailableError:
        """Wait until a service is given up because it keeps dying; returns the error for the user."""
        done, _ = await asyncio.wait(self._keeping.values(), return_when=asyncio.FIRST_COMPLETED)
        try:
            return UnavailableError(next(iter(done)).result())
        except OSError as error:
            return UnavailableError(f"{denied(error)}; a service cannot be started again")

    async def _start(self, name: str) -> None:
        service = SupervisedService(
            name,
            endpoint=Endpoint(
                self._listen(name), self.address(name), self.security if name == "coordinator" else Security()
            ),
            environment=self._environment(name),
            log=Log(self._logs / f"{name}.log"),
            limits=self._options.restarts,
            told=self._options.told,
            starter=self._starter,
            inherited=(self._lease.fileno(), self._claimed),
        )
        await service.start()
        self._services[name] = service
        self._keeping[name] = asyncio.create_task(service.keep_alive())

    def _environment(self, name: str) -> dict[str, str]:
        public = name == "coordinator" and bool(self._options.listen)
        hidden = set(SECRET_VARIABLES).difference(_PUBLIC if public else ())
        redis = {variable for variable in os.environ if variable.startswith(_REDIS)}
        # Only the parameter store connects to a Redis, so nobody else needs to know its password.
        hidden = hidden - redis if name == "param_store" else hidden | redis
        inherited = {variable: value for variable, value in os.environ.items() if variable not in hidden}
        return (
            # A worker of each kind imports what it needs while the services start; the user's
            # own setting, which follows, wins.
            {"MARLESS_WARM_WORKERS": "1"}
            | inherited
            | {
                "MARLESS_ACTOR_POOL": self.address("actor_pool"),
                "MARLESS_LEARNER_POOL": self.address("learner_pool"),
                "MARLESS_PARAM_STORE": self.address("param_store"),
                "MARLESS_RUNS": str(self._runs),
                "MARLESS_DATA_DIR": str(self._data),
                "MARLESS_ADVERTISE": self._options.advertise if public else "",
                **self._options.environment.get(name, {}),
            }
        )

    async def _hold(self) -> None:
        """Create the directories, and lock them until this stack and all its services have ended."""
        for directory in (self._logs, self._data):
            private_files.parents(directory / "file")
        if (owner := await _lock(self._data / _OWNER, PROBE_S)) is None:
            raise JobStateError(f"{self._data} is in use by the services of process {owner_of(self._data)}")
        self._held.enter_context(owner)
        owner.write(str(os.getpid()))
        owner.flush()
        if (lease := await _lock(self._data / _LEASE, LEFTOVER_S)) is None:
            raise UnavailableError(
                f"services of an earlier start are still running; `fuser -k {self._data / _LEASE}` ends them"
            )
        self._held.enter_context(lease)
        self._lease = lease
        for name in SERVICES:
            Log(self._logs / f"{name}.log").put_aside()
        await self._claim_sockets()

    async def _claim_sockets(self) -> None:
        """Claim the socket directory, and remove directories that killed stacks have left."""
        give_up_s = time.monotonic() + LEFTOVER_S
        while (claim := self._claim()) is None:
            # Services of an earlier start hold it. Their lock in `data` is free, because `data` was deleted.
            if time.monotonic() > give_up_s:
                raise UnavailableError(
                    f"services of an earlier start are still running, though {self._data} has been deleted; "
                    f"`fuser -k {self._sockets / private_files.LOCK}` ends them"
                )
            await asyncio.sleep(POLL_S)
        self._held.callback(claim.release)
        self._claimed = claim.lock

    def _claim(self) -> Claim | None:
        """The socket directory; None while others use it."""
        try:
            private_files.sweep(private_files.directory(self._sockets.parent), _SOCKETS)
            return Claim.make(self._sockets)
        except BlockingIOError:
            return None
        except UntrustedPathError as error:
            raise UnavailableError(
                f"{denied(error)}; set TMPDIR to a directory of yours, for the services' sockets"
            ) from None

    async def _stop_all(self) -> None:
        """Stop the services in reverse start order, so that each can still reach those it depends on. Idempotent."""
        try:
            for name in reversed(SERVICES):
                if keeping := self._keeping.pop(name, None):
                    # Else its end would be taken for a death, and it would be started again.
                    keeping.cancel()
                    await asyncio.gather(keeping, return_exceptions=True)
                if service := self._services.get(name):
                    await service.stop()
        finally:
            await self._held.aclose()


def owner_of(data: Path) -> int | None:
    """Process id of the running stack that uses a directory; None if there is none. Raises OSError."""
    path = data / _OWNER
    if not path.exists():
        return None
    with os.fdopen(private_files.open_readable(path), encoding="utf-8") as file:
        # Shared, so that two processes that ask at once do not take each other for the owner.
        if _locks(file, fcntl.LOCK_SH):
            return None
        name = file.read()
        return int(name) if name else None  # it is just starting and has not written its id yet


async def _lock(path: Path, patience_s: float) -> IO[str] | None:
    """Lock a file until it is closed here and by all processes that inherit it; None if it stays locked by others."""
    give_up_s = time.monotonic() + patience_s
    # Not emptied when it is opened: until the lock is ours, it holds the id of the owner.
    descriptor = private_files.open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    file = os.fdopen(descriptor, "a", encoding="utf-8")
    while not _locks(file, fcntl.LOCK_EX):
        if time.monotonic() > give_up_s:
            file.close()
            return None
        await asyncio.sleep(POLL_S)
    # The id of an earlier owner must not be read as that of the new one, which writes its own next.
    file.truncate(0)
    return file


def _locks(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def socket_directory(data: Path) -> Path:
    """The socket directory of a stack: determined by `data`, private to this user, and with a short enough path."""
    name = hashlib.sha256(os.fsencode(data.absolute())).hexdigest()[:8]
    return private_files.home_of_socket(f"{name}/{max(SERVICES, key=len)}.sock").parent
