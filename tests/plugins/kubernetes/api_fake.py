"""An API server on a port of this machine that speaks what the launcher uses of Kubernetes, with a node behind it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web

from tests.plugins.kubernetes.nodes import Node
from tests.plugins.kubernetes.objects import Json, ObjectStore, StatusError, selected

TOKEN = "token of the service account"
VERBS = {("POST", False): "create", ("GET", True): "get", ("GET", False): "list", ("DELETE", True): "delete"}
LAUNCHER = {("pods", verb) for verb in ("create", "get", "list", "watch", "delete")} | {
    ("secrets", "create"),
    ("secrets", "delete"),
}
Result = TypeVar("Result")


@dataclass(frozen=True)
class Fault:
    """What happens to a call instead."""

    status: int = 0
    """0: the connection ends without an answer."""
    message: str = ""
    reason: str = ""
    is_done: bool = False
    """Whether the call has its effect all the same."""
    hangs: bool = False
    headers: dict[str, str] = field(default_factory=dict)


class HeldAnswer:
    """The answer to one call, which is made at once and sent when it is released."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._released = asyncio.Event()
        self.is_reached = False

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._released.set)

    async def wait(self) -> None:
        self.is_reached = True
        await self._released.wait()


class FakeApiServer:
    """Its state belongs to the event loop of its own thread: `do` runs something there."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.loop = asyncio.new_event_loop()
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        """Verb and resource, such as "create pods" → what happens to the next calls."""
        self.holds: dict[str, HeldAnswer] = {}
        self.holds_before: dict[str, HeldAnswer] = {}
        self.calls: Counter[str] = Counter()
        self.allowed = set(LAUNCHER)
        """Resources and verbs that the service account may use."""
        self.quota = 0
        """Number of Pods that a quota allows; 0: no quota."""
        self.watches: set[web.StreamResponse] = set()
        self.watching_since: list[str] = []
        """The version of each watch that was asked for."""
        self.url = ""
        self.kubeconfig = place / "kubeconfig"
        self.closing: asyncio.Event

    def do(self, what: Callable[[], Result]) -> Result:
        """Run this in the server's thread."""

        async def run() -> Result:
            return what()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(30.0)

    @property
    def pods(self) -> dict[str, Json]:
        return self.do(lambda: dict(self.store.objects["pods"]))

    @property
    def secrets(self) -> dict[str, Json]:
        return self.do(lambda: dict(self.store.objects["secrets"]))

    def cut_watches(self) -> None:
        """End the connections of all watches, as the restart of a server does."""
        self.do(self.cut_in_thread)

    def cut_in_thread(self) -> None:
        """The same, for `do`: nothing else happens before what follows."""
        for each in self.watches:
            each.task.cancel()

    def hold(self, call: str, *, before: bool = False) -> HeldAnswer:
        """Hold back the answer to the next call of this verb and resource, or `before` that what it does."""
        held = HeldAnswer(self.loop)
        (self.holds_before if before else self.holds)[call] = held
        return held

    async def serve(self, started: threading.Event) -> None:
        self.store = ObjectStore()
        self.node = Node(self.store, self.place / "node")
        self.closing = asyncio.Event()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        node = asyncio.create_task(self.node.run())
        started.set()
        await self.closing.wait()
        node.cancel()
        await asyncio.gather(node, return_exceptions=True)
        for each in list(self.watches):
            each.task.cancel()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._checked(request)
        except StatusError as error:
            return web.json_response(error.body, status=error.code)

    async def _checked(self, request: web.Request) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if (scheme.lower(), token) != ("bearer", TOKEN):
            raise StatusError(401, "Unauthorized", "Unauthorized")
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "36", "gitVersion": "v1.36.0"})
        _, _, _, _, namespace, resource, *rest = (*request.path.split("/"), "")
        name = rest[0] if rest else ""
        verb = "watch" if request.query.get("watch") else VERBS[request.method, bool(name)]
        self.calls[f"{verb} {resource}"] += 1
        self._authorize(verb, resource, namespace)
        fault = self.faults[f"{verb} {resource}"].popleft() if self.faults[f"{verb} {resource}"] else None
        if held := self.holds_before.pop(f"{verb} {resource}", None):
            await held.wait()
        if fault is None:
            answer = await self._done(verb, resource, name, request)
            if held := self.holds.pop(f"{verb} {resource}", None):
                await held.wait()
            return answer
        if fault.is_done:
            await self._done(verb, resource, name, request)
        if fault.status:
            error = StatusError(fault.status, fault.reason, fault.message)
            return web.json_response(error.body, status=fault.status, headers=fault.headers)
        if fault.hangs:
            await self.closing.wait()
        assert request.transport
        request.transport.abort()
        return web.Response()

    def _authorize(self, verb: str, resource: str, namespace: str) -> None:
        if (resource, verb) not in self.allowed:
            who = 'User "system:serviceaccount:marless:actor-pool"'
            what = f'cannot {verb} resource "{resource}" in API group "" in the namespace "{namespace}"'
            raise StatusError(403, "Forbidden", f"{resource} is forbidden: {who} {what}")

    async def _done(self, verb: str, resource: str, name: str, request: web.Request) -> web.StreamResponse:
        query = request.query
        if verb == "create":
            sent = json.loads(await request.read())
            self._check_quota(resource, sent["metadata"]["name"])
            return web.json_response(self.store.create(resource, sent, dry_run="dryRun" in query), status=201)
        if verb == "get":
            return web.json_response(self.store.get(resource, name))
        if verb == "list":
            found = [
                each for each in self.store.objects[resource].values() if selected(each, query.get("labelSelector", ""))
            ]
            metadata = {"resourceVersion": str(self.store.version)}
            return web.json_response({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": found})
        if verb == "watch":
            return await self._watch(resource, request)
        grace = query.get("gracePeriodSeconds")
        return web.json_response(self.store.delete(resource, name, int(grace) if grace else None))

    def _check_quota(self, resource: str, name: str) -> None:
        used = len(self.store.objects["pods"])
        if resource == "pods" and self.quota and used >= self.quota:
            counts = f"requested: pods=1, used: pods={used}, limited: pods={self.quota}"
            raise StatusError(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: team, {counts}')

    async def _watch(self, resource: str, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        version, selector = request.query["resourceVersion"], request.query.get("labelSelector", "")
        self.watching_since.append(version)
        at = int(version)
        self.watches.add(response)
        try:
            while True:
                changed = self.store.changed
                try:
                    events = self.store.since(at, resource)
                except StatusError as error:
                    await _send(response, "ERROR", error.body)
                    return response
                for version_, kind, found in events:
                    at = version_
                    if kind == "BOOKMARK" or selected(found, selector):
                        await _send(response, kind, found)
                await changed.wait()
        except asyncio.CancelledError:
            if request.transport:
                request.transport.abort()
            raise
        finally:
            self.watches.discard(response)


async def _send(response: web.StreamResponse, kind: str, found: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")


@contextmanager
def api_server(place: Path) -> Iterator[FakeApiServer]:
    """A running server, of which no process is left afterwards."""
    server, started = FakeApiServer(place), threading.Event()
    thread = threading.Thread(target=lambda: server.loop.run_until_complete(server.serve(started)))
    thread.start()
    try:
        assert started.wait(30.0)
        server.kubeconfig.write_text(json.dumps(_kubeconfig(server.url)))
        yield server
    finally:
        with suppress(RuntimeError):
            server.loop.call_soon_threadsafe(server.closing.set)
        thread.join()
        server.loop.close()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "pool", "user": {"token": TOKEN}}],
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "pool", "namespace": "marless"}}],
    }
