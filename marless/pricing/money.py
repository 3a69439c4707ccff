"""Exact money: whole picodollars, so that sums over records, functions and groups equal totals to the last digit."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

PICO = 10**12
GB_MB = 1024
"""What AWS calls a GB."""
_MICRO = 10**6


@dataclass(frozen=True)
class Rate:
    """A price per unit of a whole quantity, e.g. per MB · ms. Charges are rounded to the picodollar, half up."""

    numerator: int
    """Picodollars per `denominator` units."""
    denominator: int

    @classmethod
    def per(cls, usd: Decimal, units: int) -> Rate:
        """`usd` dollars buy so many units."""
        rate = Fraction(usd) * PICO / units
        return cls(rate.numerator, rate.denominator)

    def of(self, quantity: int) -> int:
        """Picodollars for a quantity."""
        return (2 * quantity * self.numerator + self.denominator) // (2 * self.denominator)


def per_gb_s(usd: Decimal) -> Rate:
    """A price per GB-second as one per MB · ms."""
    return Rate.per(usd, GB_MB * 1000)


def per_h(usd: Decimal) -> Rate:
    """A price per hour as one per ms."""
    return Rate.per(usd, 3600 * 1000)


def milliseconds(seconds: float, granularity_ms: int = 1) -> int:
    """A duration, rounded up to whole steps of `granularity_ms`; never negative.

    Differences of Unix times are off by up to a quarter of a microsecond, so they are taken to the next microsecond
    first: 0.1 s between two clocks is 100 ms, not 101.
    """
    micro = max(round(seconds * _MICRO), 0)
    return -(-micro // (1000 * granularity_ms)) * granularity_ms


def usd(picos: int) -> float:
    """Picodollars as dollars, for showing and for comparing with a budget."""
    return picos / PICO
