"""Calls to a container engine through the Docker SDK: they block, and their errors say what failed and what to do."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from marless.core.errors import SpecError, UnavailableError, told

DEFAULT = "unix:///var/run/docker.sock"
_NO_MEMORY = ("cannot allocate memory", "out of memory", "not enough memory", "resource temporarily unavailable")
_TAKEN = ("already in use", "is in use")
Json = Mapping[str, Any]  # Any: as the engine has it


class EngineError(UnavailableError):
    """A call failed; the message says which, on what, why, and what to do."""

    def __init__(self, message: str, *, status: int = 0, lost: bool = False, absent: bool = False) -> None:
        super().__init__(message)
        self.status = status
        """Status of the engine's answer; 0 if it gave none."""
        self.lost = lost
        """True if the engine may have done, or may still do, what it was asked."""
        self.absent = absent
        """True if there is no engine, or it may not be used."""


@dataclass(frozen=True)
class ContainerState:
    """What became of a container."""

    status: str
    """"created", "running", or another word for one that has ended."""
    exit_code: int
    is_out_of_memory: bool
    started: str
    """When it was started, as the engine writes it."""

    @property
    def is_running(self) -> bool:
        """False before its start and after its end."""
        return self.status in ("running", "paused", "restarting")


class Engine:
    """One container engine. Its methods block, and may be called by several threads at once."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """`url` is that of its API, "" for $DOCKER_HOST or Docker's own socket; each call may take `timeout_s`.

        Raises SpecError without the package `docker`, and for an engine that only the SDK's TLS or SSH could reach.
        """
        self.url = url or os.environ.get("DOCKER_HOST", "") or DEFAULT
        if not self.url.startswith(("unix://", "tcp://", "http://")) or os.environ.get("DOCKER_TLS_VERIFY"):
            raise SpecError(
                f"launcher docker: the engine at {self.url} over TLS or SSH is not supported: run the pool on the "
                "engine's host, and give engine=unix:///var/run/docker.sock"
            )
        self._docker = _sdk()
        self._timeout_s = timeout_s
        self._connected: Any = None  # Any: the SDK has no types
        self._connecting = threading.Lock()

    def create(self, name: str, config: Json, host_config: Json) -> None:
        """Create a container under this name, unless it exists. Repeated after a lost answer, it makes no second one.

        A container of the name that has been started is replaced.
        """
        for _ in range(2):
            try:
                with self._told("create container", name) as client:
                    host = client.create_host_config(**host_config)
                    client.create_container_from_config(
                        client.create_container_config(**config, host_config=host), name
                    )
                    return
            except EngineError as error:
                if not (error.lost or error.status == 409 or any(each in str(error) for each in _TAKEN)):
                    raise
                failed = error
            found = self.state(name)
            if found and found.status in ("created", "configured"):
                return
            if found:
                self.remove(name)
        raise failed

    def attach(self, name: str) -> socket.socket:
        """Connect to the standard streams of a container; the engine closes its input when the socket is closed."""
        with self._told("attach to container", name) as client:
            streams = client.attach_socket(name, {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
            own = socket.socket(fileno=os.dup(streams.fileno()))
            streams._response.close()  # or the SDK's own descriptor would keep the connection open
            return own

    def start(self, name: str) -> None:
        """Start a container, once; a lost answer is looked up."""
        try:
            with self._told("start container", name) as client:
                client.start(name)
        except EngineError as error:
            found = self.state(name) if error.lost else None
            if found is None:
                raise
            if found.status in ("created", "configured", "initialized"):
                with self._told("start container", name) as client:
                    client.start(name)

    def state(self, name: str) -> ContainerState | None:
        """The state of a container; None if there is none of this name or id."""
        try:
            with self._told("inspect container", name) as client:
                found = client.inspect_container(name)["State"]
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return ContainerState(
            found["Status"], int(found["ExitCode"]), bool(found["OOMKilled"]), str(found["StartedAt"])
        )

    def ended(self, name: str) -> ContainerState | None:
        """Wait until a container has ended; returns its state, or None if it is gone."""
        with self._told("wait for container", name) as client:
            try:
                client.wait(name, timeout=self._timeout_s)
            except self._docker.errors.NotFound:
                return None
        return self.state(name)

    def remove(self, name: str) -> None:
        """Kill and remove a container, and its anonymous volumes; nothing happens if there is none of the name."""
        try:
            with self._told("remove container", name) as client:
                client.remove_container(name, force=True, v=True)
        except EngineError as error:
            if error.status not in (404, 409):  # 409: its removal is in progress
                raise

    def labelled(self, label: str) -> list[Json]:
        """All containers with this label, in any state, as the engine lists them."""
        with self._told("list containers with label", label) as client:
            return list(client.containers(all=True, filters={"label": [label]}))

    def image(self, name: str) -> Json:
        """The configuration of an image."""
        with self._told("inspect image", name) as client:
            return dict(client.inspect_image(name)["Config"])

    def check_network(self, name: str) -> None:
        """Raise EngineError if there is no such network."""
        if name not in ("bridge", "host", "none"):
            with self._told("inspect network", name) as client:
                client.inspect_network(name)

    def version(self) -> str:
        """Name and version of the engine."""
        with self._told("ask for the version of", self.url) as client:
            said = client.version()
        name = next(iter(said.get("Components") or ({"Name": "Engine"},)))["Name"]
        return f"{name} {said['Version']}, API {client.api_version}"

    @contextmanager
    def _told(self, call: str, what: str) -> Iterator[Any]:  # Any: the SDK has no types
        """Provide the client; all errors of a call become an EngineError."""
        import requests

        try:
            yield self._client()
        except self._docker.errors.APIError as error:
            status = int(error.response.status_code)
            raise EngineError(_sentence(call, what, str(error.explanation or error)), status=status) from None
        except (requests.RequestException, self._docker.errors.DockerException, OSError) as error:
            raise self._unanswered(call, what, error) from None

    def _client(self) -> Any:  # Any: the SDK has no types
        # Several threads come here. The client is made with the first call, because that asks the engine for its
        # version; if it fails, the next call tries again.
        with self._connecting:
            if self._connected is None:
                self._connected = self._docker.APIClient(self.url, version="auto", timeout=self._timeout_s)
            return self._connected

    def _unanswered(self, call: str, what: str, error: BaseException) -> EngineError:
        number = next((each.errno for each in _causes(error) if isinstance(each, OSError) and each.errno), 0)
        begin = f"cannot {call} {what}"
        if number in (errno.EACCES, errno.EPERM):
            who = f"user {os.getuid()} may not use the container engine at {self.url}"
            return EngineError(
                f"{begin}: {who}; add the user to the group of its socket (`docker`), or set DOCKER_HOST to a "
                "rootless engine",
                absent=True,
            )
        answers = [each for each in _causes(error) if isinstance(each, self._docker.errors.APIError)]
        if answers:
            status = answers[0].response.status_code
            return EngineError(
                f"{begin}: what answers at {self.url} does not serve Docker's API (status {status}); set DOCKER_HOST "
                "to the address of a container engine",
                absent=True,
            )
        if number == errno.EAGAIN:
            return EngineError(f"{begin}: the container engine at {self.url} is busy; it is asked again")
        if number in (errno.ENOENT, errno.ECONNREFUSED):
            return EngineError(
                f"{begin}: no container engine answers at {self.url}; start it (`systemctl start docker`), or set "
                "DOCKER_HOST to its address",
                absent=True,
            )
        late = any(isinstance(each, TimeoutError) or "timed out" in str(each) for each in _causes(error))
        why = f"no answer within {self._timeout_s:g} s" if late else f"the connection ended ({told(error)})"
        return EngineError(f"{begin}: {why} from the container engine at {self.url}; see its log", lost=True)


def _sdk() -> Any:  # Any: the SDK has no types
    try:
        import docker
    except ImportError:
        raise SpecError("launcher docker: the package `docker` is missing: pip install 'marless[docker]'") from None
    return docker


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that it wraps, as an argument, a cause or a context."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            inner = (*one.args, one.__cause__, one.__context__, getattr(one, "reason", None))
            waiting += [each for each in inner if isinstance(each, BaseException)]


_ADVICE: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda said: "image" in said, "build the image, or pull it, or give another one with image="),
    (lambda said: "network" in said, "create the network (`docker network create`), or give another one with network="),
    (lambda said: any(each in said for each in _NO_MEMORY), "end something else, or give less with memory="),
    (lambda said: "no space left" in said, "make room on the disk of the engine"),
    (lambda said: "mount" in said or "bind" in said, "correct volumes=; a source is a path of the engine's host"),
)


def _sentence(call: str, what: str, explanation: str) -> str:
    said = explanation.lower()
    advice = next((advice for fits, advice in _ADVICE if fits(said)), "see the engine's log")
    return f"cannot {call} {what}: {explanation.strip().rstrip('.')}; {advice}"
