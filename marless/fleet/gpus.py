"""The GPUs of a machine, shared out to its workers: which one each computes on, and its part of the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marless.core.machine import gpus_of_machine
from marless.core.process_environment import GPU, GPU_SHARE

WORKERS_PER_GPU = "MARLESS_WORKERS_PER_GPU"
"""The setting of workers that use GPUs: how many share one; 0: as many as their number needs. Others have none."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuShare:
    """The part of a GPU that a worker has."""

    gpu: str
    """Its number or UUID, as CUDA_VISIBLE_DEVICES takes it."""
    memory: float
    """The part of its memory, up to 1."""

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables by which a worker learns it."""
        return {GPU: self.gpu, GPU_SHARE: f"{self.memory:g}"}


class GpuShares:
    """Gives each worker the GPU that fewest use."""

    def __init__(self, gpus: Sequence[str], workers_per_gpu: int) -> None:
        """Share out `gpus`, of whose memory each of so many workers may use an equal part."""
        self._gpus, self._memory = tuple(gpus), 1 / max(workers_per_gpu, 1)
        self._claimed: dict[str, str] = {}

    @classmethod
    def among(cls, gpus: Sequence[str], settings: Mapping[str, str], workers: int) -> GpuShares:
        """The shares of up to `workers` workers (0: nobody knows) with these settings; none if they use no GPU."""
        if WORKERS_PER_GPU not in settings or not gpus:
            return cls((), 1)
        return cls(gpus, int(settings[WORKERS_PER_GPU]) or -(-workers // len(gpus)))

    def claim(self, worker: str) -> GpuShare | None:
        """The share of a worker until `release`; None if there is no GPU."""
        if not self._gpus:
            return None
        self.release(worker)
        used = Counter(self._claimed.values())
        gpu = min(self._gpus, key=lambda each: used[each])
        self._claimed[worker] = gpu
        return GpuShare(gpu, self._memory)

    def release(self, worker: str) -> None:
        """Take the share of a worker back, if it has one."""
        self._claimed.pop(worker, None)


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The GPUs that processes with these variables may use: those that a scheduler has named, else all."""
    if VISIBLE not in environment:
        return tuple(map(str, range(gpus_of_machine())))
    named = [each.strip() for each in environment[VISIBLE].split(",")]
    return tuple(each for each in named if each and not each.startswith("-"))
