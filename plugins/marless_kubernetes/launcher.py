"""The launcher of Pods: each worker runs in one of its own, which an API server of Kubernetes is asked for.

A Pod's name is determined by its launcher, its worker and the count of orders, so that a creation whose answer was lost
is found again and never doubled. The worker's ticket and token go through a Secret that is made when the Pod has a node
and removed when its container runs. The pool's own Pod owns the Pods of its workers: they are deleted with it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from marless.core.errors import SpecError, UnavailableError
from marless.core.log import structlog
from marless.fleet.handover import Handover
from marless.fleet.launchers.base import ACCEPTED, Condition, Launch, Launcher, LaunchOrder, LaunchOutcome, Options
from marless.fleet.launchers.base import WorkerProgram as Program
from marless_kubernetes import manifests, pools
from marless_kubernetes.api_server import ApiError, ApiServer, Json
from marless_kubernetes.manifests import PodOwner
from marless_kubernetes.pod_states import PodState, state_of
from marless_kubernetes.pools import PoolIdentity
from marless_kubernetes.settings import NAME, KubernetesSettings, PodSettings, read
from marless_kubernetes.tracking import PodTracker, TrackedPod

KEEP_S = 12.0
"""Seconds for which a Pod is kept that has no node. A pool asks for refused workers again after five: meanwhile an
autoscaler must see what they need."""
REMOVE_S = 30.0
"""Seconds in which a deleted Pod must be gone; that of a lost node is not."""
CLOSE_S = 20.0
"""Seconds in which `close` ends all workers; then the deletion of the pool's Pod is left to do so."""
_KILL_S = "1"
"""Seconds between SIGTERM and SIGKILL for a worker that is not to finish its task; with 0, nobody would wait for it."""
_log = structlog.get_logger("marless.workers")


@dataclass(frozen=True)
class _Prepared:
    """What a launcher finds out before its first order."""

    settings: PodSettings
    owner: PodOwner
    tracker: PodTracker


