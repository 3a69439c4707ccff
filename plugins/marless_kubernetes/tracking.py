"""Follows what becomes of a launcher's Pods: a list, and from then on the changes that a watch reports.

A watch that ends goes on where it was: after the newest version that an event or a bookmark has told. If the server
does not have that version any more (410 Gone), the Pods are listed again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from marless.core.errors import MarlessError
from marless.core.log import structlog
from marless_kubernetes.api_server import ApiError, ApiServer, Json
from marless_kubernetes.pod_states import GONE, PodState

WATCH_S = 240.0
"""Seconds after which the server ends a watch, which then begins anew."""
FIRST_WAIT_S = 0.5
"""Seconds before a watch that failed is tried again; twice as long after each further one, up to `LONGEST_WAIT_S`."""
LONGEST_WAIT_S = 15.0
_GONE = 410
_log = structlog.get_logger("marless.workers")


class TrackedPod:
    """A Pod, and what is known of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_created = False
        """True once the server has said so."""
        self.state = PodState()
        self._changed = asyncio.Event()

    def become(self, state: PodState) -> None:
        """Note a new state. What has ended stays so."""
        if not self.state.ended:
            self.state = state
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, reached: Callable[[PodState], object], limit_s: float | None = None) -> PodState:
        """Wait for a state, but not longer than `limit_s`; returns the newest one."""
        try:
            async with asyncio.timeout(limit_s):
                while not reached(self.state):
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self.state


class PodTracker:
    """Tells Pods what becomes of them; an own task does so until `close`."""

    def __init__(self, server: ApiServer, selector: str, read: Callable[[Json], PodState]) -> None:
        """`selector` names the Pods by their labels, and `read` makes a state of one."""
        self._server = server
        self._selector = selector
        self._read = read
        self._pods: dict[str, TrackedPod] = {}
        self._version = ""
        """Of the newest event; "": the Pods must be listed."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """List the Pods, and follow them from then on; raises ApiError if they cannot be listed."""
        if self._task is None:
            await self._list()
            self._task = asyncio.create_task(self._follow())

    def track(self, pod: TrackedPod) -> None:
        """Follow this Pod, from before it is created, so that no event of it is missed."""
        self._pods[pod.name] = pod

    def release(self, pod: TrackedPod) -> None:
        """Follow it no more."""
        self._pods.pop(pod.name, None)

    async def close(self) -> None:
        """Stop following."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                wait_s = FIRST_WAIT_S
                continue
            except ApiError as error:
                if error.status == _GONE and self._version:
                    self._version = ""
                    continue
                self._version = "" if error.status == _GONE else self._version
                failed: MarlessError = error
            except MarlessError as error:
                failed = error
            _log.warning("pods.unwatched", reason=str(failed), again_s=round(wait_s, 1))
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _list(self) -> None:
        # A list has what was created before it was asked for; what was created since may be missing in it.
        known = [pod for pod in self._pods.values() if pod.is_created]
        listed = await self._server.call("list Pods", "GET", "pods", labelSelector=self._selector)
        found = {each["metadata"]["name"]: each for each in listed["items"]}
        for pod in known:
            pod.become(self._read(found[pod.name]) if pod.name in found else GONE)
        self._version = listed["metadata"]["resourceVersion"]

    async def _watch(self) -> None:
        selected = {"labelSelector": self._selector, "resourceVersion": self._version}
        async for event in self._server.watch("watch Pods", "pods", WATCH_S, **selected):
            changed = event["object"]
            self._version = changed["metadata"]["resourceVersion"]
            pod = self._pods.get(changed["metadata"].get("name", ""))
            if pod and event["type"] != "BOOKMARK":
                pod.become(self._left(changed) if event["type"] == "DELETED" else self._read(changed))

    def _left(self, pod: Json) -> PodState:
        """The last state of a Pod that is deleted: how it ended, if it had ended before."""
        state = self._read(pod)
        return state if state.ended else GONE
