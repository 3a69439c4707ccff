"""Charges: the lines that a round adds to a bill, each for one function, group and item; and accounting `paper`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marless.cost.pricing.money import milliseconds, per_gb_s
from marless.jobs.prices import Prices
from marless.jobs.usage import FunctionUse


@dataclass(frozen=True)
class Charge:
    """One line of a bill, or the sum of several lines with the same function, group and item."""

    function: str
    """As in `FunctionUse`; "redis" for the Redis node, "machine" for a machine shared by all functions; in accounting
    `machines`, the pool that had the machine."""
    group: str
    """The policy served; "" if it served all."""
    item: str
    """"work" (starts included), "request", "ready" (kept warm), "node" or "machine"; in accounting `machines`, one of
    `marless.cost.billing.machines.ITEMS`."""
    picos: int
    """Amount in picodollars."""


def merged(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """Sum up charges with the same function, group and item, in order of appearance; zero amounts are left out."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for each in charges:
        sums[each.function, each.group, each.item] += each.picos
    return tuple(Charge(*key, picos) for key, picos in sums.items() if picos)


def paper(uses: Sequence[FunctionUse], prices: Prices) -> tuple[Charge, ...]:
    """Charges for work alone, as in the papers: each use, by the millisecond, at its memory and Lambda's price.

    Includes starts ("pre-warming included"), but not keep-alive, requests or Redis. Source: Wei et al. 2025, §6; the
    rate is the one that reproduces their figure 12. A function is counted at its configured memory, although a Lambda
    of 1,024 MB has only 0.58 of a vCPU; `billed` charges for the memory that whole vCPUs require.
    """
    rate = per_gb_s(prices.lambda_.rate.on_demand)
    return merged(
        Charge(use.function, use.group, "work", rate.of(use.memory_mb * milliseconds(use.seconds + use.init_s)))
        for use in uses
    )
