"""What befalls a simulated system: faults drawn from a seed, each at a moment of virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from marless.core import failpoint
from tests.simulation.loop import Process
from tests.simulation.network import UNHEARD_S, Network, Weather, kind
from tests.simulation.surroundings import Trap
from tests.simulation.system import LEASE_S, SERVICES, System

SPAN_S = 0.6
"""Virtual seconds in which faults begin. An undisturbed job takes half of it."""
MOST_FAULTS = 6
RESTART_S = (0.01, 1.5)
"""Seconds from the death of a service until it is started again."""
LONG_S = 12.0
ENDS = (*SERVICES, "actor", "learner")


@dataclass(frozen=True)
class Fault:
    """One fault: what, when, and on whom."""

    at_s: float
    what: str
    whom: str = ""
    other: str = ""
    for_s: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        words = (self.what, self.whom, self.other, f"for {self.for_s:.3f} s" if self.for_s else "", self.count or "")
        return " ".join(str(word) for word in words if word)


def drawn(chance: random.Random) -> tuple[Weather, list[Fault]]:
    """The weather and the faults of one simulation."""
    bad = chance.random() < 0.5
    weather = Weather(
        delay_s=chance.choice((0.0005, 0.001, 0.003)),
        lost=chance.choice((0.0, 0.01, 0.03)) if bad else 0.0,
        twice=chance.choice((0.0, 0.02, 0.1)) if bad else 0.0,
        slow=chance.choice((0.0, 0.0, 0.05, 0.2)),
    )
    faults = [_fault(chance) for _ in range(chance.randint(0 if bad else 1, MOST_FAULTS))]
    return weather, sorted(faults, key=lambda fault: fault.at_s)


def _fault(chance: random.Random) -> Fault:
    at_s = chance.uniform(0.02, SPAN_S)
    for_s = chance.choice((0.05, 0.5, LEASE_S, LONG_S)) * chance.uniform(0.1, 1.0)
    what = chance.choice(("kill", "kill", "failpoint", "failpoint", "pause", "cut", "reset", "redis", "end", "rare"))
    first, second = chance.sample(ENDS, 2)
    if what == "failpoint":
        return Fault(0.0, what, chance.choice(failpoint.NAMES), count=chance.randint(1, 4))
    if what == "redis":
        return Fault(at_s, what, for_s=min(for_s, 2.0))
    if what == "rare":
        return Fault(at_s, chance.choice(("wipe", "lossy")), for_s=0.1)
    if what == "end":
        return Fault(at_s, what, chance.choice(SERVICES))
    return Fault(
        at_s, what, first, second if what in ("cut", "reset") else "", for_s if what in ("pause", "cut") else 0.0
    )


class Chaos:
    """Lets faults befall a system, and starts services again."""

    def __init__(self, system: System, network: Network, trap: Trap, chance: random.Random) -> None:
        self._system = system
        self._network = network
        self._trap = trap
        self._chance = chance
        self._log = network.log

    def begin(self, weather: Weather, faults: list[Fault]) -> None:
        """Let these faults befall the system, each in its time; the weather clears after the last one."""
        self._network.weather = weather
        self._system.loop.slow = weather.slow
        for fault in faults:
            self._network.after(fault.at_s, self._befall, fault)
        self._network.after(SPAN_S + LONG_S, self._clear, weather)

    def _clear(self, weather: Weather) -> None:
        self._log("clear")
        self._network.weather = Weather(delay_s=weather.delay_s)
        self._trap.at = ""
        self._system.loop.slow = 0.0

    def died(self, process: Process) -> None:
        """Start a service again some time after its process has died."""
        service = kind(process)
        if self._system.running.get(service) is process:
            self._network.after(self._chance.uniform(*RESTART_S), self._start_again, service, process)

    def _start_again(self, service: str, process: Process) -> None:
        if self._system.running[service] is process:
            self._log("starts", service)
            self._system.start(service)

    def _befall(self, fault: Fault) -> None:
        self._log("fault", fault)
        act: Callable[[Fault], None] = getattr(self, f"_{fault.what}")
        act(fault)

    def _whom(self, fault: Fault) -> Process | None:
        """The present process of a service, or some worker of a kind."""
        if fault.whom in SERVICES:
            process = self._system.running[fault.whom]
            return process if process.alive else None
        alike = [each for each in self._system.workers.values() if kind(each) == fault.whom and each.alive]
        return self._chance.choice(alike) if alike else None

    def _kill(self, fault: Fault) -> None:
        if process := self._whom(fault):
            process.kill()

    def _end(self, fault: Fault) -> None:
        self._system.ending[fault.whom].set()

    def _failpoint(self, fault: Fault) -> None:
        self._trap.at, self._trap.left = fault.whom, fault.count

    def _pause(self, fault: Fault) -> None:
        process = self._whom(fault)
        if process is None or process.paused:
            return
        process.pause()
        self._network.after(UNHEARD_S, self._unheard, process)
        self._network.after(fault.for_s, self._go_on, process)
        if kind(process) == "coordinator" and fault.for_s > LEASE_S:
            self._network.after(self._chance.uniform(0.1, LEASE_S), self._replace, process)

    def _unheard(self, process: Process) -> None:
        if process.alive and process.paused:
            self._network.unheard(process)

    def _go_on(self, process: Process) -> None:
        self._log("goes on", process.name)
        process.go_on()

    def _replace(self, paused: Process) -> None:
        """Another coordinator serves in the place of a paused one, which finds itself replaced when it goes on."""
        if self._system.running["coordinator"] is paused:
            self._log("replaced", paused.name)
            self._system.start("coordinator")
            self._network.after(2 * LONG_S, paused.kill)

    def _cut(self, fault: Fault) -> None:
        ends = frozenset((fault.whom, fault.other))
        self._network.cut[ends] = self._system.loop.time() + fault.for_s
        if fault.for_s > UNHEARD_S:
            self._network.after(UNHEARD_S, self._network.reset, fault.whom, fault.other)

    def _reset(self, fault: Fault) -> None:
        self._network.reset(fault.whom, fault.other)

    def _redis(self, fault: Fault) -> None:
        self._system.redis.down = True
        self._network.after(fault.for_s, self._redis_is_back)

    def _redis_is_back(self) -> None:
        self._system.redis.down = False

    def _wipe(self, fault: Fault) -> None:
        self._system.redis.wipe()
        self._system.wiped()

    def _lossy(self, fault: Fault) -> None:
        self._system.redis.lossy = 0.2
        self._network.after(fault.for_s, self._whole)

    def _whole(self) -> None:
        self._system.redis.lossy = 0.0
