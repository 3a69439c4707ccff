"""The bill of a recorded run of which some vCPUs were one's own and idle, and so are free of charge.

A function runs on vCPUs of one's own if enough of them are free when it begins, and keeps them until it ends. Others
are billed by accounting `billed`. Longer ones are placed first among those that begin at once. Keeping actors ready is
billed for the actors that are not on one's own vCPUs, and so is the Redis node.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from marless.core.errors import SpecError
from marless.cost.billing.billed import Clock, RedisMeter, meter
from marless.cost.pricing import usd
from marless.jobs.prices import Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import ACTOR, FunctionUse, usage

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
