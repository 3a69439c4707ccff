"""Stands between the SDK and moto: answers for AWS what moto cannot, and fails calls on purpose."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

Answer = tuple[int, str]
Handle = Callable[[dict[str, str], Callable[[], Answer]], Answer]
"""Answers a call from its parameters; what it is given forwards the call to moto."""
_XMLNS = "http://autoscaling.amazonaws.com/doc/2011-01-01/"


def failing(code: str, said: str = "", status: int = 400) -> Handle:
    """Fails every call."""
    text = f"<ErrorResponse><Error><Code>{code}</Code><Message>{said}</Message></Error></ErrorResponse>"
    return lambda _given, _forward: (status, text)


def answering(action: str, result: str = "") -> Handle:
    """Answers every call with this result."""
    text = f'<{action}Response xmlns="{_XMLNS}"><{action}Result>{result}</{action}Result></{action}Response>'
    return lambda _given, _forward: (200, text)


def changing(*changes: tuple[str, str]) -> Handle:
    """Passes on what moto answers, with these texts replaced."""

    def change(_given: dict[str, str], forward: Callable[[], Answer]) -> Answer:
        status, text = forward()
        for before, after in changes:
            text = text.replace(before, after)
        return status, text

    return change


@dataclass
class Between:
    """A running server at `endpoint`."""

    moto: str
    endpoint: str = ""
    handles: dict[str, Handle] = field(default_factory=dict)
    """What answers calls of an action; others go to moto."""
    calls: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """All calls, with their parameters."""

    def made(self, action: str) -> list[dict[str, str]]:
        """The parameters of all calls of an action."""
        return [given for name, given in self.calls if name == action]


@contextmanager
def between(moto: str) -> Iterator[Between]:
    """One running server."""
    found = Between(moto)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            given = {key: values[0] for key, values in parse_qs(body.decode()).items()}
            action = given.get("Action", "")
            found.calls.append((action, given))
            headers = {key: value for key, value in self.headers.items() if key.lower() != "host"}
            request = urllib.request.Request(f"{found.moto}{self.path}", body, headers, method="POST")
            status, text = found.handles.get(action, lambda _, forward: forward())(given, lambda: forwarded(request))
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", f"{len(text.encode())}")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


def forwarded(request: urllib.request.Request) -> Answer:
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