class KubernetesLauncher:
    """Starts workers in Pods, and removes these when the workers have ended."""

    def __init__(self, program: Program, settings: KubernetesSettings, server: ApiServer) -> None:
        """The token that a worker is handed is the program's current one; its Pod's Secret renews it."""
        self.connect_s = settings.connect_s
        self._program = program
        self._settings = settings
        self._server = server
        self._launch_id = secrets.token_hex(4)
        self._serials = itertools.count()
        self._pods: dict[str, TrackedPod] = {}
        self._kept: dict[str, TrackedPod] = {}
        """Worker → its Pod that waits for a node while the worker is not ordered."""
        self._unknown: dict[str, str] = {}
        """Worker → why it is not known whether its Pod exists."""
        self._background: set[asyncio.Task[None]] = set()
        self._preparing: asyncio.Task[_Prepared] | None = None
        self._closed = False

    def capacity(self) -> None:
        """Kubernetes says so when it has no room, and an autoscaler may make some."""
        return

    async def launch(self, orders: Sequence[LaunchOrder]) -> Sequence[Launch]:
        """Create Pods, some at once. What has no node in time is refused, and ordered again by the pool."""
        # After a failure once more, because the server may answer by now.
        if self._preparing is None or (self._preparing.done() and self._preparing.exception()):
            self._preparing = asyncio.create_task(self._prepare())
        try:
            prepared = await asyncio.shield(self._preparing)
        except (UnavailableError, SpecError) as error:
            return [Launch(LaunchOutcome.REFUSED, str(error))] * len(orders)
        return await asyncio.gather(*(self._launch(prepared, order) for order in orders))

    async def observe(self, worker: str) -> str:
        """Wait for the end of its Pod; one that is not known to exist is removed first."""
        if pod := self._pods.get(worker):
            if worker in self._unknown:
                await self._remove(pod)
                return self._unknown[worker]
            return (await pod.until(lambda state: state.ended or state.trouble)).ended or pod.state.trouble
        return "not started"

    async def leaving(self, worker: str) -> str:
        """Wait until something else is about to end its Pod: an eviction, or the end of its node."""
        if pod := self._pods.get(worker):
            return (await pod.until(lambda state: state.leaving)).leaving
        return await asyncio.Future()

    async def drain(self, worker: str, grace_s: float) -> None:
        """Delete its Pod, and with it all processes in it. One that waits for a node is kept for a while."""
        pod = self._pods.get(worker)
        if pod is None:
            return
        if grace_s and worker not in self._unknown:
            await pod.until(lambda state: state.ended, grace_s)
        await self._remove(pod)
        if self._pods.get(worker) is pod:
            del self._pods[worker]
        self._unknown.pop(worker, None)

    async def close(self) -> None:
        """Delete all Pods that this launcher has created, also those whose creation was never answered."""
        if self._closed:
            return
        self._closed = True
        if self._preparing:
            await asyncio.gather(self._preparing, return_exceptions=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._delete_all()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            if not self._preparing.exception():
                await self._preparing.result().tracker.close()
        await self._server.close()

    async def check(self) -> Condition:
        """Have the server try the creation of a Pod without creating it: rights, quotas and policies are checked."""
        try:
            version = await self._server.call("ask for the server's version", "GET", "/version")
            settings, owner = await self._settings_and_owner()
            order = LaunchOrder("doctor", "")
            body = manifests.pod(f"marless-{self._launch_id}-doctor", order, self._program, settings, owner)
            await self._server.call("create a Pod", "POST", "pods", body, dryRun="All")
        except (UnavailableError, SpecError) as error:
            found, _, advice = str(error).partition("; ")
            return Condition(found, advice or "see the API server's log")
        where = f"namespace {self._server.namespace} of {self._server.url}"
        return Condition(f"Kubernetes {version['gitVersion']}, {where}, image {settings.image}")

    async def _prepare(self) -> _Prepared:
        """Find the pool's own Pod, delete what dead pools have left, and follow Pods from then on."""
        settings, owner = await self._settings_and_owner()
        async for left in pools.pods_of_dead_pools(self._server):
            await self._delete(left.id)
            _log.warning("pod.reaped", pod=left.id, pool=left.pool, age_s=left.age_s)
        selector = f"{manifests.LAUNCH}={self._launch_id}"
        tracker = PodTracker(self._server, selector, partial(state_of, settings=settings))
        await tracker.start()
        return _Prepared(settings, owner, tracker)

    async def _settings_and_owner(self) -> tuple[PodSettings, PodOwner]:
        """The settings with the defaults of the pool's own Pod, and whose Pods its workers' are."""
        settings, role = self._settings.pod, manifests.role_of(self._program)
        own = await pools.own_pod(self._server)
        if own is None:
            if not settings.image:
                raise SpecError(
                    f"launcher {NAME}: give the image of the workers: --launcher {NAME},image=REGISTRY/NAME"
                )
            return settings, PodOwner(self._launch_id, str(PoolIdentity.of_process(role)), None)
        name, uid = own["metadata"]["name"], own["metadata"]["uid"]
        container = own["spec"]["containers"][0]
        pull_secrets = [str(each["name"]) for each in own["spec"].get("imagePullSecrets") or ()]
        found = replace(
            settings,
            image=settings.image or container["image"],
            pull=settings.pull or container.get("imagePullPolicy", ""),
            pull_secret=settings.pull_secret or next(iter(pull_secrets), ""),
        )
        reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
        return found, PodOwner(self._launch_id, str(PoolIdentity(role=role, pod=name, uid=uid)), reference)

    async def _launch(self, prepared: _Prepared, order: LaunchOrder) -> Launch:
        pod = self._kept.pop(order.worker, None)
        if pod is None or pod.state.ended:
            pod = TrackedPod(self._name(order.worker))
            prepared.tracker.track(pod)
            if refused := await self._created(prepared, order, pod):
                return refused
        place_s = self._settings.place_s
        state = await pod.until(lambda state: state.is_scheduled or state.ended, place_s)
        if not (state.is_scheduled or state.ended):
            self._keep(order.worker, pod)
            return Launch(
                LaunchOutcome.REFUSED, state.waits or f"Pod {pod.name} has no node yet; it is asked for again"
            )
        self._pods[order.worker] = pod
        try:
            await self._hand_over(prepared, order, pod)
        except ApiError as error:
            return await self._refused(order.worker, pod, str(error))
        state = await pod.until(lambda state: state.has_started or state.ended or state.trouble, place_s)
        if state.trouble or (state.ended and not state.has_started):
            return await self._refused(order.worker, pod, state.trouble or state.ended)
        self._do(self._follow(order.worker, pod))
        return ACCEPTED

    def _name(self, worker: str) -> str:
        plain = re.sub("[^a-z0-9-]+", "-", worker.lower()).strip("-")[:100]
        return f"marless-{self._launch_id}-{plain}-{next(self._serials)}"

    async def _created(self, prepared: _Prepared, order: LaunchOrder, pod: TrackedPod) -> Launch | None:
        """Create a Pod; None if it is there."""
        body = manifests.pod(pod.name, order, self._program, prepared.settings, prepared.owner)
        try:
            made = await self._create(pod.name, body)
        except ApiError as error:
            if error.lost:
                # It may exist, or come to; it is tracked, by which `drain` finds it.
                self._pods[order.worker] = pod
                self._unknown[order.worker] = str(error)
                return Launch(LaunchOutcome.UNKNOWN, str(error))
            prepared.tracker.release(pod)
            # What the server does not understand, it will not understand later either.
            failed = error.status in (400, 422)
            return Launch(LaunchOutcome.FAILED if failed else LaunchOutcome.REFUSED, str(error))
        pod.is_created = True
        if not pod.state.uid:
            pod.become(state_of(made, prepared.settings))
        return None

    async def _create(self, name: str, body: Json) -> Json:
        try:
            return await self._server.call(f"create Pod {name}", "POST", "pods", body)
        except ApiError as error:
            if error.reason != "AlreadyExists":  # then an earlier try created it, whose answer was lost
                raise
        return await self._server.call(f"look up Pod {name}", "GET", f"pods/{name}")

    async def _hand_over(self, prepared: _Prepared, order: LaunchOrder, pod: TrackedPod) -> None:
        """Make the Secret for which the Pod's node waits."""
        line = Handover(order.ticket, self._program.token()).to_line().decode()
        labels = prepared.owner.labels(order.worker, manifests.role_of(self._program))
        body = manifests.secret(pod.name, pod.state.uid, line, labels)
        try:
            await self._server.call(f"create Secret {pod.name}", "POST", "secrets", body)
        except ApiError as error:
            if error.reason != "AlreadyExists":  # as above
                raise

    async def _refused(self, worker: str, pod: TrackedPod, reason: str) -> Launch:
        """Remove a Pod that cannot start now."""
        await self._remove(pod)
        self._pods.pop(worker, None)
        return Launch(LaunchOutcome.REFUSED, reason)

    def _keep(self, worker: str, pod: TrackedPod) -> None:
        """Keep a Pod that waits for a node, until it is ordered again or `KEEP_S` have passed."""

        async def give_up() -> None:
            await asyncio.sleep(KEEP_S)
            if self._kept.get(worker) is pod:
                del self._kept[worker]
                await self._remove(pod)

        self._kept[worker] = pod
        self._do(give_up())

    async def _follow(self, worker: str, pod: TrackedPod) -> None:
        """Remove the Secret once the container runs, and log the last lines of a worker that fails."""
        await pod.until(lambda state: state.has_started or state.ended)
        await self._forget_secret(pod)
        state = await pod.until(lambda state: state.ended)
        if state.last_words:
            _log.warning("pod.ended", worker=worker, pod=pod.name, how=state.ended)
            sys.stderr.write(state.last_words.rstrip() + "\n")

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _forget_secret(self, pod: TrackedPod) -> None:
        try:
            await self._delete_one("secrets", pod.name)
        except ApiError as error:  # it is deleted with its Pod
            _log.warning("secret.left", secret=pod.name, reason=str(error))

    async def _remove(self, pod: TrackedPod) -> None:
        """Delete a Pod, and wait until it is gone. That of a lost node is left to the cluster."""
        try:
            await self._delete(pod.name)
            if pod.is_created and not (await pod.until(_is_gone, REMOVE_S)).ended:
                _log.error("pod.left", pod=pod.name, reason="its node does not answer", advice="marless fleet reap")
        except ApiError as error:
            _log.error("pod.left", pod=pod.name, reason=str(error), advice="marless fleet reap")
        if self._preparing and not self._preparing.exception():
            self._preparing.result().tracker.release(pod)

    async def _delete(self, name: str) -> None:
        await self._delete_one("pods", name)
        await self._delete_one("secrets", name)

    async def _delete_one(self, kind: str, name: str) -> None:
        what = f"delete {'Pod' if kind == 'pods' else 'Secret'} {name}"
        try:
            await self._server.call(what, "DELETE", f"{kind}/{name}", gracePeriodSeconds=_KILL_S)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _delete_all(self) -> None:
        await asyncio.gather(*map(self._remove, (*self._pods.values(), *self._kept.values())))
        self._pods.clear()
        with suppress(UnavailableError, SpecError):
            selector = f"{manifests.LAUNCH}={self._launch_id}"
            listed = await self._server.call("list Pods", "GET", "pods", labelSelector=selector)
            for each in listed["items"]:
                await self._delete(each["metadata"]["name"])


def _is_gone(state: PodState) -> bool:
    return bool(state.ended)


def make(program: Program, options: Options) -> Launcher:
    """The launcher `kubernetes`; its options are those of `marless_kubernetes.settings`."""
    settings = read(program, options)
    return KubernetesLauncher(program, settings, ApiServer(settings.access))
