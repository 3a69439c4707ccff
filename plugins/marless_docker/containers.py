"""What the containers of workers are made of, and which pool they belong to."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from marless.core import orphans
from marless.core.errors import SpecError
from marless.core.machine import VARIABLE
from marless.core.orphans import Orphan
from marless.core.process_environment import GPU_SHARE
from marless.fleet.gpus import GpuShare
from marless.fleet.launchers.base import Options, WorkerProgram
from marless.fleet.launchers.registry import CONNECT_S, above_0, check_names, size_bytes
from marless.rpc.addresses import is_local
from marless_docker.engine import Engine, Json

NAME = "docker"
POOL, KEY, WORKER = "marless.pool", "marless.launch", "marless.worker"
"""Labels: the process of the pool, the launcher within it, and the worker's name."""
_OPTIONS = (
    *("image", "network", "user", "memory", "cpus", "pids", "tmp", "shm", "volumes"),
    *("gpus", "engine", "engine_s", CONNECT_S),
)
MOST_GPUS = 64
"""More than a machine has."""
_IMAGES = {
    "marless.services.actor_pool.worker": "marless-actors",
    "marless.services.learner_pool.worker": "marless-learners",
}
"""Those that deploy/ builds for our modules of workers."""
_FILES = ("--tls-cert", "--tls-key", "--tls-ca")
_OWN_CONTAINER = re.compile(r"/(?:overlay-)?containers/([0-9a-f]{64})/\S* /etc/(?:hostname|hosts|resolv\.conf) ")
"""Engines mount these files from a folder of the container. A host sees other mounts from such folders."""


@dataclass(frozen=True)
class ContainerSettings:
    """Options of the launcher."""

    image: str
    network: str
    """A network of the engine, or "bridge", "host", "none"."""
    user: str
    """User of the processes; "": the image's."""
    memory_bytes: int
    """Swap included."""
    cpus: float
    pids: int
    tmp_bytes: int
    """Size of /tmp, in memory."""
    shm_bytes: int
    """Size of /dev/shm."""
    volumes: tuple[str, ...]
    """SOURCE:TARGET, mounted read-only; a source is a path of the engine's host, or a volume."""
    gpus: tuple[str, ...]
    """Those of the engine's machine that workers use, by number or UUID."""
    engine: str
    """Address of its API; "": $DOCKER_HOST, or Docker's own socket."""
    engine_s: float
    """Seconds that a call to the engine may take."""
    connect_s: float
    """Seconds that a worker may take from its order until it is connected."""


def read(program: WorkerProgram, options: Options) -> ContainerSettings:
    """The launcher's options; raises SpecError."""
    check_names(NAME, options, _OPTIONS)
    image = options.get("image", _IMAGES.get(program.module))
    if not image:
        raise SpecError("launcher docker: give the image of the workers: --launcher docker,image=marless-actors")
    user = options.get("user", f"{os.getuid()}:{os.getgid()}" if os.getuid() else "")
    if user and _is_root(user):
        raise SpecError(f"launcher docker: user={user}: workers do not run as root; give another user, such as 1000")
    threads = float(program.settings.get("OMP_NUM_THREADS", 1))
    network = options.get("network", "bridge")
    volumes = options["volumes"].split(";") if "volumes" in options else _of_command(program.arguments, user)
    for volume in volumes:
        if not re.fullmatch(r"[^:]+:/[^:]*", volume):
            raise SpecError(f"launcher docker: volumes={volume}: give SOURCE:/TARGET, several with ';' between them")
    _check_reach(program.arguments, network)
    return ContainerSettings(
        image,
        network=network,
        user=user,
        memory_bytes=size_bytes(NAME, options, "memory", "2g"),
        cpus=above_0(NAME, options, "cpus", threads, "CPUs"),
        pids=int(above_0(NAME, options, "pids", 512, "processes")),
        tmp_bytes=size_bytes(NAME, options, "tmp", "256m"),
        shm_bytes=size_bytes(NAME, options, "shm", "256m"),
        volumes=tuple(volumes),
        gpus=_gpus(options.get("gpus", "0")),
        engine=options.get("engine", ""),
        engine_s=above_0(NAME, options, "engine_s", 15.0, "seconds"),
        connect_s=above_0(NAME, options, CONNECT_S, 60.0, "seconds"),
    )


