"""What machines of one's own change for a recorded run: from which idle share of one functions pay, for every size, and
the bill of a run of which some vCPUs were one's own and idle.

A machine that is rented all the time costs the same whether it works or not. If it works for a fraction u of the time,
a run that takes t seconds on it must pay t/u seconds. Functions cost the same whatever u is, because they cost nothing
between runs. So functions are cheaper below

    u* = price · t / cost of functions

and from an idle share of 1 − u* on. Both sides are modelled: t is that of the run's rounds on the machine's vCPUs, as
for accounting `serverful`, and functions have a slot each. With "billed" functions, both pay for the Redis node and the
services' host (`marless.cost.billing.bill`); the machine's are there all the time, as it is.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from marless.core.errors import SpecError
from marless.core.settings import FunctionsSpec
from marless.cost.billing.bill import bill, charged
from marless.cost.billing.billed import Clock, RedisMeter, meter
from marless.cost.billing.ledger import ModelledRounds, ReservedMachines
from marless.cost.pricing import GB_MB, usd
from marless.cost.simulation.cluster import total
from marless.cost.simulation.virtual import of_rounds
from marless.jobs.prices import Accounting, InstancePrice, Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import ACTOR, FunctionUse, usage

_HOUR_S = 3600
BUSY = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
"""Fractions of the time in which a machine works, for which the curve has a point."""


@dataclass(frozen=True, kw_only=True)
class OwnMachine:
    """A recorded run on one machine of one's own, which is rented all the time."""

    instance: str
    vcpus: int
    """Those that the run's functions can use: fewer than the machine has, if its memory holds fewer functions."""
    seconds: float
    """Modelled, of all rounds."""
    busy_usd: float
    """US dollars of the machine for these seconds."""
    functions_usd: float
    """US dollars of the run on functions."""

    def usd(self, busy: float) -> float:
        """US dollars of a run if the machine works for this fraction of the time, in (0, 1]."""
        return self.busy_usd / busy

    @property
    def break_even(self) -> float:
        """The busy fraction at which both cost the same; above 1 if functions are cheaper even than a busy machine."""
        return self.busy_usd / self.functions_usd if self.functions_usd else math.inf

    @property
    def idle(self) -> float:
        """The idle share from which functions are cheaper; 0 if they always are."""
        return max(1 - self.break_even, 0.0)


def own_machines(
    records: Sequence[RoundRecord], spec: JobSpec, prices: Prices, accounting: Accounting = "billed"
) -> tuple[OwnMachine, ...]:
    """The run on each machine of the serverful family that holds its largest function, cheapest first.

    Args:
        accounting: What functions cost by: "billed" or "paper".

    Raises SpecError without a round, or as `bill` does.
    """
    if not records:
        raise SpecError("there is nothing to bill: no round has been recorded yet")
    sizes = {name: usable_vcpus(spec.functions, price) for name, price in prices.family()}
    largest = max(spec.functions.actor.vcpus, spec.functions.learner.vcpus)
    fitting = {name: vcpus for name, vcpus in sizes.items() if vcpus >= largest}
    if not fitting:
        raise SpecError(f"no machine {prices.ec2.serverful}.* holds a function of {largest:g} vCPUs; make it smaller")
    seconds = _seconds(records, spec, tuple(sorted(set(fitting.values()))))
    services_usd_s = 0.0
    if accounting == "billed":
        smallest = ReservedMachines(next(iter(fitting)), 1, prices.instance(next(iter(fitting))))
        functions_usd = charged(records, spec, prices, smallest)["billed"]
        services_usd_s = float(prices.redis_h() + prices.services.usd_h) / _HOUR_S
    else:
        functions_usd = usd(bill(records, spec, prices).picos(accounting))
    return tuple(
        OwnMachine(
            instance=name,
            vcpus=vcpus,
            seconds=seconds[vcpus],
            busy_usd=seconds[vcpus] * (float(prices.instance(name).usd_h) / _HOUR_S + services_usd_s),
            functions_usd=functions_usd,
        )
        for name, vcpus in fitting.items()
    )


def usable_vcpus(functions: FunctionsSpec, machine: InstancePrice) -> int:
    """vCPUs of a machine on which functions can run at once, given its memory too."""
    mb_per_vcpu = max(each.memory_mb / each.vcpus for each in (functions.actor, functions.learner))
    return min(machine.vcpus, math.floor(machine.memory_gb * GB_MB / mb_per_vcpu))


