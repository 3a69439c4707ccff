"""The processes of a local stack: their roles, and the CPU time they use."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # psutil ships no types

ACTOR, LEARNER = "actor worker", "learner worker"
ROLES = {
    "services": "service",
    "marless.services.coordinator": "coordinator",
    "marless.services.param_store": "param_store",
    "marless.services.actor_pool": "actor_pool",
    "marless.services.learner_pool": "learner_pool",
    "marless.services.actor_pool.worker": ACTOR,
    "marless.services.learner_pool.worker": LEARNER,
}


def role(command: list[str]) -> str:
    """The role of a process of the local stack, by its command line."""
    module = command[command.index("-m") + 1] if "-m" in command else ""
    if template := [word.partition("=")[2] for word in command if word.startswith("--module=")]:
        return f"template of {ROLES[template[0]]}s"
    if any("redis-server" in part or "valkey-server" in part for part in command[:1]):
        return "redis-server"
    if any(part.endswith("redis_guard.py") for part in command):
        return "redis guard"
    return ROLES.get(module, "marless train")


def family(process: psutil.Process) -> Iterator[psutil.Process]:
    """A process and its running descendants."""
    yield process
    yield from process.children(recursive=True)


@dataclass(frozen=True)
class Look:
    """The CPU time used until a moment."""

    at_s: float
    """Unix time."""
    cpu_s: Mapping[str, float]
    """CPU seconds by role, including those of ended processes."""

    def since(self, before: Look) -> dict[str, float]:
        """CPU seconds by role between two measurements."""
        return {what: used_s - before.cpu_s.get(what, 0.0) for what, used_s in self.cpu_s.items()}


class Cpu:
    """Measures the CPU time of a process and its descendants repeatedly."""

    def __init__(self) -> None:
        self.looks: list[Look] = []
        self._by_process: dict[tuple[int, float], tuple[str, float]] = {}

    def __call__(self, process: psutil.Process) -> None:
        """Take one measurement."""
        for member in family(process):
            try:
                used, key, what = member.cpu_times(), (member.pid, member.create_time()), role(member.cmdline())
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            self._by_process[key] = what, used.user + used.system
        cpu_s: defaultdict[str, float] = defaultdict(float)
        for what, used_s in self._by_process.values():
            cpu_s[what] += used_s
        self.looks.append(Look(time.time(), cpu_s))
