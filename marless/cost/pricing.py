"""Exact money, and the charges that a round adds to a bill, each for one function, group and item; accounting `paper`.

Amounts are integer picodollars, so that sums over records, functions and groups equal totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from marless.jobs.prices import Prices
from marless.jobs.usage import FunctionUse

PICO = 10**12
GB_MB = 1024
"""MB per GB, in the units of AWS."""
_MICRO = 10**6


@dataclass(frozen=True)
class Rate:
    """A price per unit of an integer quantity, e.g. per MB · ms. Charges are rounded to picodollars, half up."""

    numerator: int
    """Picodollars per `denominator` units."""
    denominator: int

    @classmethod
    def per(cls, usd: Decimal, units: int) -> Rate:
        """The rate at which `units` units cost `usd` US dollars."""
        rate = Fraction(usd) * PICO / units
        return cls(rate.numerator, rate.denominator)

    def of(self, quantity: int) -> int:
        """Price of a quantity in picodollars."""
        return (2 * quantity * self.numerator + self.denominator) // (2 * self.denominator)


def per_gb_s(usd: Decimal) -> Rate:
    """Convert a price per GB-second to a rate per MB · ms."""
    return Rate.per(usd, GB_MB * 1000)


def per_h(usd: Decimal) -> Rate:
    """Convert a price per hour to a rate per ms."""
    return Rate.per(usd, 3600 * 1000)


def milliseconds(seconds: float, granularity_ms: int = 1) -> int:
    """A duration in milliseconds, rounded up to multiples of `granularity_ms`; never negative.

    Differences of Unix times have rounding errors of up to a quarter of a microsecond, so they are first rounded to the
    nearest microsecond: 0.1 s is 100 ms, not 101.
    """
    micro = max(round(seconds * _MICRO), 0)
    return -(-micro // (1000 * granularity_ms)) * granularity_ms


def usd(picos: int) -> float:
    """Convert picodollars to US dollars, for display and comparison with a budget."""
    return picos / PICO


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
