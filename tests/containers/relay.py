"""A second socket of the engine, with permissions of its own."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marless_docker.engine import DEFAULT


@contextmanager
def engine_for_all(place: Path) -> Iterator[Path]:
    """A socket of the engine that every user may use, as the members of its group may use Docker's."""
    address = os.environ.get("DOCKER_HOST", DEFAULT).removeprefix("unix://")
    place.chmod(0o755)

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as there:
                there.connect(address)
                back = threading.Thread(target=_copy, args=(there, self.request))
                back.start()
                _copy(self.request, there)
                back.join()

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

    with Server(str(place / "engine.sock"), Relay) as server:
        (place / "engine.sock").chmod(0o666)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield place / "engine.sock"
        finally:
            server.shutdown()
            serving.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(2**16):
            target.sendall(some)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
