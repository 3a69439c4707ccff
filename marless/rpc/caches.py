"""Reads of weights by actors: from a cache of the param_store near by, and from the store if no cache answers."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

from marless.core.errors import MarlessError, NotFoundError, OverloadedError
from marless.core.log import structlog
from marless.rpc.client import Peer
from marless.rpc.param_store import ParamStore, StoredVersion
from marless.rpc.security import Security

CACHE_S = 20.0
"""Seconds that a read from a cache may take; a cache whose process hangs is given up sooner, by its connection."""
REST_S = 10.0
"""Seconds for which a cache that has failed is not asked."""
_log = structlog.get_logger("marless.caches")


class Caches:
    """Reads from one of several caches, or from the store. Whatever a cache does wrong, the store's answer counts."""

    def __init__(self, store: ParamStore, addresses: Sequence[str], security: Security, reader: str) -> None:
        """`reader` is the name of this reader, by which readers spread over the caches."""
        self._store = store
        first = zlib.crc32(reader.encode()) % max(len(addresses), 1)
        self._caches = [_Cache(address, security) for address in (*addresses[first:], *addresses[:first])]

    async def get(
        self, job: str, versions: Mapping[str, int], parts: Sequence[str], *, epoch: int
    ) -> dict[str, StoredVersion]:
        """Get versions as `ParamStore.get` does."""
        for cache in self._usable():
            try:
                return await cache.store.get(job, versions, parts, epoch=epoch)
            except MarlessError as trouble:
                cache.failed(trouble)
        return await self._store.get(job, versions, parts, epoch=epoch)

    def _usable(self) -> Iterator[_Cache]:
        now_s = time.monotonic()
        return (cache for cache in self._caches if cache.rests_until_s <= now_s)

    async def close(self) -> None:
        """Close all connections to caches."""
        for cache in self._caches:
            await cache.peer.close()


class _Cache:
    def __init__(self, address: str, security: Security) -> None:
        self.peer = Peer(address, security.towards(address), f"cache at {address}")
        # Without retries: the next cache, or the store itself, answers sooner.
        self.store = ParamStore(self.peer, patience_s=0.0, transfer_s=CACHE_S)
        self.rests_until_s = 0.0

    def failed(self, trouble: MarlessError) -> None:
        """Ask it no more for a while, unless it has only passed on that there is no such version, or has no room."""
        if isinstance(trouble, NotFoundError | OverloadedError):
            return
        self.rests_until_s = time.monotonic() + REST_S
        _log.warning("cache.unusable", cache=self.peer.address, reason=str(trouble), reads="from the param_store")
