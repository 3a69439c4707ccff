"""What the Pod of a worker is made of, and the Secret with its ticket. A Pod shows no secret, and has no rights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marless.fleet.launchers.base import LaunchOrder, WorkerProgram
from marless_kubernetes.settings import TLS_FILES, TLS_KEYS, PodSettings, Toleration

Json = Mapping[str, Any]  # Any: as the server has it
LAUNCH, WORKER = "marless.launch", "marless.worker"
"""Labels: the launcher, and the worker's name."""
POOL = "marless.pool"
"""An annotation: the pool, as `marless_kubernetes.pools` writes it; its label only says that there is one."""
HANDOVER = "handover"
"""Key of the Secret, and name of its volume."""
SECRETS, COPIES = "/secrets", "/run/marless"
"""Where Secrets are mounted, which belong to root; where the worker's own copies of the files are."""
PROGRAM = "marless_kubernetes.worker"
CONTAINER = "worker"
GRACE_S = 30
"""Seconds between the notice and the end of a Pod that something else ends: its worker finishes its task."""
_BACKGROUND_CPU = "10m"
_RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}


@dataclass(frozen=True)
class PodOwner:
    """Whose Pods a launcher makes."""

    launch: str
    """Identifies the launcher."""
    pool: str
    """Identifies the pool's process, as the annotation has it."""
    reference: Json | None
    """The pool's own Pod, with which its workers' Pods are deleted; None outside a cluster."""

    def labels(self, worker: str, role: str) -> dict[str, str]:
        """Labels of a worker's Pod; `app` and `part` are those by which the chart's policies select workers."""
        return {"app": f"{role}-worker", "part": "worker", POOL: "true", LAUNCH: self.launch, WORKER: worker}


def role_of(program: WorkerProgram) -> str:
    """The role of a program's workers: "actor" or "learner"."""
    return next((each.removesuffix("_pool") for each in program.module.split(".") if each.endswith("_pool")), "actor")


def pod(name: str, order: LaunchOrder, program: WorkerProgram, settings: PodSettings, owner: PodOwner) -> Json:
    """The Pod of a worker."""
    labels = dict(settings.labels) | owner.labels(order.worker, role_of(program))
    metadata = {"name": name, "labels": labels, "annotations": {POOL: owner.pool}}
    references = {"ownerReferences": [owner.reference]} if owner.reference else {}
    spec = {
        "restartPolicy": "Never",  # its pool orders another one
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(order, program, settings)],
        "volumes": _volumes(name, role_of(program), settings),
        **_placement(settings),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | references, "spec": spec}


def secret(name: str, uid: str, line: str, labels: Mapping[str, str]) -> Json:
    """The Secret of a worker's Pod, with which it is deleted at the latest.

    A node does not ask again for one that is immutable, and so does not miss it when it is removed.
    """
    reference = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    metadata = {"name": name, "labels": dict(labels), "ownerReferences": [reference]}
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "immutable": True, "metadata": metadata,
        "stringData": {HANDOVER: line},
    }  # fmt: skip


def _container(order: LaunchOrder, program: WorkerProgram, settings: PodSettings) -> Json:
    arguments = (*_with_own_files(program.arguments), *order.arguments, "--launched", "--worker", order.worker)
    environment = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", **program.settings}
    mounts = [{"name": HANDOVER, "mountPath": f"{SECRETS}/{HANDOVER}", "readOnly": True}]
    if settings.credentials or settings.tls_secret:
        mounts.append({"name": "credentials", "mountPath": f"{SECRETS}/credentials", "readOnly": True})
    places = {"run": COPIES, "tmp": "/tmp", "shm": "/dev/shm"}
    return {
        "name": CONTAINER,
        "image": settings.image,
        **({"imagePullPolicy": settings.pull} if settings.pull else {}),
        "command": ["python", "-P", "-m", PROGRAM],
        "args": [SECRETS, COPIES, program.module, *arguments],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [*mounts, *({"name": name, "mountPath": path} for name, path in places.items())],
        "resources": _resources(order, settings),
        "securityContext": _RESTRICTED,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # its last lines reach the pool's log
    }


def _with_own_files(arguments: Sequence[str]) -> list[str]:
    """A command whose TLS files are the copies in the worker's container."""
    own = list(arguments)
    for index, flag in enumerate(arguments[:-1]):
        if flag in TLS_FILES:
            own[index + 1] = f"{COPIES}/{TLS_FILES[flag]}"
    return own


def _resources(order: LaunchOrder, settings: PodSettings) -> Json:
    # A worker of the lowest priority takes what is left over, and no place from an actor.
    cpu = _BACKGROUND_CPU if "--background" in order.arguments else f"{round(1000 * settings.cpus)}m"
    memory = {"memory": f"{settings.memory_bytes}"}
    extended = {name: f"{count}" for name, count in settings.resources.items()}
    # No limit of CPUs: it would slow a worker down while its node has nothing else to do.
    return {"requests": {"cpu": cpu, **memory, **extended}, "limits": {**memory, **extended}}


def _volumes(name: str, role: str, settings: PodSettings) -> list[Json]:
    def in_memory(volume: str, size_bytes: int) -> Json:
        return {"name": volume, "emptyDir": {"medium": "Memory", "sizeLimit": f"{size_bytes}"}}

    sources = _credentials(role, settings)
    return [
        {"name": HANDOVER, "secret": {"secretName": name}},
        *([{"name": "credentials", "projected": {"sources": sources}}] if sources else []),
        in_memory("run", 2**20),
        in_memory("tmp", settings.tmp_bytes),
        in_memory("shm", settings.shm_bytes),
    ]


def _credentials(role: str, settings: PodSettings) -> list[Json]:
    """Sources of the volume with a worker's TLS files and the token of its role."""

    def of(secret_name: str, files: Mapping[str, str]) -> Json:
        return {"secret": {"name": secret_name, "items": [{"key": key, "path": path} for key, path in files.items()]}}

    own = {} if settings.tls_secret else {file: file for file in TLS_FILES.values()}
    return [
        *([of(settings.tls_secret, TLS_KEYS)] if settings.tls_secret else []),
        *([of(settings.credentials, own | {role: role})] if settings.credentials else []),
    ]


def _placement(settings: PodSettings) -> Json:
    """What says on which nodes a Pod may run, and where its image comes from; only what is given."""
    given = {
        "nodeSelector": dict(settings.node_selector),
        "tolerations": [_toleration(each) for each in settings.tolerations],
        "priorityClassName": settings.priority_class,
        "runtimeClassName": settings.runtime_class,
        "serviceAccountName": settings.service_account,
        "imagePullSecrets": [{"name": settings.pull_secret}] if settings.pull_secret else [],
    }
    return {key: value for key, value in given.items() if value}


def _toleration(of: Toleration) -> Json:
    operator = {"operator": "Exists"} if of.value is None else {"operator": "Equal", "value": of.value}
    return {"key": of.key, **operator, **({"effect": of.effect} if of.effect else {})}
