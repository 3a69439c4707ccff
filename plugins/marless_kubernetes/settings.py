"""Options of the launcher `kubernetes`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from marless.core.errors import SpecError
from marless.fleet.launchers.base import Options, WorkerProgram
from marless.fleet.launchers.registry import CONNECT_S, above_0, check_names, size_bytes
from marless.rpc.addresses import is_local

NAME = "kubernetes"
TLS_FILES: Mapping[str, str] = {"--tls-cert": "certificate.pem", "--tls-key": "key.pem", "--tls-ca": "authority.pem"}
"""Options of workers, and the keys of the Secret that has their files; `marless credentials` names files so."""
TLS_KEYS: Mapping[str, str] = {"tls.crt": "certificate.pem", "tls.key": "key.pem", "ca.crt": "authority.pem"}
"""Keys of a Secret that cert-manager makes, and the files that they become."""
_ACCESS = ("namespace", "kubeconfig", "context", "api_s")
_OPTIONS = (
    *("image", "pull", "pull_secret", "credentials", "tls_secret", "service_account", "user"),
    *("cpus", "memory", "gpus", "resources", "tmp", "shm"),
    *("node_selector", "tolerations", "labels", "priority_class", "runtime_class"),
    *_ACCESS,
    *("place_s", CONNECT_S),
)
_PULL = {"": "", "always": "Always", "missing": "IfNotPresent", "never": "Never"}
_NAME = r"[A-Za-z0-9]([\w./-]*[A-Za-z0-9])?"
_PAIR = re.compile(rf"({_NAME}):({_NAME})?")
_TOLERATION = re.compile(rf"({_NAME})(=({_NAME})?)?(:(NoSchedule|PreferNoSchedule|NoExecute))?")


@dataclass(frozen=True)
class ClusterAccess:
    """How to reach an API server."""

    namespace: str = ""
    """"": the pool's own, or that of the kubeconfig's context."""
    kubeconfig: str = ""
    """Path; "": the service account of the pool's Pod or, outside a cluster, $KUBECONFIG or ~/.kube/config."""
    context: str = ""
    """Of the kubeconfig; "": its current one."""
    api_s: float = 30.0
    """Seconds that a call may take, with all that it is tried again."""


@dataclass(frozen=True)
class Toleration:
    """A taint of nodes on which workers may run all the same."""

    key: str
    value: str | None
    """None: any value."""
    effect: str
    """"": any effect."""


@dataclass(frozen=True)
class PodSettings:
    """What the Pod of a worker is made of; "" and empty: what the cluster, or the image, has."""

    image: str
    """"": that of the pool's own Pod."""
    pull: str
    """Policy of pulling images; "": that of the pool's own Pod, or the cluster's."""
    pull_secret: str
    credentials: str
    """The Secret with the token of the workers' role and, unless `tls_secret` is given, their TLS files."""
    tls_secret: str
    """A Secret with the keys tls.crt, tls.key and ca.crt, as cert-manager makes them."""
    service_account: str
    user: int
    cpus: float
    memory_bytes: int
    resources: Mapping[str, int]
    """Extended resources, GPUs among them: nvidia.com/gpu → 1."""
    tmp_bytes: int
    """Size of /tmp, in memory."""
    shm_bytes: int
    """Size of /dev/shm."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    priority_class: str = ""
    runtime_class: str = ""

    @property
    def demand(self) -> str:
        """What one worker needs of a node, in words: "1 CPU, 2048 MiB, 1 nvidia.com/gpu"."""
        counted = [f"{count} {name}" for name, count in self.resources.items()]
        cpus = f"{self.cpus:g} CPU{'s' if self.cpus != 1 else ''}"
        return ", ".join((cpus, f"{self.memory_bytes // 2**20} MiB", *counted))


@dataclass(frozen=True)
class KubernetesSettings:
    """Options of the launcher."""

    access: ClusterAccess
    pod: PodSettings
    place_s: float
    """Seconds that a Pod may wait for a node before the pool shows that there is no room."""
    connect_s: float
    """Seconds that a worker may take from its order until it is connected: nodes pull images meanwhile."""


def read(program: WorkerProgram, options: Options) -> KubernetesSettings:
    """The launcher's options, checked; raises SpecError."""
    check_names(NAME, options, _OPTIONS)
    _check_reach(program.arguments)
    if set(TLS_FILES) & set(program.arguments) and not (options.get("credentials") or options.get("tls_secret")):
        keys = ", ".join(TLS_FILES.values())
        raise SpecError(
            f"launcher {NAME}: workers need TLS files: give credentials=SECRET, a Secret with the keys {keys} and the "
            "name of their role, such as marless-actor-worker"
        )
    return KubernetesSettings(
        read_access(options),
        pod=_pod(program, options),
        place_s=above_0(NAME, options, "place_s", 10.0, "seconds"),
        connect_s=above_0(NAME, options, CONNECT_S, 300.0, "seconds"),
    )


