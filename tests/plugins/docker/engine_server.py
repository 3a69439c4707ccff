"""A server that speaks the calls of a container engine that marless makes; its containers are processes here."""

from __future__ import annotations

import json
import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = Path(__file__).parents[3]
ROUTES = (
    ("version", "GET", r"/version"),
    ("image", "GET", r"/images/(?P<name>.+)/json"),
    ("network", "GET", r"/networks/(?P<name>.+)"),
    ("list", "GET", r"/containers/json"),
    ("create", "POST", r"/containers/create"),
    ("attach", "POST", r"/containers/(?P<name>[^/]+)/attach"),
    ("start", "POST", r"/containers/(?P<name>[^/]+)/start"),
    ("wait", "POST", r"/containers/(?P<name>[^/]+)/wait"),
    ("inspect", "GET", r"/containers/(?P<name>[^/]+)/json"),
    ("remove", "DELETE", r"/containers/(?P<name>[^/]+)"),
)


@dataclass(frozen=True)
class Fault:
    """What happens to a call instead."""

    status: int = 0
    """Status of the answer; 0: there is no answer."""
    message: str = ""
    is_done: bool = False
    """Whether the call has its effect all the same."""
    hangs: bool = False
    """Whether the connection stays open until the engine is closed, where there is no answer."""


@dataclass
class Container:
    name: str
    config: dict[str, Any]
    created_s: float
    status: str = "created"
    exit_code: int = 0
    is_out_of_memory: bool = False
    started_at: str = "0001-01-01T00:00:00Z"
    process: subprocess.Popen[bytes] | None = None
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    streams: socket.socket | None = None

    def start(self) -> None:
        assert self.streams, "nothing is attached"
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        self.process = subprocess.Popen(
            [sys.executable, "-m", *self.config["Cmd"]],
            stdin=self.streams.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | {"PATH": os.environ["PATH"]},
            cwd=ROOT,
        )
        self.status = "running"
        self.started.set()

    def copy_output(self) -> None:
        """Until the process has ended; then the connection ends, too."""
        assert self.process and self.process.stdout and self.streams
        while some := self.process.stdout.read1(2**16):
            with suppress(OSError):
                self.streams.sendall(b"\x02\0\0\0" + len(some).to_bytes(4, "big") + some)
        self.exit_code = self.process.wait()
        self.process.stdout.close()
        self.status = "exited"
        self.ended.set()

    def remove(self) -> None:
        self.started.set()
        if self.process:
            self.process.kill()
            self.ended.wait()
        self.ended.set()


class EngineServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Listens at `address`; has the image "workers" and the network "inside"."""

    request_queue_size = 128
    daemon_threads = True
    block_on_close = False

    def __init__(self, place: Path) -> None:
        super().__init__(str(place / "engine.sock"), _Handler)
        self.address = f"unix://{place}/engine.sock"
        self.containers: dict[str, Container] = {}
        self.images = {"workers": "marless"}
        """Image → its user."""
        self.networks = {"inside"}
        self.calls: Counter[str] = Counter()
        self.created: list[Container] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.closing = threading.Event()
        self.lock = threading.RLock()

    def add(self, name: str, status: str = "exited", **labels: str) -> Container:
        """A container that something else has created."""
        container = Container(name, {"Labels": labels, "Image": "workers"}, time.time(), status)
        self.containers[name] = container
        return container


@contextmanager
def engine(place: Path) -> Iterator[EngineServer]:
    """A running engine, of which no process is left afterwards."""
    with EngineServer(place) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            serving.join()
            for container in [*server.containers.values()]:
                container.remove()


class _Handler(BaseHTTPRequestHandler):
    server: EngineServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length) or b"null") if length else None
        url = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(url.query).items()}
        path = re.sub(r"^/v[\d.]+", "", url.path)
        for call, method, pattern in ROUTES:
            if method == self.command and (found := re.fullmatch(pattern, path)):
                name = unquote(found.groupdict().get("name") or "")
                return self._serve(call, name)
        return self._answer(501, {"message": f"{self.command} {path}"})

    do_POST = do_DELETE = do_GET  # noqa: N815  # names that the server looks for

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, call: str, name: str) -> None:
        self.server.calls[call] += 1
        fault = self.server.faults[call].popleft() if self.server.faults[call] else None
        fault = fault or (Fault() if self.server.closing.is_set() else None)  # connections outlive the server
        if fault and fault.is_done:
            getattr(self, f"_{call}")(name)
        if fault is None:
            status, answer = getattr(self, f"_{call}")(name)
            if status != 101:
                self._answer(status, answer)
        elif fault.status:
            self._answer(fault.status, {"message": fault.message})
        else:
            if fault.hangs:
                self.server.closing.wait()
            self.close_connection = True

    def _answer(self, status: int, answer: Any) -> None:
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _found(self, name: str) -> Container | None:
        return self.server.containers.get(name)

    def _version(self, _: str) -> tuple[int, Any]:
        parts = [{"Name": "Engine", "Version": "25.0"}]
        return 200, {"Version": "25.0", "ApiVersion": "1.44", "MinAPIVersion": "1.24", "Components": parts}

    def _image(self, name: str) -> tuple[int, Any]:
        if name not in self.server.images:
            return 404, {"message": f"No such image: {name}"}
        return 200, {"Config": {"User": self.server.images[name]}}

    def _network(self, name: str) -> tuple[int, Any]:
        known = name in self.server.networks
        return (200, {"Name": name}) if known else (404, {"message": f"network {name} not found"})

    def _list(self, _: str) -> tuple[int, Any]:
        [wanted] = json.loads(self.query["filters"])["label"]
        key, _, value = wanted.partition("=")
        return 200, [
            {
                "Id": each.name,
                "Names": [f"/{each.name}"],
                "Image": each.config["Image"],
                "State": each.status,
                "Labels": each.config["Labels"],
                "Created": int(each.created_s),
            }
            for each in [*self.server.containers.values()]
            if each.config["Labels"].get(key, value or None) == (value or each.config["Labels"].get(key))
            and key in each.config["Labels"]
        ]

    def _create(self, _: str) -> tuple[int, Any]:
        name = self.query["name"]
        with self.server.lock:
            if name in self.server.containers:
                return 409, {"message": f'Conflict. The container name "/{name}" is already in use'}
            self.server.containers[name] = Container(name, self.body, time.time())
            self.server.created.append(self.server.containers[name])
        return 201, {"Id": name, "Warnings": []}

    def _attach(self, name: str) -> tuple[int, Any]:
        container = self._found(name)
        if not container:
            return 404, {"message": f"No such container: {name}"}
        container.streams = self.connection
        self.send_response(101, "UPGRADED")
        self.send_header("Content-Type", "application/vnd.docker.raw-stream")
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "tcp")
        self.end_headers()
        self.close_connection = True
        container.started.wait()
        if container.process:
            container.copy_output()
        return 101, None

    def _start(self, name: str) -> tuple[int, Any]:
        container = self._found(name)
        if not container:
            return 404, {"message": f"No such container: {name}"}
        if container.status != "created":
            return 304, None
        container.start()
        return 204, None

    def _wait(self, name: str) -> tuple[int, Any]:
        container = self._found(name)
        if not container:
            return 404, {"message": f"No such container: {name}"}
        container.ended.wait()
        return 200, {"StatusCode": container.exit_code}

    def _inspect(self, name: str) -> tuple[int, Any]:
        container = self._found(name)
        if not container:
            return 404, {"message": f"No such container: {name}"}
        state = {
            "Status": container.status,
            "ExitCode": container.exit_code,
            "OOMKilled": container.is_out_of_memory,
            "StartedAt": container.started_at,
        }
        return 200, {"State": state}

    def _remove(self, name: str) -> tuple[int, Any]:
        with self.server.lock:
            container = self.server.containers.pop(name, None)
        if not container:
            return 404, {"message": f"No such container: {name}"}
        container.remove()
        return 204, None
