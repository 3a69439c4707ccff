"""The parameter store as a process with a Redis of its own. Either can be killed; both come back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from types import TracebackType

from redis.asyncio import Redis
from redis.exceptions import RedisError

from marless.rpc.own_redis import PASSWORDS_FILE, STORE

KEEP_ALL = 10**6
STOP_S = 30.0


class StoreProcess:
    """An async context manager; a store that ends is started again on the same address and data."""

    def __init__(
        self, place: Path, *, before: tuple[str, ...] = (), data: Path | None = None, address: str = ""
    ) -> None:
        """`before`: a command that the store's own is handed to. `address`: by default a unix socket in `place`."""
        self.address = address or f"unix:{place}/store.sock"
        self._data = data or place / "data"
        self._log = place / "store.log"
        self._command = (
            *(
                *before,
                sys.executable,
                "-m",
                "marless.services.param_store",
                "--listen",
                self.address,
                "--exit-with-stdin",
            ),
            *("--data-dir", str(self._data), "--keep", str(KEEP_ALL)),
        )
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StoreProcess:
        self._process = await self._start()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper and self._process
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process.returncode is None:
            self._process.terminate()
        await asyncio.wait_for(self._process.wait(), STOP_S)

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def kill(self) -> None:
        """Kill the store; its Redis goes on."""
        assert self._process
        if self._process.returncode is None:
            self._process.kill()

    async def kill_redis(self) -> bool:
        """Kill Redis; False if it is dead already."""
        try:
            passwords = json.loads((self._data / "redis" / PASSWORDS_FILE).read_text())
        except FileNotFoundError:
            return False
        redis = Redis.from_url(
            f"unix://{self._data}/redis/redis.sock", username=STORE, password=passwords[STORE], retry=None
        )
        try:
            os.kill((await redis.info("server"))["process_id"], signal.SIGKILL)
        except (RedisError, ProcessLookupError):
            return False
        finally:
            await redis.aclose()
        return True

    async def _start(self) -> asyncio.subprocess.Process:
        with self._log.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log
            )

    async def _keep(self) -> None:
        while True:
            assert self._process
            await self._process.wait()
            self._process = await self._start()
