"""Provides a Redis: an external one by URL, or a local server that the store starts, watches and stops.

A local server listens on a private unix socket only, requires a password, and appends every write to its log before it
answers, so that acknowledged writes survive kill -9. If it dies or does not answer, it is started again. If the store
dies, the next store on the same data directory takes the server over; if there is none, a guard process ends it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from marless.core import private_files
from marless.core.errors import SpecError, UnavailableError
from marless.core.log import structlog
from marless.rpc.concurrency import delays
from marless.rpc.own_redis import STORE, SUPERVISOR, RedisUsers, find_binary
from marless.services.param_store import redis_guard

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
ORPHAN_S = 10
"""Seconds from the death of a store until its Redis is ended, unless another store takes it over."""
FULL_DISK_BYTES = 32 * 2**20
_FIRST_RESTART_DELAY_S, _LONGEST_RESTART_DELAY_S = 0.05, 2.0
QUESTION_S = 5.0
"""Seconds between two questions whether a server answers."""
SILENT_S = 30.0
"""Seconds after which a server that does not answer is ended."""
_PEER = struct.Struct("3i")
"""Linux's `struct ucred` of the process at the other end of a unix socket: its id, user and group."""
_log = structlog.get_logger("marless.param_store")


@dataclass(frozen=True)
class RedisOptions:
    """Which Redis to use, or how to start one."""

    url: str = field(default="", repr=False)
    """URL of an external Redis; "": a local server is started, to which the next two fields apply."""
    data_dir: str = ""
    """Directory for the data of a local server; "": a temporary one."""
    maxmemory: str = "1gb"
    """Memory limit of a local server, in Redis's notation; beyond it, publishes are refused."""
    password_file: str = ""
    """File with the password for `url`, in place of one in the URL."""
    insecure: bool = False
    """Allows a `url` beyond this machine without TLS, without verified certificates, or without a password."""


