"""What a run would have cost on a machine of its own, reserved from its first to its last round. Always modelled.

The machine is the smallest of a family that holds the run's largest phase; where even the largest is too small, several
of the largest. It is paid for as long as the rounds' phases are modelled to take on its vCPUs, phase by phase (Wei et
al. 2025, fig. 12: the price of the machine times the sum of the phases; see `marless.replay.cluster`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from marless.errors import SpecError
from marless.pricing.billed import Need, machines
from marless.pricing.charges import Charge, merged
from marless.pricing.money import milliseconds, per_h
from marless.pricing.prices import InstancePrice, Prices
from marless.record import PhaseSeconds, RoundRecord
from marless.replay.cluster import modelled
from marless.spec import FunctionsSpec

MOST_MACHINES = 64
"""Of the largest kind; the papers' largest testbed is a seventh of that."""


@dataclass(frozen=True)
class Machine:
    """What a serverful run reserves."""

    instance: str
    count: int
    price: InstancePrice

    @property
    def vcpus(self) -> int:
        """Of all of them."""
        return self.count * self.price.vcpus

    def __str__(self) -> str:
        return self.instance if self.count == 1 else f"{self.count} × {self.instance}"


def smallest(need: Need, prices: Prices) -> Machine:
    """The cheapest machine that holds a need, or as many of the largest as do.

    Raises SpecError if the family has no price, or not even MOST_MACHINES of its largest hold the need.
    """
    family = prices.family()
    for name, price in family:
        if machines(need, price) == 1:
            return Machine(name, 1, price)
    name, price = _largest(prices)
    count = machines(need, price)
    if count > MOST_MACHINES:
        raise SpecError(
            f"a serverful run of {need.vcpus:g} vCPUs and {need.memory_mb} MB at once would take {count} × {name}; "
            f"at most {MOST_MACHINES} are modelled: take fewer or smaller functions, or another `ec2.serverful` family"
        )
    return Machine(name, count, price)


def choices(prices: Prices) -> tuple[int, ...]:
    """The vCPUs of everything that `smallest` may choose."""
    singles = {price.vcpus for _, price in prices.family()}
    return tuple(sorted(singles | {count * _largest(prices)[1].vcpus for count in range(2, MOST_MACHINES + 1)}))


class ModelledRounds:
    """Rounds on machines of any size; sizes that make no difference to a round are modelled once."""

    def __init__(self, functions: FunctionsSpec) -> None:
        self._functions = functions

    def phases(self, record: RoundRecord, slots: tuple[int, ...]) -> Mapping[int, PhaseSeconds]:
        """Modelled phases by number of vCPUs; raises SpecError for one that holds no function."""
        largest = max(self._functions.actor.vcpus, self._functions.learner.vcpus)
        enough = math.ceil(max(len(record.invocations), 1) * largest)
        found: dict[int, PhaseSeconds] = {}
        for count in slots:
            lanes = min(count, enough)
            found[lanes] = found[lanes] if lanes in found else modelled(record, self._functions, lanes)
            found[count] = found[lanes]
        return found


def phase_ms(phases: PhaseSeconds) -> dict[str, int]:
    """By the function that a phase is for, in whole milliseconds."""
    by_function = {"actor": phases.rollout, "learner": phases.update, "evaluation": phases.evaluation}
    return {function: milliseconds(seconds) for function, seconds in by_function.items()}


def charges(phases: PhaseSeconds, machine: Machine) -> tuple[Charge, ...]:
    """A round's part, by phase: "actor" for its rollout, "learner" for its update, "evaluation"."""
    return merged(Charge(function, "", "machine", picos(ms, machine)) for function, ms in phase_ms(phases).items())


def picos(ms: int, machine: Machine) -> int:
    """Picodollars of a time on a machine; its price of a millisecond is whole, so that sums of times cost alike."""
    return ms * machine.count * per_h(machine.price.usd_h).of(1)


def _largest(prices: Prices) -> tuple[str, InstancePrice]:
    return max(prices.family(), key=lambda each: (each[1].vcpus, each[1].memory_gb))