def _gpus(text: str) -> tuple[str, ...]:
    """Read gpus=2, the first two, or gpus=0+3 and gpus=GPU-<uuid>, these; raises SpecError."""
    if text.isdecimal():
        return tuple(map(str, range(min(int(text), MOST_GPUS))))
    if not re.fullmatch(r"[\w-]+(\+[\w-]+)*", text):
        raise SpecError(f"launcher docker: gpus={text}: give a number of GPUs, or which ones: gpus=0+2")
    return tuple(text.split("+"))


def _is_root(user: str) -> bool:
    return user.partition(":")[0] in ("", "0", "root")


def check_image(image: str, user: str, config: Json) -> None:
    """Raise SpecError if processes of an image would run as root."""
    if not user and _is_root(str(config.get("User") or "")):
        raise SpecError(f"image {image} runs as root, and workers do not; give user=, such as user=1000")


def _of_command(arguments: Sequence[str], user: str) -> list[str]:
    """Mounts of what the command names: TLS files, and the directories of unix sockets; at the same paths.

    Raises SpecError for a directory with anything else in it, and for one that the workers' user may not enter.
    """
    sockets = {each: Path(each.removeprefix("unix:")).parent for each in arguments if each.startswith("unix:/")}
    for address, place in sockets.items():
        begin = f"launcher docker: workers in containers cannot reach {address}"
        end = "let the services listen on ports (docs/deploying.md), or give volumes="
        if not _has_only_sockets(place):
            raise SpecError(f"{begin}: a directory with other files than sockets is not mounted into them; {end}")
        if not _may_enter(place, user):
            raise SpecError(f"{begin}: {f'user {user}' if user else 'the user of their image'} may not open it; {end}")
    files = [str(Path(path).absolute()) for flag, path in pairwise(arguments) if flag in _FILES]
    return [f"{path}:{path}" for path in dict.fromkeys((*map(str, sockets.values()), *files))]


def _has_only_sockets(place: Path) -> bool:
    return place.is_dir() and all(each.is_socket() for each in place.iterdir())


def _may_enter(place: Path, user: str) -> bool:
    found = place.stat()
    return bool(found.st_mode & stat.S_IXOTH) or user.partition(":")[0] == str(found.st_uid)


def _check_reach(arguments: Sequence[str], network: str) -> None:
    """Raise SpecError for addresses that containers cannot reach."""
    for address in arguments:
        host, _, port = address.rpartition(":")
        if network != "host" and host and port.isdecimal() and not address.startswith("unix:") and is_local(address):
            raise SpecError(
                f"launcher docker: workers in containers cannot reach {address}; let the services listen on an address "
                "of the network, and give --advertise, or give network=host"
            )


