"""Checks the URL of an external Redis: beyond this machine it must have TLS and a password.

A URL may hold a password, and is therefore a secret: no message or log contains it.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from typing import Any

from redis.asyncio import ConnectionPool, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import parse_url

from marless.core.errors import SpecError

_INSECURE = "or ask for it with --redis-insecure (MARLESS_REDIS_INSECURE=1)"


def settings_of(url: str, password: str, *, insecure: bool) -> Mapping[str, Any]:  # Any: as redis-py has them
    """The connection settings of a URL for redis-py; `password` is used in place of one in the URL, if it is not "".

    Raises SpecError, without any secret, for an invalid URL, and, unless `insecure`, for one that leads beyond this
    machine without TLS, without verified certificates or without a password.
    """
    try:
        settings: dict[str, Any] = dict(parse_url(url))  # Any: as redis-py has them
    except ValueError:  # its text may hold a part of the password
        raise SpecError(
            f"the Redis URL cannot be used: {_scheme(url)}give redis://, rediss:// or unix://, and percent-encode "
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
    if encrypted and not _verifies(settings):
        raise SpecError(f"the Redis URL turns off the verification of certificates: leave that out, {_INSECURE}")
    if settings.get("connection_class") is UnixDomainSocketConnection or _is_loopback(settings.get("host", "")):
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


def _verifies(settings: Mapping[str, Any]) -> bool:  # Any: as redis-py has them
    required = settings.get("ssl_cert_reqs", "required") in ("required", ssl.CERT_REQUIRED, str(int(ssl.CERT_REQUIRED)))
    return required and bool(settings.get("ssl_check_hostname", True))


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _scheme(url: str) -> str:
    scheme, there, _ = url.partition("://")
    return f"{scheme}:// is none of Redis's; " if there and scheme not in ("redis", "rediss", "unix") else ""
