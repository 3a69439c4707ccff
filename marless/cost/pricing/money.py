"""Exact amounts of money as integer picodollars, so that sums over records, functions and groups equal totals."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

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
