"""`Guard`: refuses requests that are not from this dashboard's own pages and user.

Another user of the machine lacks the token. A page of another site lacks it too; and it is refused by the Host header,
which a rebound name shows, and by Origin and Sec-Fetch-Site. Answers carry a policy by which a browser runs no script
and loads nothing but what this process serves.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from marless.core import private_files
from marless.core.errors import SpecError, UnavailableError, denied
from marless.rpc.addresses import host_of, is_loopback

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TOKEN_BYTES = 24
FEWEST_CHARACTERS = 16
_OWN_SITE = ("same-origin", "none")
"""Values of Sec-Fetch-Site: of our pages, and of what a person typed. Programs do not send it."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Who is served: those with the token who name one of these hosts."""

    token: str
    hosts: frozenset[str]
    """Values of the Host header, in lower case: names with the port."""
    scheme: str

    def refusal(self, request: web.Request) -> web.Response | None:
        """The answer to a request that must not be served; None for others."""
        host = request.headers.get("Host", "").lower()
        if host not in self.hosts:
            return _refused(421, f"this dashboard is not called {host[:100]!r}; open the address that it has printed")
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        api = request.path.startswith("/api/")
        if (api or request.method not in ("GET", "HEAD")) and (
            (site is not None and site not in _OWN_SITE)
            or (origin is not None and origin.lower() != f"{self.scheme}://{host}")
        ):
            return _refused(403, "requests of other sites are refused")
        if api and not hmac.compare_digest(
            request.headers.get("Authorization", "").encode(), f"Bearer {self.token}".encode()
        ):
            return _refused(401, "the token is missing or wrong; open the address that the dashboard has printed")
        return None

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check a request."""
        return self.refusal(request) or await handler(request)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the security headers to an answer, which may be a stream; data are never kept by browsers."""
    response.headers.update(HEADERS)
    if request.path.startswith("/api/"):
        response.headers["Cache-Control"] = "no-store"


def hosts_of(listen: str, port: int, advertise: str = "") -> frozenset[str]:
    """The values of the Host header that lead to a server which listens there."""
    host = host_of(listen)
    names = {host} | ({"localhost", "127.0.0.1", "::1"} if is_loopback(host) else set())
    if advertise:
        names.add(host_of(advertise) or advertise)
    written = {f"[{name}]" if ":" in name else name.lower() for name in names if name}
    given = {advertise.lower()} if ":" in advertise else set()
    default = port in (80, 443)
    return frozenset({f"{name}:{port}" for name in written} | given | (written if default else set()))


def token_of(path: Path | None) -> str:
    """The token in a file, which is made, for this user alone, if it does not exist; a new one without a file.

    Raises SpecError for a file that holds no token, UnavailableError if it cannot be used.
    """
    new = secrets.token_urlsafe(TOKEN_BYTES)
    if path is None:
        return new
    try:
        with os.fdopen(private_files.open_own(path, os.O_RDWR | os.O_CREAT), "r+", encoding="utf-8") as file:
            if not (found := file.read(1000).strip()):
                file.write(new + "\n")
                return new
    except OSError as error:
        raise UnavailableError(f"{denied(error)}; the token cannot be kept there") from None
    if len(found) < FEWEST_CHARACTERS or not (found.isascii() and found.isprintable()) or " " in found:
        raise SpecError(
            f"{path} holds no token: it needs {FEWEST_CHARACTERS} or more characters without spaces; remove the file, "
            "and a new token is made"
        )
    return found


def _refused(status: int, sentence: str) -> web.Response:
    return web.json_response({"error": sentence}, status=status)