def read_access(options: Options) -> ClusterAccess:
    """The API server and namespace that the launcher's options name; raises SpecError."""
    given = {key: options.get(key, "") for key in _ACCESS if key != "api_s"}
    return ClusterAccess(**given, api_s=above_0(NAME, options, "api_s", 30.0, "seconds"))


def _pod(program: WorkerProgram, options: Options) -> PodSettings:
    threads = float(program.settings.get("OMP_NUM_THREADS", 1))
    pull = options.get("pull", "")
    if pull not in _PULL:
        raise SpecError(f"launcher {NAME}: pull={pull}: give {', '.join(filter(None, _PULL))}")
    resources = _pairs(options, "resources")
    if "gpus" in options:
        resources["nvidia.com/gpu"] = options["gpus"]
    return PodSettings(
        options.get("image", ""),
        pull=_PULL[pull],
        pull_secret=options.get("pull_secret", ""),
        credentials=options.get("credentials", ""),
        tls_secret=options.get("tls_secret", ""),
        service_account=options.get("service_account", ""),
        user=_count("user", options.get("user", "1000")),
        cpus=above_0(NAME, options, "cpus", threads, "CPUs"),
        memory_bytes=size_bytes(NAME, options, "memory", "2g"),
        resources={name: _count(name, value) for name, value in resources.items()},
        tmp_bytes=size_bytes(NAME, options, "tmp", "256m"),
        shm_bytes=size_bytes(NAME, options, "shm", "256m"),
        node_selector=_pairs(options, "node_selector"),
        tolerations=tuple(map(_toleration, filter(None, options.get("tolerations", "").split(";")))),
        labels=_pairs(options, "labels"),
        priority_class=options.get("priority_class", ""),
        runtime_class=options.get("runtime_class", ""),
    )


def _pairs(options: Options, key: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in filter(None, options.get(key, "").split(";")):
        matched = _PAIR.fullmatch(each)
        if not matched:
            raise SpecError(f"launcher {NAME}: {key}={each}: give NAME:VALUE, several with ';' between them")
        found[matched[1]] = matched[3] or ""
    return found


def _count(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        what = "a user that is not root, such as 1000" if name == "user" else "a whole number above 0"
        raise SpecError(f"launcher {NAME}: {name}={text}: give {what}")
    return int(text)


def _toleration(text: str) -> Toleration:
    matched = _TOLERATION.fullmatch(text)
    if not matched:
        raise SpecError(
            f"launcher {NAME}: tolerations={text}: give KEY, KEY:EFFECT or KEY=VALUE:EFFECT, several with ';' between "
            "them; an effect is NoSchedule, PreferNoSchedule or NoExecute"
        )
    return Toleration(matched[1], (matched[4] or "") if matched[3] else None, matched[7] or "")


def _check_reach(arguments: Sequence[str]) -> None:
    """Raise SpecError for addresses that Pods cannot reach."""
    for flag, address in pairwise(arguments):
        if flag in ("--pool", "--param-store") and is_local(address):
            raise SpecError(
                f"launcher {NAME}: workers in Pods cannot reach {address}; let the services listen on an address of "
                "the cluster's network, and give --advertise"
            )