@dataclass(frozen=True)
class Provided:
    """A Redis to connect to, with its credentials."""

    url: str = field(repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    insecure: bool = False
    """See `RedisOptions`."""
    trouble: Callable[[], str] = lambda: "it is run by somebody else"
    """Returns the likely cause, as a sentence, when the server cannot be reached."""
    restarts: Callable[[], int] = lambda: 0
    """Returns how often the server was restarted after it had died."""


@asynccontextmanager
async def provided(options: RedisOptions) -> AsyncIterator[Provided]:
    """Provide a running Redis while the context lasts; raises UnavailableError or SpecError with the reason."""
    async with AsyncExitStack() as stack:
        if options.url:
            yield Provided(options.url, password=_password(options.password_file), insecure=options.insecure)
            return
        data_dir = options.data_dir or stack.enter_context(tempfile.TemporaryDirectory(prefix="marless-"))
        home = _private(Path(data_dir, "redis"))
        # Locked before the passwords are read or made, so that two stores do not each make their own.
        stack.enter_context(_locked(home))
        with _usable(home):
            users = RedisUsers.of(home)
        server = LocalRedis(find_binary(), home, options.maxmemory, users, lambda: stack.enter_context(_locked(home)))
        url = await stack.enter_async_context(server.running())
        yield Provided(url, STORE, users.passwords[STORE], trouble=server.trouble, restarts=lambda: server.restarts)


def _password(path: str) -> str:
    if not path:
        return ""
    try:
        password = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SpecError(f"--redis-password-file {path}: {why}") from None
    if not password:
        raise SpecError(f"--redis-password-file {path}: it is empty; write the password into it")
    return password


class LocalRedis:
    """A Redis server that this process starts in one data directory, or takes over from an earlier store."""

    def __init__(self, binary: Path, home: Path, maxmemory: str, users: RedisUsers, lock: Callable[[], object]) -> None:
        """`lock` locks the data directory anew, after somebody has deleted it."""
        self._binary = binary
        self._home = home
        self._maxmemory = maxmemory
        self._users = users
        self._socket = home / "redis.sock"
        if len(os.fsencode(self._socket)) > private_files.SOCKET_PATH_BYTES:
            short = private_files.home_of_socket(f"{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}.sock")
            self._socket = _private(short.parent) / short.name
        self._lock = lock
        self._process: asyncio.subprocess.Process | None = None
        self._guard: asyncio.subprocess.Process | None = None
        self.restarts = 0
        """How often it was restarted after it had died."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Run the server while the context lasts; yields its URL, and restarts the server whenever it dies."""
        try:
            line = await self._up()
        except BaseException:
            await self._kill()  # nobody would end it: the guard is not there yet
            raise
        try:
            async with self._guarded():
                self._tell_guard(line)
                watching = asyncio.create_task(self._watch(line))
                try:
                    yield f"unix://{self._socket}"
                finally:
                    watching.cancel()
                    await asyncio.gather(watching, return_exceptions=True)
        finally:
            await self._stop()

    def trouble(self) -> str:
        """The likely cause, as a sentence, when the server cannot be reached."""
        try:
            disk = os.statvfs(self._home)
        except OSError as error:
            return f"{self._home} cannot be used ({error.strerror}); if it was deleted, it is made anew, without data"
        if disk.f_flag & os.ST_RDONLY:
            return f"the disk of {self._home} is mounted read-only: mount it writable, and it comes back by itself"
        if disk.f_bavail * disk.f_frsize < FULL_DISK_BYTES:
            return f"the disk of {self._home} is full: make room, and it comes back by itself"
        return f"it is being started again, {self._home / 'redis.log'} says why"

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Run a guard process meanwhile, which ends Redis if this process dies; it notices by the end of its stdin."""
        # Isolated and without `site`, it needs little memory; in a session of its own, no Ctrl-C reaches it.
        guard = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            redis_guard.__file__,
            self._home,
            self._socket,
            str(ORPHAN_S),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        self._guard = guard
        try:
            yield
        finally:
            self._guard = None
            guard.kill()
            await guard.wait()

    def _tell_guard(self, line: _RedisConnection) -> None:
        """Tell the guard which process is Redis now."""
        if self._guard and self._guard.stdin and (process := line.process):
            self._guard.stdin.write(f"{process}\n".encode())

    async def _watch(self, line: _RedisConnection) -> None:
        while True:
            hung = await line.lost(self._socket)
            _log.error("redis.died", reason=hung or await self._cause())
            pauses = delays(first_s=_FIRST_RESTART_DELAY_S, longest_s=_LONGEST_RESTART_DELAY_S)
            while True:
                try:
                    line = await self._up()
                    break
                except (UnavailableError, OSError) as error:
                    _log.error("redis.down", error=str(error), next_try_s=round(delay_s := next(pauses), 3))
                    await asyncio.sleep(delay_s)
            self.restarts += 1
            _log.info("redis.restarted")
            self._tell_guard(line)

    async def _up(self) -> _RedisConnection:
        # A store that was killed has left its Redis running, with the data loaded.
        if line := await _RedisConnection.open(self._socket, self._users):
            _log.info("redis.adopted", socket=str(self._socket))
            return line
        private_files.directory(self._socket.parent)  # of a data directory with a long path, it is a temporary one
        if not self._users.acl_file.exists():
            private_files.directory(self._home)  # somebody has deleted it, and the data: jobs have checkpoints
            self._lock()
            self._users.write()
        path = self._home / "redis.log"
        try:
            log = private_files.open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror}; Redis cannot be started") from None
        try:
            self._process = await asyncio.create_subprocess_exec(
                self._binary,
                *self._arguments(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # In a session of its own, so that Ctrl-C does not reach it, and publishes in progress can finish.
                start_new_session=True,
            )
        finally:
            os.close(log)
        return await self._answering(self._process)

    def _arguments(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._home),
            "loglevel": "warning",
            # The log is the only copy, and it is synced before each answer: with `everysec`, kill -9 loses acknowledged
            # writes.
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory": self._maxmemory,
            "maxmemory-policy": "noeviction",
            "aclfile": str(self._users.acl_file),
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    async def _answering(self, process: asyncio.subprocess.Process) -> _RedisConnection:
        give_up = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up:
            if line := await _RedisConnection.open(self._socket, self._users):
                return line
            if process.returncode is not None:
                raise UnavailableError(f"{self._binary} ended with code {process.returncode}: {self._last_words()}")
            await asyncio.sleep(0.001)
        await self._kill()  # it would be in the way of the next one
        raise UnavailableError(f"{self._binary} did not answer within {START_TIMEOUT_S:g} s: {self._last_words()}")

    async def _stop(self) -> None:
        with suppress(UnavailableError):
            if line := await _RedisConnection.open(self._socket, self._users):
                await line.shut_down()
        if self._process and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                await self._kill()

    async def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _cause(self) -> str:
        with suppress(TimeoutError):
            if self._process and (code := await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)) < 0:
                return f"killed by signal {-code}"
        return self._last_words()

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = (self._home / "redis.log").read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "it logged nothing")
        return "it left no log"


@dataclass(frozen=True)
class _RedisConnection:
    """An idle connection to the server, whose end shows that the server has ended."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, path: Path, users: RedisUsers) -> _RedisConnection | None:
        """Connect, and wait until the server has loaded its data; None if there is no server.

        A server without passwords, which everyone could write to, is ended; then None is returned.
        Raises UnavailableError for a server that hangs, or that refuses this store's passwords.
        """
        try:
            line = cls(*await asyncio.open_unix_connection(str(path)))
        except OSError:
            return None
        try:
            known, answer = await asyncio.wait_for(line._greeted(users), START_TIMEOUT_S)
        except TimeoutError:
            raise UnavailableError(f"the Redis at {path} does not answer; end that process first") from None
        if answer.startswith(b"-NOAUTH"):
            await line.close()
            raise UnavailableError(f"the Redis at {path} does not know its store's passwords; end that process first")
        if known and answer.startswith(b"+PONG"):
            return line
        if answer.startswith(b"+PONG"):
            _log.warning("redis.unprotected", socket=str(path), advice="it is started again with users")
            await line.shut_down()
        await line.close()
        return None

    async def _greeted(self, users: RedisUsers) -> tuple[bool, bytes]:
        """Whether AUTH succeeded, and the reply to PING once data are loaded; (False, b"") if the server hung up."""
        with suppress(ConnectionError):
            self.writer.write(f"AUTH {SUPERVISOR} {users.passwords[SUPERVISOR]}\r\n".encode())
            known = (await self.reader.readline()).startswith(b"+OK")
            while True:
                self.writer.write(b"PING\r\n")
                answer = await self.reader.readline()
                if not answer.startswith(b"-LOADING"):
                    return known, answer
                await asyncio.sleep(0.01)
        return False, b""

    async def gone(self) -> None:
        with suppress(ConnectionError):
            await self.reader.read()
        await self.close()

    async def lost(self, path: Path) -> str:
        """Wait until the server has ended, and end one that does not answer or has lost its socket; returns why.

        Returns "" if it has ended by itself.
        """
        answered = asyncio.Event()
        reading = asyncio.create_task(self._read(answered))
        silent_s = 0.0
        try:
            while True:
                answered.clear()
                # Silence is counted in questions, not by a clock, so that time in which this process did not run is not
                # held against Redis.
                self.writer.write(b"PING\r\n")
                # This returns as soon as the server has ended, because its end of the connection closes then.
                await asyncio.wait([reading], timeout=QUESTION_S)
                if reading.done():
                    return ""
                silent_s = 0.0 if answered.is_set() else silent_s + QUESTION_S
                if silent_s >= SILENT_S or not path.exists():  # noqa: ASYNC240  # it does not block
                    if pid := self.process:  # what it has acknowledged is on the disk
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                        await reading
                    return f"it did not answer for {silent_s:g} s" if silent_s else f"something removed {path}"
        finally:
            reading.cancel()
            await self.close()

    async def _read(self, answered: asyncio.Event) -> None:
        with suppress(ConnectionError):
            while await self.reader.readline():
                answered.set()

    @property
    def process(self) -> int:
        """Process id of the server; 0 if it runs in another PID namespace."""
        other = self.writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return max(int(_PEER.unpack(other)[0]), 0)

    async def shut_down(self) -> None:
        # Without a snapshot: the log has every write already.
        self.writer.write(b"SHUTDOWN NOSAVE\r\n")
        with suppress(TimeoutError):
            await asyncio.wait_for(self.gone(), STOP_TIMEOUT_S)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def _private(directory: Path) -> Path:
    with _usable(directory):
        return private_files.directory(directory)


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock the data directory, as two servers must never append to one log; the lock ends with this process."""
    with _usable(home):
        # For reading only: a file that is open for writing would keep its disk from being mounted anew.
        descriptor = private_files.open_own(home / "lock", os.O_RDONLY | os.O_CREAT)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"another param_store uses {home}; give another --data-dir") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _usable(directory: Path) -> Iterator[None]:
    """Turn an OSError of the block into a SpecError that names the path."""
    try:
        yield
    except OSError as error:
        path = error.filename or directory
        raise SpecError(f"{path} cannot be used ({error.strerror}); give another --data-dir") from None
