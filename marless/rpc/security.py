"""TLS and tokens of servers and clients: loopback and unix sockets work without them, other addresses require them.

A process checks its own certificate before others see it: its key, its dates, and the host that it is for. The
certificate is presented to a verifier in this process, by the handshake of Python's `ssl` in memory, and is itself the
verifier's authority: which authority others trust is theirs to decide.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import grpc

from marless.core.errors import MarlessError, OverloadedError, PermissionDeniedError, SpecError, UnauthenticatedError
from marless.rpc import roles
from marless.rpc.addresses import UNIX, is_local
from marless.rpc.errors import abort
from marless.rpc.requests import Handler, Method, wrapped
from marless.rpc.roles import Role
from marless.rpc.tokens import Tokens

_EXPIRED, _NOT_YET_VALID = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID of OpenSSL
_RENEW = "make a new one, and start this process again"
SECRET_VARIABLES = (
    "MARLESS_TOKEN",
    "MARLESS_TOKENS",
    "MARLESS_TLS_CERT",
    "MARLESS_TLS_KEY",
    "MARLESS_TLS_CA",
    "MARLESS_TLS_CLIENT_CA",
    "MARLESS_WORKER_TLS_CERT",
    "MARLESS_WORKER_TLS_KEY",
    "MARLESS_REDIS_URL",
)
"""Environment variables that hold secrets or paths of secrets."""
MAX_STRANGERS = 64
"""Most concurrent calls of each method without a valid token, so that they cannot crowd out valid ones."""
_REFUSED_S = 10.0
_HEADER = "authorization"
_SCHEME = b"Bearer "
Context = grpc.aio.ServicerContext[Any, Any]  # Any: one context type serves all methods


def check_served(cert: str, key: str, host: str) -> float:
    """Check the certificate of a server that others dial at `host` ("": at no host, but at a unix socket).

    Returns:
        Its end, in seconds since the epoch.

    Raises:
        SpecError: if a file cannot be used, if the certificate has expired, or if it is for other hosts.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load(server, cert, key)
    _trust(client, cert)
    client.check_hostname = bool(host)
    try:
        verified = _shake_hands(client, server, host).getpeercert() or {}
        return float(ssl.cert_time_to_seconds(str(verified["notAfter"])))
    except ssl.SSLCertVerificationError as error:
        if outdated := _outdated(cert, error):
            raise outdated from None
        raise SpecError(
            f"the TLS certificate {cert} is not for {host}, where --advertise or --listen tells others to dial: "
            f"{_reason(error)}; set --advertise to a host that it is for, or make one for {host}"
        ) from None
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def check_shown(cert: str, key: str) -> None:
    """Check the certificate that a client shows to servers. Raises SpecError if it cannot be used or has expired."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only what the client shows is in question, so it does not look at the server's, which is the same certificate.
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    _load(client, cert, key)
    _load(server, cert, key)
    _trust(server, cert)
    server.verify_mode = ssl.CERT_REQUIRED
    try:
        _shake_hands(client, server, "")
    except ssl.SSLCertVerificationError as error:
        raise _outdated(cert, error) or _unusable(cert, key, error) from None
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Let both sides finish a handshake; returns the client's. Raises SSLError, for either side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host or None)
    waiting = [asking, server.wrap_bio(to_server, to_client, server_side=True)]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    return asking


def _load(context: ssl.SSLContext, cert: str, key: str) -> None:
    for path in (cert, key):
        read(path)
    try:
        context.load_cert_chain(cert, key, password="")  # without one, OpenSSL asks on the terminal
    except ssl.SSLError as error:
        raise _unusable(cert, key, error) from None


def _trust(context: ssl.SSLContext, cert: str) -> None:
    context.load_verify_locations(cert)
    # Without this flag OpenSSL takes only a root as an authority, and this certificate may be signed by another one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _outdated(cert: str, error: ssl.SSLCertVerificationError) -> SpecError | None:
    if error.verify_code == _EXPIRED:
        return SpecError(f"the TLS certificate {cert} has expired; {_RENEW}")
    if error.verify_code == _NOT_YET_VALID:
        return SpecError(f"the TLS certificate {cert} is not valid yet; set this machine's clock, or {_RENEW}")
    return None


def _unusable(cert: str, key: str, error: ssl.SSLError) -> SpecError:
    return SpecError(f"the TLS certificate {cert} and the key {key} cannot be used: {_reason(error)}")


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    return (error.reason or str(error)).replace("_", " ").lower()


def read(path: str) -> bytes:
    """The content of a PEM file. Raises SpecError."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SpecError(f"TLS file {path} cannot be read ({error.strerror})") from None


