"""Who may talk to whom: loopback and unix sockets freely, everything else only with TLS and a token."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc

from marless.errors import SpecError, UnauthenticatedError
from marless.rpc.errors import abort
from marless.rpc.handlers import Handler

_HEADER = "authorization"
_OPEN_METHODS = ("/grpc.health.v1.Health/",)


@dataclass(frozen=True)
class Security:
    """Token and TLS files of one process; all empty on a workstation."""

    token: str | Callable[[], str] = ""
    """Shared secret, or what to ask for it at each call; sent as a bearer token."""
    tls_cert: str = ""
    """Path of the server's certificate chain (PEM)."""
    tls_key: str = ""
    """Path of the server's private key (PEM)."""
    tls_ca: str = ""
    """Path of the certificate authority (PEM) that clients trust."""

    @classmethod
    def of_environment(cls) -> Self:
        """What the MARLESS_* variables of this process say."""
        files = (os.environ.get(f"MARLESS_TLS_{name}", "") for name in ("CERT", "KEY", "CA"))
        return cls(os.environ.get("MARLESS_TOKEN", ""), *files)

    def __repr__(self) -> str:
        """Never show the token."""
        return f"Security(token={'set' if self.token else 'unset'}, tls={'on' if self.tls_ca else 'off'})"

    def arguments(self) -> list[str]:
        """The command-line arguments that hand these files on to a worker; its token is handed over."""
        given = (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key), ("--tls-ca", self.tls_ca))
        return [part for flag, path in given if path for part in (flag, path)]

    def server_credentials(self, listen: str) -> grpc.ServerCredentials | None:
        """TLS for `listen`, or None for a local address without it; raises SpecError if plaintext would leak."""
        if self.tls_cert and self.tls_key:
            key, chain = _read(self.tls_key), _read(self.tls_cert)
            if not self.token and not is_local(listen):
                raise SpecError(f"{listen} is not a loopback address: set MARLESS_TOKEN as well as TLS files")
            return grpc.ssl_server_credentials([(key, chain)])
        if not is_local(listen):
            raise SpecError(
                f"{listen} is not a loopback address: set MARLESS_TOKEN and --tls-cert, --tls-key, --tls-ca, "
                "or listen on 127.0.0.1 or unix:PATH"
            )
        return None

    def channel_credentials(self, address: str) -> grpc.ChannelCredentials | None:
        """TLS towards `address`, or None for a local one without it; raises SpecError if plaintext would leak."""
        if self.tls_ca:
            return grpc.ssl_channel_credentials(_read(self.tls_ca))
        if not is_local(address):
            raise SpecError(f"{address} is not a loopback address: set --tls-ca to call it")
        return None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        token = self.shown
        return ((_HEADER, f"Bearer {token}"),) if token else ()

    @property
    def shown(self) -> str:
        """The token that the next call carries; "" for none."""
        return self.token() if callable(self.token) else self.token


def is_local(address: str) -> bool:
    """True for unix sockets and loopback addresses."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"TLS file {path} cannot be read ({error.strerror})") from None


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the token; health checks need none."""

    def __init__(self, security: Security) -> None:
        self._expected = f"Bearer {security.shown}".encode() if security.shown else b""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Let the call through if its token is right, in constant time."""
        method = str(handler_call_details.method)
        given = dict(handler_call_details.invocation_metadata or ()).get(_HEADER, "")
        given_bytes = given if isinstance(given, bytes) else given.encode()
        if not self._expected or method.startswith(_OPEN_METHODS) or hmac.compare_digest(given_bytes, self._expected):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await abort(context, UnauthenticatedError("the token is missing or wrong; set MARLESS_TOKEN to the service's"))
