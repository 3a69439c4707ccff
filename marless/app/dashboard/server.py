"""The dashboard's HTTP server: routes, errors, and where it listens."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from marless.app.dashboard.actions import JOB, Actions
from marless.app.dashboard.feeds import EventStreams
from marless.app.dashboard.guard import Guard, Handler, add_headers, hosts_of
from marless.app.dashboard.hub import Hub
from marless.app.dashboard.reading import Reading
from marless.app.dashboard.sources import JobSource
from marless.core.errors import (
    AlreadyExistsError,
    JobStateError,
    MarlessError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
    denied,
)
from marless.core.limits import MAX_SPEC_BYTES
from marless.rpc.addresses import host_of, is_loopback
from marless.rpc.security import Security, check_served

STATIC = Path(__file__).with_name("static")
_STATUSES: tuple[tuple[type[MarlessError], int], ...] = (
    (SpecError, 400),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (JobStateError, 409),
    (UnauthenticatedError, 502),
    (PermissionDeniedError, 502),
    (OverloadedError, 503),
    (UnavailableError, 503),
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STOP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """Where a dashboard listens, and by what token it is entered."""

    listen: str = "127.0.0.1:0"
    """host:port; port 0: a free one."""
    advertise: str = ""
    """What browsers dial, if it is not what `listen` says."""
    token: str
    tls_cert: str = ""
    tls_key: str = ""
    security: Security = field(default_factory=Security)
    """For calls to the pools of a coordinator."""

    def check(self) -> None:
        """Raise SpecError for an address that others can reach without TLS, or that is none."""
        host, _, port = self.listen.rpartition(":")
        if not host or not port.isdecimal() or int(port[:6]) >= 2**16:
            raise SpecError(f"--listen {self.listen}: give a host and a port, as 127.0.0.1:8090")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise SpecError("--tls-cert and --tls-key belong together: set both, or neither")
        if self.tls_cert:
            dialled = self.advertise or self.listen
            check_served(self.tls_cert, self.tls_key, host_of(dialled) or dialled)
        elif not is_loopback(host_of(self.listen)):
            raise SpecError(
                f"--listen {self.listen}: others can reach this address, so it needs TLS: give --tls-cert and "
                "--tls-key; or listen on 127.0.0.1, and reach it through ssh -L"
            )


def application(source: JobSource, guard: Callable[[], Guard], security: Security) -> web.Application:
    """The application; `guard` is asked at each request, because a free port is known only once it is bound."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await guard().middleware(request, handler)

    app = web.Application(middlewares=[guarded, _errors], client_max_size=MAX_SPEC_BYTES)
    app.on_response_prepare.append(add_headers)
    hub = Hub(source)
    streams = EventStreams(hub)
    app.router.add_get("/", _static("index.html"))
    for path in sorted(each for each in STATIC.rglob("*") if each.suffix in _TYPES):
        name = path.relative_to(STATIC).as_posix()
        app.router.add_get(f"/{name}", _static(name))
    app.router.add_get("/api/events", streams.jobs)
    app.router.add_get(f"{JOB}/events", streams.job)
    app.router.add_routes([*Reading(hub, security).routes(), *Actions(source).routes()])

    async def running(_app: web.Application) -> AsyncIterator[None]:
        async with hub:
            yield

    app.cleanup_ctx.append(running)
    return app


def _static(name: str) -> Handler:
    path = STATIC / name
    data, kind = path.read_bytes(), _TYPES[path.suffix]

    async def serve(_request: web.Request) -> web.Response:
        # Always asked again: an upgrade must not run the pages of two versions together.
        response = web.Response(body=data, content_type=kind, charset="utf-8", headers={"Cache-Control": "no-cache"})
        response.enable_compression()
        return response

    return serve


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer errors with a sentence as JSON."""
    try:
        return await handler(request)
    except MarlessError as error:
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), 500)
        return web.json_response({"error": str(error)}, status=status)
    except web.HTTPException as error:
        return web.json_response({"error": error.text or error.reason}, status=error.status)


@asynccontextmanager
async def serving(source: JobSource, options: DashboardOptions) -> AsyncIterator[str]:
    """Serve a dashboard; yields the address to open, with the token. Raises SpecError, and UnavailableError if the
    address cannot be listened on.
    """
    options.check()
    context = None
    if options.tls_cert:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(options.tls_cert, options.tls_key)
    scheme, known = "https" if context else "http", list[Guard]()
    runner = web.AppRunner(
        application(source, lambda: known[0], options.security), access_log=None, shutdown_timeout=STOP_S
    )
    await runner.setup()
    try:
        host, port = host_of(options.listen), int(options.listen.rpartition(":")[2])
        site = web.TCPSite(runner, host, port, ssl_context=context)
        try:
            await site.start()
        except OSError as error:
            raise UnavailableError(f"--listen {options.listen}: {denied(error)}; choose another port") from None
        bound = runner.addresses[0][1]
        known.append(
            Guard(token=options.token, hosts=hosts_of(options.listen, bound, options.advertise), scheme=scheme)
        )
        yield address_of(options, scheme, bound)
    finally:
        await runner.cleanup()


def address_of(options: DashboardOptions, scheme: str, port: int) -> str:
    """The address to open in a browser. The token is in the fragment, which browsers send to nobody."""
    host = options.advertise or options.listen.rpartition(":")[0]
    place = host if ":" in host.rpartition("]")[2] else f"{host}:{port}"
    return f"{scheme}://{place}/#token={options.token}"


async def serve_until(source: JobSource, options: DashboardOptions, told: Callable[[str], Awaitable[None]]) -> None:
    """Serve until this task is cancelled; `told` gets the address."""
    try:
        async with serving(source, options) as address:
            await told(address)
            await asyncio.Event().wait()
    finally:
        await source.close()
