"""The connection to Redis: checks its URL and the server, and turns its errors into domain errors.

Beyond this machine Redis must have TLS and a password. A URL may hold a password, and is therefore a secret: no message
or log contains it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from marless.core.errors import OverloadedError, SpecError, UnavailableError, UnreachableError
from marless.core.log import structlog
from marless.rpc.addresses import is_loopback
from marless.rpc.own_redis import OLDEST
from marless.services.param_store.redis_server import Provided

_INSECURE = "or ask for it with --redis-insecure (MARLESS_REDIS_INSECURE=1)"
CONNECTIONS = 128
CONNECTION_WAIT_S = 5.0
CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 10.0
_log = structlog.get_logger("marless.param_store")


def settings_of(url: str, password: str, *, insecure: bool) -> Mapping[str, Any]:  # Any: as redis-py has them
    """The connection settings of a URL for redis-py; `password` is used in place of one in the URL, if it is not "".

    Raises SpecError, without any secret, for an invalid URL, and, unless `insecure`, for one that leads beyond this
    machine without TLS, without verified certificates or without a password.
    """
    try:
        settings: dict[str, Any] = dict(parse_url(url))  # Any: as redis-py has them
    except ValueError:  # its text may hold a part of the password
        scheme, there, _ = url.partition("://")
        odd = f"{scheme}:// is none of Redis's; " if there and scheme not in ("redis", "rediss", "unix") else ""
        raise SpecError(
            f"the Redis URL cannot be used: {odd}give redis://, rediss:// or unix://, and percent-encode "
            "what is special in a password"
        ) from None
    if password:
        settings["password"] = password
    try:
        ConnectionPool(**settings).make_connection()  # type: ignore[no-untyped-call]  # does not connect yet
    except (TypeError, ValueError):  # as above
        raise SpecError("the Redis URL has an option after its ? that cannot be used; leave it out") from None
    if not insecure:
        _check(settings)
    return settings


def holds_password(url: str) -> bool:
    """True if a URL holds a password; for an invalid one, True if it may."""
    try:
        return bool(parse_url(url).get("password"))
    except ValueError:
        return "@" in url


def _check(settings: Mapping[str, Any]) -> None:  # Any: as redis-py has them
    encrypted = settings.get("connection_class") is SSLConnection
    required = settings.get("ssl_cert_reqs", "required") in ("required", ssl.CERT_REQUIRED, str(int(ssl.CERT_REQUIRED)))
    if encrypted and not (required and settings.get("ssl_check_hostname", True)):
        raise SpecError(f"the Redis URL turns off the verification of certificates: leave that out, {_INSECURE}")
    host = settings.get("host", "")
    if settings.get("connection_class") is UnixDomainSocketConnection or not host or is_loopback(host):
        return
    if not encrypted:
        raise SpecError(
            f"the Redis at {settings['host']} would be used without encryption: use rediss:// (TLS), {_INSECURE}"
        )
    if not settings.get("password"):
        raise SpecError(
            f"the Redis at {settings['host']} has no password: give its user a password, by MARLESS_REDIS_URL or "
            f"--redis-password-file, {_INSECURE}"
        )


@asynccontextmanager
async def connected(provided: Provided) -> AsyncIterator[Redis]:
    """Connect to Redis and check the server; one that may lose data is warned of, see `risk`.

    Raises SpecError for an invalid or insecure URL, or a server that is too old; UnavailableError if none answers.
    """
    settings: dict[str, Any] = {  # Any: as redis-py has them
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
    }
    if provided.username:
        settings["username"] = provided.username
    pool = BlockingConnectionPool(**settings)
    async with Redis(connection_pool=pool) as redis:
        if found := await risk(redis, provided):
            _log.warning("redis.may_lose_data", advice=found)
        try:
            yield redis
        finally:
            await pool.disconnect()


async def risk(redis: Redis, provided: Provided) -> str:
    """Why this Redis may lose what it has acknowledged, and what to set; "" if it does not.

    Raises SpecError for a server that is too old, UnavailableError if none answers.
    """
    with redis_errors(provided.trouble):
        info = await redis.info()
    version = str(info["redis_version"])
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
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
