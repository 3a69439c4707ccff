"""The bill of a run: its cost by all accountings, each broken down by function, by round and by group.

`charged` is what a provider would charge for it as functions, and on a machine of its own: both modelled alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from marless.core.machine import Kept, MachineRecord
from marless.cost.billing.billed import Clock, RedisMeter, Span, meter
from marless.cost.billing.ledger import (
    Ledger,
    ModelledRounds,
    ReservedMachines,
    RoundCost,
    serverful_charges,
    serverful_picos,
)
from marless.cost.billing.machines import MachineTime
from marless.cost.pricing import Charge, merged, per_h, usd
from marless.cost.simulation.cluster import total
from marless.cost.simulation.virtual import of_rounds
from marless.jobs.prices import ACCOUNTINGS, ALL_ACCOUNTINGS, Accounting, Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import usage

By = Literal["kind", "round", "group"]
AFTER = "after"
"""Name of what follows the last round."""
SHARED = "(shared)"
"""Group of charges that do not belong to one policy: actors, evaluations, joint critics, machines, Redis."""
_VIEWS: tuple[By, ...] = ("kind", "round", "group")
_KEYS: Mapping[str, Callable[[Charge], str]] = {
    "kind": lambda charge: (
        charge.function if charge.item in ("work", "machine") else f"{charge.function}: {charge.item}"
    ),
    "group": lambda charge: charge.group or SHARED,
}


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The cost of a run. Sums over rounds, kinds and groups equal the totals to the picodollar."""

    rounds: tuple[RoundCost, ...]
    machine: ReservedMachines | None
    """The machine that a serverful run reserves; None without rounds."""
    backend: str
    """The backend whose prices accounting `billed` uses."""
    after: tuple[Charge, ...] = ()
    """What machines cost after the last round, by accounting `machines`."""
    time: MachineTime = field(default_factory=MachineTime)
    """Of the machines that the workers ran on."""
    machines: tuple[MachineRecord, ...] = ()
    """The newest record of each of them."""

    @property
    def accountings(self) -> tuple[Accounting, ...]:
        """The accountings that the records allow; `machines` needs the machines that workers ran on."""
        return ALL_ACCOUNTINGS if self.machines else ACCOUNTINGS

    def picos(self, accounting: Accounting) -> int:
        """Cost of the run in picodollars; by accounting `machines`, of those machines whose price is known."""
        after = sum(charge.picos for charge in self.after) if accounting == "machines" else 0
        return sum(each.picos(accounting) for each in self.rounds) + after

    def total_usd(self, accounting: Accounting) -> float:
        """Cost of the run in US dollars."""
        return usd(self.picos(accounting))

    def by(self, what: By, accounting: Accounting) -> Mapping[str, int]:
        """Cost in picodollars by function and item ("actor", "actor: ready"), by round ("0", and "after" the
        last one), or by group."""
        sums: Counter[str] = Counter()
        for each in self.rounds:
            if what == "round":
                sums[str(each.round)] = each.picos(accounting)
                continue
            for charge in each.charges[accounting]:
                sums[_KEYS[what](charge)] += charge.picos
        for charge in self.after if accounting == "machines" else ():
            sums[AFTER if what == "round" else _KEYS[what](charge)] += charge.picos
        return dict(sums)


