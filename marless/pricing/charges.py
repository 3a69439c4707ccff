"""Charges: what one round adds to a bill, line by line. Each line belongs to one function, group and item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from marless.pricing.money import milliseconds, per_gb_s
from marless.pricing.prices import Prices
from marless.pricing.usage import Use

Accounting: TypeAlias = Literal["billed", "paper", "serverful"]
ACCOUNTINGS: tuple[Accounting, ...] = ("paper", "billed", "serverful")


@dataclass(frozen=True)
class Charge:
    """One line, or several that differ in nothing but their sum."""

    function: str
    """As in `Use`; "redis" for the node that keeps the versions, "machine" for one that is not any function's own."""
    group: str
    """The policy served; "" for what served all."""
    item: str
    """work (starts included), request, ready (kept warm), node, machine."""
    picos: int
    """Picodollars."""


def merged(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """One line per function, group and item, in order of appearance; lines of nothing are left out."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for each in charges:
        sums[each.function, each.group, each.item] += each.picos
    return tuple(Charge(*key, picos) for key, picos in sums.items() if picos)


def paper(uses: Sequence[Use], prices: Prices) -> tuple[Charge, ...]:
    """Work alone, as the papers count it: each use, by the millisecond, at its memory and Lambda's price.

    Starts are in it ("pre-warming included"), keeping alive is not; neither are requests nor Redis. Source: Wei et al.
    2025, §6; the rate is what reproduces their figure 12. It takes a function at the memory that it was given, though a
    Lambda of 1,024 MB comes with 0.58 of a vCPU; `billed` charges for whole ones.
    """
    rate = per_gb_s(prices.lambda_.rate.on_demand)
    return merged(
        Charge(use.function, use.group, "work", rate.of(use.memory_mb * milliseconds(use.seconds + use.init_s)))
        for use in uses
    )
