"""Whether the coordinator could run a job now: its peers answer, and its run folders can be written."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import structlog

from marless.rpc.client import Peer
from marless.rpc.health import is_serving

PERIOD_S = 1.0
EAGER_PERIOD_S = 0.2
"""While something is missing, which is mostly at the start."""
_PROBE_BYTES = 4096
_log = structlog.get_logger("coordinator")


class Readiness:
    """Looks about once a second; an async context manager. Whoever asks is answered from the last look."""

    def __init__(self, peers: Mapping[str, Peer], runs: Path) -> None:
        self._peers = peers
        self._runs = runs
        self._missing: tuple[str, ...] = (*peers, "runs")
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Readiness:
        await self._look()
        self._looking = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._looking:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def ready(self) -> bool:
        """True if nothing was missing."""
        return not self._missing

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where each peer is."""
        return {name: peer.address for name, peer in self._peers.items()}

    def serving(self, peer: str) -> bool:
        """True if this peer was there."""
        return peer not in self._missing

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(EAGER_PERIOD_S if self._missing else PERIOD_S)
            await self._look()

    async def _look(self) -> None:
        writable = asyncio.to_thread(_is_writable, self._runs)
        *answers, ours = await asyncio.gather(*map(is_serving, self._peers.values()), writable)
        missing = tuple(name for name, there in zip((*self._peers, "runs"), (*answers, ours), strict=True) if not there)
        if missing != self._missing:
            _log.info("coordinator.readiness", missing=missing)
        self._missing = missing


def _is_writable(directory: Path) -> bool:
    """True if there is room for a small file, which is gone at once."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"\0" * _PROBE_BYTES)
    except OSError:
        return False
    return True