def bill(records: Iterable[RoundRecord], spec: JobSpec, prices: Prices, kept: Kept | None = None) -> Bill:
    """The bill of these records, which must be in order of rounds; raises SpecError as `Ledger` does."""
    ledger, known = Ledger(spec, prices), tuple(records)
    rounds = tuple(ledger.add(record) for record in known)
    machine = ledger.machine if known else None
    if machine:
        # Which machine the run needs is known at its end: until then rounds were priced by what was needed so far.
        modelled, costs = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time), []
        for cost, record in zip(rounds, known, strict=True):
            phases = modelled.phases(record, (machine.vcpus,))[machine.vcpus]
            costs.append(replace(cost, charges={**cost.charges, "serverful": serverful_charges(phases, machine)}))
        rounds = tuple(costs)
    after: tuple[Charge, ...] = ()
    if kept:
        # What machines had done at the job's end is charged before what they were kept for since then.
        ended = ledger.machines.charges(kept.end)
        after = merged((*ended, *ledger.machines.charges(kept.now, after=True)))
    return Bill(
        rounds=rounds,
        machine=machine,
        backend=prices.backend,
        after=after,
        time=ledger.machines.time,
        machines=tuple(ledger.machines.machines),
    )


def to_dict(found: Bill, prices: Prices) -> dict[str, Any]:  # Any: JSON
    """The bill as a JSON object, in US dollars."""
    return {
        "currency": prices.currency,
        "region": prices.region,
        "backend": found.backend,
        "rounds": len(found.rounds),
        "serverful_machine": str(found.machine or ""),
        "usd": {accounting: found.total_usd(accounting) for accounting in found.accountings},
        "modelled": ["serverful"],
        "machine_minutes": dict(found.time.minutes),
        "idle_machine_minutes": found.time.idle_minutes,
        "unpriced_machine_minutes": {each.words: each.us / 6e7 for each in found.time.unpriced.values()},
        "machines": [asdict(each) for each in found.machines],
        **{
            f"by_{what}": {
                accounting: {name: usd(picos) for name, picos in found.by(what, accounting).items()}
                for accounting in found.accountings
            }
            for what in _VIEWS
        },
    }


ChargedSide = Literal["billed", "serverful"]
_ENOUGH = 10**9
"""vCPUs: a slot for each function of any round."""


def charged(
    records: Iterable[RoundRecord], spec: JobSpec, prices: Prices, machine: ReservedMachines
) -> Mapping[ChargedSide, float]:
    """US dollars of a run as functions ("billed") and on this machine ("serverful"); records in order of rounds.

    Accounting `billed` charges for the time that rounds took where the job ran; `serverful` is modelled. So neither
    says anything about the other. Here both sides have the same run, in which every function takes its recorded
    seconds:

    - as functions, each has a slot of its own, and all charges are those of `billed` for rounds of this length;
    - on a machine, the smallest that fits is rented from the first round to the last.

    Both sides also pay, for as long as the run takes there, for the Redis node and for the host of the coordinator and
    the other services. The time between rounds is the recorded one.
    """
    rounds = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time)
    functions, rented = _ModelledTime(prices), _ModelledTime(prices)
    bill = meter(spec.functions, prices)
    picos: dict[ChargedSide, int] = {"billed": 0, "serverful": 0}
    for record in records:
        phases = rounds.phases(record, (machine.vcpus, _ENOUGH))
        span = functions.span(record, total(phases[_ENOUGH]))
        uses = usage(record, spec.functions, spec.bill.time, spec.bill.starts)
        picos["billed"] += sum(charge.picos for charge in bill.charges(record, uses, span)) + functions.services(span)
        span = rented.span(record, total(phases[machine.vcpus]))
        picos["serverful"] += serverful_picos(span.length_ms, machine) + rented.services(span)
    return {side: usd(amount) for side, amount in picos.items()}


class _ModelledTime:
    """The time of a run on one side, and what it pays there for services."""

    def __init__(self, prices: Prices) -> None:
        self._clock, self._redis = Clock(prices.keep_alive_s), RedisMeter(prices)
        self._host = per_h(prices.services.usd_h)

    def span(self, record: RoundRecord, seconds: float) -> Span:
        """The next round, as if it had taken so many seconds."""
        return self._clock.span(replace(record, started_s=0.0, ended_s=seconds))

    def services(self, span: Span) -> int:
        """Picodollars of the Redis node and the services' host."""
        return self._redis.charge(span).picos + self._host.of(span.length_ms)
