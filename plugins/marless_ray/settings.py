"""Options of the launcher `ray`, and what one worker occupies of a node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from marless.core.errors import SpecError
from marless.core.process_environment import GPU_SHARE
from marless.fleet.launchers.base import Options, WorkerProgram
from marless.fleet.launchers.registry import CONNECT_S, above_0, check_names, size_bytes

NAME = "ray"
_OPTIONS = ("address", "cpus", "gpus", "memory", "resources", "place_s", "ray_s", CONNECT_S)


@dataclass(frozen=True)
class WorkerResources:
    """What a worker occupies of a node, as Ray counts it; Ray does not enforce it."""

    cpus: float
    gpus: float = 0.0
    memory_bytes: int = 0
    """0: not counted."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources of nodes, and how much a worker takes of each."""

    def of_ray(self) -> dict[str, float]:
        """The resources under Ray's names, without those of which nothing is needed."""
        own = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory_bytes)}
        return {name: amount for name, amount in (own | dict(self.resources)).items() if amount}

    @property
    def limits(self) -> dict[str, str]:
        """Environment variables of a worker that shares a GPU: Ray says which one it is, but not how much of it."""
        return {GPU_SHARE: f"{self.gpus:g}"} if 0 < self.gpus < 1 else {}

    def __str__(self) -> str:
        """The resources in words: "1 CPU, 2.0 GiB"."""
        return ", ".join(amount_of(*each) for each in self.of_ray().items()) or "no resources"


@dataclass(frozen=True)
class RaySettings:
    """Options of the launcher."""

    address: str
    """As `ray.init` takes it: "auto" for the cluster of this host, HOST:PORT of its head, or ray://HOST:PORT."""
    demand: WorkerResources
    place_s: float
    """Seconds that Ray may take to place a worker before the pool shows that there is no room."""
    ray_s: float
    """Seconds that any other call to Ray may take."""
    connect_s: float
    """Seconds that a worker may take from its order until it is connected."""


@dataclass(frozen=True)
class Assignment:
    """The first line to a driver: what its workers are. It has no secret."""

    address: str
    module: str
    arguments: tuple[str, ...]
    """Of each worker, in addition to those of its order."""
    settings: dict[str, str]
    """Environment variables that a worker needs on any node."""
    demand: WorkerResources
    place_s: float
    ray_s: float

    @classmethod
    def of(cls, program: WorkerProgram, settings: RaySettings) -> Self:
        """The assignment of a launcher's driver."""
        of_all = program.module, tuple(program.arguments), dict(program.settings)
        return cls(settings.address, *of_all, settings.demand, settings.place_s, settings.ray_s)

    def to_line(self) -> bytes:
        """Encode."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Self:
        """Decode the output of `to_line`."""
        read = json.loads(line)
        return cls(**read | {"arguments": tuple(read["arguments"]), "demand": WorkerResources(**read["demand"])})


def read(program: WorkerProgram, options: Options) -> RaySettings:
    """The launcher's options; raises SpecError."""
    check_names(NAME, options, _OPTIONS)
    threads = float(program.settings.get("OMP_NUM_THREADS", 1))
    demand = WorkerResources(
        cpus=above_0(NAME, options, "cpus", threads, "CPUs"),
        gpus=above_0(NAME, options, "gpus", 1.0, "GPUs") if "gpus" in options else 0.0,
        memory_bytes=size_bytes(NAME, options, "memory", "") if "memory" in options else 0,
        resources=_resources(options.get("resources", "")),
    )
    return RaySettings(
        options.get("address", "auto"),
        demand=demand,
        place_s=above_0(NAME, options, "place_s", 10.0, "seconds"),
        ray_s=above_0(NAME, options, "ray_s", 15.0, "seconds"),
        connect_s=above_0(NAME, options, CONNECT_S, 60.0, "seconds"),
    )


def _resources(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in filter(None, text.split(";")):
        name, _, amount = each.partition(":")
        if not re.fullmatch(r"\w[\w.-]*", name) or not re.fullmatch(r"\d+(\.\d+)?", amount) or not float(amount):
            raise SpecError(f"launcher ray: resources={text}: give NAME:AMOUNT, several with ';' between them")
        found[name] = float(amount)
    return found


def amount_of(name: str, amount: float) -> str:
    """An amount of a resource, for people."""
    if name == "memory":
        return f"{amount / 2**30:.1f} GiB"
    return f"{amount:g} {name}{'s' if name in ('CPU', 'GPU') and amount != 1 else ''}"
