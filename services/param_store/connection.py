"""The connection to Redis: a bounded pool, a check of the server, and the mapping of Redis errors to domain errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from marless.core.errors import OverloadedError, SpecError, UnavailableError, UnreachableError
from marless.core.log import structlog
from services.param_store.redis_server import Provided
from services.param_store.redis_url import settings_of

OLDEST_VERSION = (6, 2)
CONNECTIONS = 128
CONNECTION_WAIT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
_log = structlog.get_logger("marless.param_store")


@asynccontextmanager
async def connected(provided: Provided) -> AsyncIterator[Redis]:
    """Connect to Redis and check the server; one that may lose data is warned of, see `risk`.

    Raises SpecError for an invalid or insecure URL, or a server that is too old; UnavailableError if none answers.
    """
    pool = BlockingConnectionPool(**_settings(provided))
    async with Redis(connection_pool=pool) as redis:
        if found := await risk(redis, provided):
            _log.warning("redis.may_lose_data", advice=found)
        try:
            yield redis
        finally:
            await pool.disconnect()


def _settings(provided: Provided) -> dict[str, Any]:  # Any: as redis-py has them
    own = {"username": provided.username} if provided.username else {}
    return {
        "protocol": 2,
        "max_connections": CONNECTIONS,
        "timeout": CONNECTION_WAIT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_timeout": ANSWER_TIMEOUT_S,
        "driver_info": None,  # redis-py would send it by a command that the ACL may forbid
        # One retry on a fresh connection, because a restart of Redis leaves dead connections in the pool. All further
        # retries are the caller's, who knows the deadline.
        "retry": Retry(NoBackoff(), 1),
        **settings_of(provided.url, provided.password, insecure=provided.insecure),
        **own,
    }


async def risk(redis: Redis, provided: Provided) -> str:
    """Why this Redis may lose what it has acknowledged, and what to set; "" if it does not.

    Raises SpecError for a server that is too old, UnavailableError if none answers.
    """
    with redis_errors(provided.trouble):
        info = await redis.info()
    version = str(info["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < OLDEST_VERSION:
        raise SpecError(f"Redis {version} is too old: marless needs 6.2 or newer, or Valkey")
    risks = []
    if (policy := str(info.get("maxmemory_policy", "noeviction"))) != "noeviction":
        risks.append(f"it deletes versions when its memory is full: set maxmemory-policy noeviction, not {policy}")
    if not info["aof_enabled"]:
        risks.append("a crash loses versions: set appendonly yes and appendfsync always")
    return f"this Redis is not durable: {'; '.join(risks)}" if risks else ""


@contextmanager
def redis_errors(trouble: Callable[[], str]) -> Iterator[None]:
    """Turn errors of Redis and its client into domain errors; errors that are defects of marless pass through.

    `trouble` returns a sentence about the likely cause, for the message, when Redis cannot be reached.
    """
    try:
        yield
    except exceptions.OutOfMemoryError:
        raise OverloadedError(
            "no room in the parameter store: Redis has no memory left; raise --redis-maxmemory, or keep fewer versions"
        ) from None
    except (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError) as error:
        raise UnreachableError(f"Redis cannot be used now ({error}); {trouble()}") from None
    except exceptions.NoPermissionError as error:
        raise UnavailableError(
            f"Redis does not let the store's user do what it must ({error}); give it the ACL in docs/operating.md"
        ) from None
    except exceptions.ResponseError as error:
        if "MISCONF" in str(error):
            raise UnavailableError(f"Redis cannot write to its disk, which may be full: {error}") from None
        raise