@dataclass(frozen=True)
class Security:
    """Tokens and TLS files of one process; all empty for local use."""

    token: str | Callable[[], str] = ""
    """Bearer token for its calls, or a function that returns it and is called for each call."""
    tls_cert: str = ""
    """Path of its certificate chain (PEM), as a server and as a client."""
    tls_key: str = ""
    """Path of its private key (PEM)."""
    tls_ca: str = ""
    """Path of the certificate authority (PEM) that must have signed a server's certificate."""
    tls_client_ca: str = ""
    """Path of a different certificate authority (PEM) for the certificates of callers."""
    mutual: bool = False
    """As a server with TLS, serve only callers with a certificate of `tls_client_ca`, or else of `tls_ca`."""
    tokens: Tokens | None = None
    """Tokens that a server accepts; None: it requires no token."""

    @classmethod
    def of_client(
        cls,
        *,
        token: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ) -> Self:
        """The settings of a client; arguments that are None come from the MARLESS_* variables. Raises SpecError."""
        shown: str | Callable[[], str] = os.environ.get("MARLESS_TOKEN", "").strip() if token is None else token
        if isinstance(shown, str) and not (shown.isascii() and shown.isprintable()):
            raise SpecError(
                "the token has a character that is not allowed; set $MARLESS_TOKEN to one line of a token file"
            )
        if token is None and not shown and (directory := os.environ.get("MARLESS_TOKENS")):
            shown = partial(Tokens(Path(directory)).of, Role.CLIENT)
        files = (("CERT", tls_cert), ("KEY", tls_key), ("CA", tls_ca))
        cert, key, ca = (os.environ.get(f"MARLESS_TLS_{name}", "") if file is None else file for name, file in files)
        return cls(shown, cert, key, ca)

    @classmethod
    def of_process(cls, role: Role, tokens: str, *, tls_cert: str, tls_key: str, tls_ca: str) -> Self:
        """The settings of a service or worker; `tokens` is the path of the token directory, or ""."""
        if not tokens:
            return cls(os.environ.get("MARLESS_TOKEN", ""), tls_cert, tls_key, tls_ca)
        read = Tokens(Path(tokens))
        return cls(partial(read.of, role), tls_cert, tls_key, tls_ca, tokens=read)

    def __repr__(self) -> str:
        """Hides the token."""
        token = "set" if self.token or self.tokens else "unset"
        return f"Security(token={token}, tls={'on' if self.tls_ca else 'off'})"

    @property
    def shown(self) -> str:
        """The token that the next call carries; "" for none."""
        return self.token() if callable(self.token) else self.token

    def showing(self, role: Role) -> Callable[[], str]:
        """A function that returns the token of another role; "" without a token directory."""
        return partial(self.tokens.of, role) if self.tokens else str

    def towards(self, address: str) -> Security:
        """The same; without TLS for a unix socket, which leaves no host, and whose name no certificate has."""
        return replace(self, tls_cert="", tls_key="", tls_ca="") if address.startswith(UNIX) else self

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """gRPC metadata of the next call: the bearer token, if there is one."""
        token = self.shown
        return ((_HEADER, f"Bearer {token}"),) if token else ()

    def arguments(self, cert: str = "", key: str = "") -> list[str]:
        """Command-line arguments with a worker's TLS files: its own certificate if given, else this process's."""
        pair = (cert, key) if cert else (self.tls_cert, self.tls_key)
        given = (("--tls-cert", pair[0]), ("--tls-key", pair[1]), ("--tls-ca", self.tls_ca))
        return [part for flag, path in given if path for part in (flag, path)]

    def server_credentials(self, listen: str) -> grpc.ServerCredentials | None:
        """TLS credentials for `listen`, or None for a local address without TLS.

        Raises SpecError for a non-local address without TLS and tokens, if a token is set that would not be checked,
        and for files that cannot be used.
        """
        secured = self.tls_cert and self.tls_key
        if not is_local(listen) and not (secured and self.tokens):
            raise SpecError(
                f"{listen} is not a loopback address: set --tokens DIR (`marless tokens DIR` makes it) and --tls-cert, "
                "--tls-key, --tls-ca, or listen on 127.0.0.1 or unix:PATH"
            )
        if self.token and not self.tokens:
            raise SpecError(
                "MARLESS_TOKEN is for clients; a service reads the tokens of --tokens DIR, which "
                "`marless tokens DIR` makes: set that, or unset MARLESS_TOKEN"
            )
        # Now, because a service whose tokens cannot be used must not start; later, trouble with them only warns.
        if self.tokens:
            self.tokens.check()
        if not secured:
            return None
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.tls_cert, self.tls_key)  # only to check both files
        pair = (read(self.tls_key), read(self.tls_cert))
        if not self.mutual:
            return grpc.ssl_server_credentials([pair])
        authority = self.tls_client_ca or self.tls_ca
        if not authority:
            raise SpecError(
                f"{listen}: callers must present a certificate; set --tls-ca to the authority that signs them"
            )
        return grpc.ssl_server_credentials([pair], read(authority), require_client_auth=True)

    def channel_credentials(self, address: str) -> grpc.ChannelCredentials | None:
        """TLS credentials for calls to `address`, or None for a local one without TLS.

        Raises SpecError for a non-local address without TLS, and for a certificate of this process that has expired or
        cannot be used.
        """
        if not self.tls_ca:
            if not is_local(address):
                raise SpecError(f"{address} is not a loopback address: set --tls-ca to call it")
            return None
        if self.tls_cert and self.tls_key:
            check_shown(self.tls_cert, self.tls_key)
            return grpc.ssl_channel_credentials(read(self.tls_ca), read(self.tls_key), read(self.tls_cert))
        return grpc.ssl_channel_credentials(read(self.tls_ca))


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without a valid token, and calls that the token's role may not make; see `marless.rpc.roles`.

    At most `MAX_STRANGERS` refused calls at a time are held until their request has arrived, and as many health checks
    without a token are served at a time.
    """

    def __init__(self, security: Security) -> None:
        self._tokens = security.tokens
        self._health: dict[str, _Strangers] = defaultdict(_Strangers)
        self._refused = _Strangers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Pass the call on if the role of its token permits it."""
        method = str(handler_call_details.method)
        if self._tokens is None:
            return await continuation(handler_call_details)
        # For open methods, too: a caller with a valid token does not count among the strangers.
        given = dict(handler_call_details.invocation_metadata or ()).get(_HEADER, "")
        sent = given if isinstance(given, bytes) else given.encode()
        token = sent.removeprefix(_SCHEME) if sent.startswith(_SCHEME) else b""
        role = self._tokens.role_of(token) if token else None
        if method.startswith(roles.OPEN):
            handler = await continuation(handler_call_details)
            return handler if role or not handler else self._health[method].some_of(handler)
        if role is None:
            return self._refusal(
                UnauthenticatedError("the token is missing or wrong; set MARLESS_TOKEN to the service's")
            )
        try:
            roles.check(role, method)
        except PermissionDeniedError as error:
            return self._refusal(error)
        # gRPC serves the call in this same task, so that its handler sees this.
        roles.caller.set(role)
        return await continuation(handler_call_details)

    def _refusal(self, error: MarlessError) -> Handler:
        async def refuse(_: AsyncIterator[bytes], context: Context) -> None:
            if self._refused.room:  # else a client that is still sending would see a broken stream instead
                with self._refused.one(), suppress(TimeoutError):
                    async with asyncio.timeout(_REFUSED_S):
                        await context.read()  # not from the iterator, which would keep it in memory
            await abort(context, error)

        return grpc.stream_stream_rpc_method_handler(refuse)


class _Strangers:
    """Limits concurrent calls by callers without a valid token."""

    def __init__(self) -> None:
        self._calls = 0

    @property
    def room(self) -> bool:
        return self._calls < MAX_STRANGERS

    @contextmanager
    def one(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def some_of(self, handler: Handler) -> Handler:
        """The same handler, refusing calls beyond the limit."""

        def coroutine(inner: Method) -> Method:
            async def call(request: object, context: Context) -> object:
                await self._check(context)
                with self.one():
                    return await inner(request, context)

            return call

        def generator(inner: Method) -> Method:
            async def call(request: object, context: Context) -> AsyncIterator[object]:
                await self._check(context)
                with self.one():
                    async for response in inner(request, context):
                        yield response

            return call

        return wrapped(handler, coroutine, generator)

    async def _check(self, context: Context) -> None:
        if not self.room:
            await abort(
                context, OverloadedError(f"{MAX_STRANGERS} callers without a token are being served already; try again")
            )