def configs(
    program: WorkerProgram, settings: ContainerSettings, arguments: Sequence[str], share: GpuShare | None = None
) -> tuple[Json, Json]:
    """What a worker's container runs, and what it may do, as the SDK takes both; no secret is in either.

    Of a GPU that it has, it sees this one only, as its first.
    """
    engine = settings.engine or os.environ.get("DOCKER_HOST", "unix:")
    machine = {VARIABLE: program.environment[VARIABLE]} if VARIABLE in program.environment else {}
    config = {
        "image": settings.image,
        "entrypoint": ["python", "-P", "-m"],
        "command": [program.module, *program.arguments, *arguments],
        "environment": {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", **program.settings}
        | ({GPU_SHARE: share.settings[GPU_SHARE]} if share else {})
        | (machine if engine.startswith("unix:") else {}),  # else the pool's machine is not the containers'
        "user": settings.user or None,
        "stdin_open": True,  # and closed after one client, so that a worker ends with its pool
    }
    host_config = {
        "network_mode": settings.network,
        "binds": [f"{volume}:ro" for volume in settings.volumes],
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "mem_limit": settings.memory_bytes,
        "memswap_limit": settings.memory_bytes,
        "nano_cpus": int(settings.cpus * 1e9),
        "pids_limit": settings.pids,
        "shm_size": settings.shm_bytes,
        "tmpfs": {"/tmp": f"mode=1777,nosuid,nodev,size={settings.tmp_bytes}"},
        "log_config": {"Type": "none", "Config": {}},  # the pool's log has what they say
    }
    if share:
        host_config["device_requests"] = [{"device_ids": [share.gpu], "capabilities": [["gpu"]]}]
    return config, host_config


@dataclass(frozen=True)
class Pool:
    """The process of a pool, as the label of its containers has it."""

    boot: str
    """The boot of its machine."""
    namespace: str
    """Its PID namespace."""
    pid: int
    started: int
    """When it started, in clock ticks after the machine."""
    container: str
    """Id of the container in which it runs; "" for none."""

    @classmethod
    def here(cls) -> Pool:
        """This process."""
        pid, container = os.getpid(), own_container(Path("/proc/self/mountinfo").read_text("utf-8"))
        return cls(_boot(), orphans.namespace(), pid, orphans.started(pid) or 0, container)

    @classmethod
    def parse(cls, label: str) -> Pool | None:
        """Read a label; None if it is not of this form."""
        boot, namespace, pid, started, container = (*label.split("/"), "", "", "", "", "")[:5]
        if not (boot and pid.isdecimal() and started.isdecimal()):
            return None
        return cls(boot, namespace, int(pid), int(started), container)

    def __str__(self) -> str:
        """The label."""
        return "/".join((self.boot, self.namespace, str(self.pid), str(self.started), self.container))

    def has_ended(self, engine: Engine, created_s: float) -> bool:
        """True if this pool has certainly ended; a container that it created then belongs to no pool any more."""
        if self.boot != _boot():
            # This machine before its last boot, or another machine, of which nothing is known here. What a local engine
            # created before the boot is of the former.
            return engine.url.startswith("unix://") and created_s < time.time() - _since_boot_s()
        if self.container:
            state = engine.state(self.container)
            # If the pool's container runs again since, the pool that created this one ended with the earlier run.
            return state is None or not state.is_running or _restarted(state.started, created_s)
        # A process id says something only within its own namespace.
        return self.namespace == orphans.namespace() and orphans.started(self.pid) != self.started


def own_container(mounts: str) -> str:
    """The id of the container whose /proc/self/mountinfo this is; "" if it is not that of a container."""
    found = _OWN_CONTAINER.search(mounts)
    return found[1] if found else ""


def of_dead_pools(engine: Engine) -> Iterator[Orphan]:
    """The containers of pools that have ended, whatever their state."""
    for found in engine.labelled(POOL):
        pool = Pool.parse(found["Labels"].get(POOL, ""))
        if pool and pool.has_ended(engine, float(found["Created"])):
            of = f"container {pool.container[:12]}" if pool.container else f"{pool.pid}"
            name = str(found["Names"][0]).removeprefix("/")
            age_s = round(time.time() - float(found["Created"]), 1)
            yield Orphan(NAME, name, of, f"{found['Image']} ({found['State']})", age_s)


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _since_boot_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _restarted(started: str, created_s: float) -> bool:
    """Whether a container was started after another was created; times of creation come in whole seconds."""
    from datetime import datetime

    shortened = re.sub(r"(\.\d{6})\d*", r"\1", started).replace("Z", "+00:00")
    return datetime.fromisoformat(shortened).timestamp() > created_s + 1
