"""The bill of a run: its cost by three accountings, each broken down by function, by round and by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from marless.pricing import serverful
from marless.pricing.charges import ACCOUNTINGS, Accounting, Charge
from marless.pricing.ledger import Ledger, RoundCost
from marless.pricing.money import usd
from marless.pricing.prices import Prices
from marless.pricing.serverful import Machine, ModelledRounds
from marless.record import RoundRecord
from marless.spec import JobSpec

By = Literal["kind", "round", "group"]
SHARED = "(shared)"
"""Group of charges that do not belong to one policy: actors, evaluations, joint critics, machines, Redis."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """The cost of a run. Sums over rounds, kinds and groups equal the totals to the picodollar."""

    rounds: tuple[RoundCost, ...]
    machine: Machine | None
    """The machine that a serverful run reserves; None without rounds."""
    backend: str
    """The backend whose prices accounting `billed` uses."""

    def picos(self, accounting: Accounting) -> int:
        """Cost of the run in picodollars."""
        return sum(each.picos(accounting) for each in self.rounds)

    def total_usd(self, accounting: Accounting) -> float:
        """Cost of the run in US dollars."""
        return usd(self.picos(accounting))

    def by(self, what: By, accounting: Accounting) -> Mapping[str, int]:
        """Cost in picodollars by function and item ("actor", "actor: ready"), by round ("0"), or by group."""
        sums: Counter[str] = Counter()
        for each in self.rounds:
            if what == "round":
                sums[str(each.round)] = each.picos(accounting)
                continue
            for charge in each.charges[accounting]:
                sums[_KEYS[what](charge)] += charge.picos
        return dict(sums)


def bill(records: Iterable[RoundRecord], spec: JobSpec, prices: Prices) -> Bill:
    """The bill of these records, which must be in order of rounds; raises SpecError as `Ledger` does."""
    ledger, known = Ledger(spec, prices), tuple(records)
    rounds = tuple(ledger.add(record) for record in known)
    machine = ledger.machine if known else None
    if machine:
        rounds = tuple(_reserved(cost, record, machine, spec) for cost, record in zip(rounds, known, strict=True))
    return Bill(rounds=rounds, machine=machine, backend=prices.backend)


def to_dict(found: Bill, prices: Prices) -> dict[str, Any]:  # Any: JSON
    """The bill as a JSON object, in US dollars."""
    return {
        "currency": prices.currency,
        "region": prices.region,
        "backend": found.backend,
        "rounds": len(found.rounds),
        "serverful_machine": str(found.machine or ""),
        "usd": {accounting: found.total_usd(accounting) for accounting in ACCOUNTINGS},
        "modelled": ["serverful"],
        **{
            f"by_{what}": {
                accounting: {name: usd(picos) for name, picos in found.by(what, accounting).items()}
                for accounting in ACCOUNTINGS
            }
            for what in _VIEWS
        },
    }


_VIEWS: tuple[By, ...] = ("kind", "round", "group")
_KEYS: Mapping[str, Callable[[Charge], str]] = {
    "kind": lambda charge: (
        charge.function if charge.item in ("work", "machine") else f"{charge.function}: {charge.item}"
    ),
    "group": lambda charge: charge.group or SHARED,
}


def _reserved(cost: RoundCost, record: RoundRecord, machine: Machine, spec: JobSpec) -> RoundCost:
    """The round's cost, with the serverful cost on the machine that the whole run needs."""
    phases = ModelledRounds(spec.functions).phases(record, (machine.vcpus,))[machine.vcpus]
    return replace(cost, charges={**cost.charges, "serverful": serverful.charges(phases, machine)})