def serverful_rounds(
    records: Sequence[RoundRecord], spec: JobSpec, prices: Prices
) -> tuple[ReservedMachines, list[float]]:
    """The machines that accounting `serverful` reserves for a run, and the modelled seconds of each round on them.

    Raises SpecError without a round, or as `bill` does.
    """
    machine = bill(records, spec, prices).machine
    if machine is None:
        raise SpecError("there is nothing to bill: no round has been recorded yet")
    modelled = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time)
    return machine, [total(modelled.phases(each, (machine.vcpus,))[machine.vcpus]) for each in records]


def _seconds(records: Sequence[RoundRecord], spec: JobSpec, slots: tuple[int, ...]) -> dict[int, float]:
    """Modelled seconds of all rounds by number of vCPUs."""
    modelled, sums = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time), dict.fromkeys(slots, 0.0)
    for record in records:
        for count, phases in modelled.phases(record, slots).items():
            sums[count] += total(phases)
    return sums


OWN = "own"
"""Class of work that nobody charges."""
_ROUNDING = 1e-9


@dataclass
class OwnSlots:
    """vCPUs of one's own; holds which functions are on them."""

    vcpus: float
    _running: list[tuple[float, float]] = field(default_factory=list)
    """Ends, and vCPUs, of the functions that run on them."""

    def split(self, uses: Sequence[FunctionUse]) -> tuple[list[FunctionUse], list[FunctionUse]]:
        """The functions of the next round that run on these vCPUs, and the others."""
        here, elsewhere = [], []
        for use in sorted(uses, key=lambda each: (each.start_s, -each.seconds)):
            while self._running and self._running[0][0] <= use.start_s:
                heapq.heappop(self._running)
            if sum(vcpus for _, vcpus in self._running) + use.vcpus <= self.vcpus + _ROUNDING:
                heapq.heappush(self._running, (use.start_s + use.seconds, use.vcpus))
                here.append(use)
            else:
                elsewhere.append(use)
        return here, elsewhere


@dataclass(frozen=True, kw_only=True)
class OwnBill:
    """What a run costs with some vCPUs of one's own."""

    vcpus: int
    own_s: dict[str, float]
    """vCPU seconds on one's own vCPUs, by function."""
    billed_s: dict[str, float]
    """vCPU seconds elsewhere."""
    picos: dict[str, int]
    """Picodollars, by function and item ("actor", "actor: ready")."""

    @property
    def total_usd(self) -> float:
        """US dollars of the whole run."""
        return usd(sum(self.picos.values()))

    @property
    def share(self) -> float:
        """The fraction of the work that ran on one's own vCPUs."""
        own_s = sum(self.own_s.values())
        everything_s = own_s + sum(self.billed_s.values())
        return own_s / everything_s if everything_s else 0.0


def bill_with_own(records: Iterable[RoundRecord], spec: JobSpec, prices: Prices, vcpus: int) -> OwnBill:
    """The bill of these records, in order of rounds, with so many vCPUs of one's own.

    Raises SpecError for another backend than lambda, whose containers and machines are held whether they work or not.
    """
    if prices.backend != "lambda":
        raise SpecError(
            f"the price list bills by {prices.backend}, whose machines are charged whether they work or not; slots of "
            "one's own replace functions: set `backend: lambda` in a price file"
        )
    slots, clock, charges = OwnSlots(vcpus), Clock(prices.keep_alive_s), Counter[str]()
    functions, redis = meter(spec.functions, prices), RedisMeter(prices)
    own_s, billed_s = Counter[str](), Counter[str]()
    for record in records:
        span, (here, elsewhere) = (
            clock.span(record),
            slots.split(usage(record, spec.functions, spec.bill.time, spec.bill.starts)),
        )
        own_s.update(_vcpu_s(here))
        billed_s.update(_vcpu_s(elsewhere))
        actors = sum(use.function == ACTOR for use in elsewhere)
        billed = replace(record, actors=actors, ahead=min(record.ahead, actors))
        for charge in (*functions.charges(billed, elsewhere, span), redis.charge(span)):
            charges[charge.function if charge.item == "work" else f"{charge.function}: {charge.item}"] += charge.picos
    return OwnBill(vcpus=vcpus, own_s=dict(own_s), billed_s=dict(billed_s), picos=dict(charges))


def _vcpu_s(uses: Iterable[FunctionUse]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for use in uses:
        sums[use.function] += use.seconds * use.vcpus  # type: ignore[assignment]  # counts of fractions
    return sums
