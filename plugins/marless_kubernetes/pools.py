"""Which pool a Pod of a worker belongs to, and whether that has ended."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from marless.core import orphans
from marless.core.errors import SpecError
from marless.core.orphans import Orphan
from marless_kubernetes.api_server import ApiError, ApiServer, Json
from marless_kubernetes.manifests import POOL
from marless_kubernetes.settings import NAME

SAME_S = 1.0
"""Times of Pods come in whole seconds."""


@dataclass(frozen=True, kw_only=True)
class PoolIdentity:
    """A pool, as its workers' Pods tell it in an annotation: a Pod, or a process outside the cluster."""

    role: str
    """actor or learner: a Pod may have a pool of each."""
    pod: str = ""
    """Name of its Pod."""
    uid: str = ""
    boot: str = ""
    """The boot of its machine."""
    namespace: str = ""
    """Its PID namespace."""
    pid: int = 0
    started: int = 0
    """When it started, in clock ticks after the machine."""

    @classmethod
    def of_process(cls, role: str) -> PoolIdentity:
        """This process, which runs in no Pod."""
        pid = os.getpid()
        return cls(role=role, boot=_boot(), namespace=orphans.namespace(), pid=pid, started=orphans.started(pid) or 0)

    @classmethod
    def parse(cls, text: str) -> PoolIdentity | None:
        """Read an annotation; None if it is not of this form."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None

    def __str__(self) -> str:
        """The annotation."""
        return json.dumps({key: value for key, value in asdict(self).items() if value})

    @property
    def shown(self) -> str:
        """The pool, for people."""
        return f"Pod {self.pod}" if self.pod else str(self.pid)

    def has_ended(self, worker: Json, pools: Mapping[str, Json]) -> bool:
        """True if this pool has certainly ended.

        Args:
            worker: A Pod that it created.
            pools: All Pods of the namespace, by uid.
        """
        if self.pod:
            pool = pools.get(self.uid)
            # If the pool's container was started again since, what created this Pod ended with the earlier run.
            return pool is None or _last_start_s(pool) > _created_s(worker) + SAME_S
        here = (self.boot, self.namespace) == (_boot(), orphans.namespace())
        # Of another machine nothing is known; a process id says something only within its own namespace.
        return here and orphans.started(self.pid) != self.started


async def own_pod(server: ApiServer) -> Json | None:
    """The Pod that this process runs in, of which $MARLESS_POD or the host's name is the name; None outside a cluster.

    Raises ApiError, and SpecError if there is no such Pod: then nothing would delete its workers' Pods with it.
    """
    if not server.in_cluster:
        return None
    name = os.environ.get("MARLESS_POD") or socket.gethostname()
    try:
        return await server.call(f"look up Pod {name}, in which this pool runs", "GET", f"pods/{name}")
    except ApiError as error:
        if error.status != 404:
            raise
        raise SpecError(f"launcher {NAME}: this pool runs in no Pod {name}; set MARLESS_POD to its name") from None


async def pods_of_dead_pools(server: ApiServer) -> AsyncIterator[Orphan]:
    """The Pods of workers whose pool has ended, whatever their state."""
    listed = await server.call("list Pods", "GET", "pods")
    pools = {each["metadata"]["uid"]: each for each in listed["items"]}
    for pod in listed["items"]:
        pool = PoolIdentity.parse((pod["metadata"].get("annotations") or {}).get(POOL, ""))
        if pool and pool.has_ended(pod, pools):
            what = f"{pod['spec']['containers'][0]['image']} ({pod['status'].get('phase', 'Pending')})"
            age_s = round(time.time() - _created_s(pod), 1)
            yield Orphan(NAME, pod["metadata"]["name"], pool.shown, what, age_s)


def _created_s(pod: Json) -> float:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def _last_start_s(pod: Json) -> float:
    """When the youngest container of a Pod was started; 0 if none runs, as while it begins anew."""
    states = [each.get("state", {}).get("running") or {} for each in pod["status"].get("containerStatuses") or ()]
    return max((datetime.fromisoformat(each["startedAt"]).timestamp() for each in states if each), default=0.0)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
