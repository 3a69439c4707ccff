"""Accounting `serverful`: the cost of a run on a machine reserved from its first to its last round. Always modelled.

The machine is the cheapest of a family that provides the capacity for the run's largest phase; if even the largest is
too small, several of the largest. It is charged for the modelled duration of the phases on its vCPUs (Wei et al. 2025,
fig. 12: the price of the machine times the sum of the phases; see `marless.cost.simulation.cluster`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from marless.core.errors import SpecError
from marless.core.settings import FunctionsSpec
from marless.cost.billing.billed import Need, machines
from marless.cost.pricing.charges import Charge, merged
from marless.cost.pricing.money import milliseconds, per_h
from marless.cost.simulation.cluster import ModelledRun
from marless.cost.simulation.virtual import VirtualRun
from marless.jobs.prices import InstancePrice, Prices
from marless.jobs.record import PhaseSeconds, RoundRecord
from marless.jobs.schedules.base import Schedule

MOST_MACHINES = 64
"""Most machines of the largest type; the papers' largest testbed is a seventh of that."""


@dataclass(frozen=True)
class ReservedMachines:
    """The machines that a serverful run reserves."""

    instance: str
    count: int
    price: InstancePrice

    @property
    def vcpus(self) -> int:
        """vCPUs of all machines together."""
        return self.count * self.price.vcpus

    def __str__(self) -> str:
        return self.instance if self.count == 1 else f"{self.count} × {self.instance}"


def smallest(need: Need, prices: Prices) -> ReservedMachines:
    """The cheapest single machine that provides the needed capacity, or as many of the largest as it takes.

    Raises SpecError if the family has no price, or if more than MOST_MACHINES would be needed.
    """
    family = prices.family()
    for name, price in family:
        if machines(need, price) == 1:
            return ReservedMachines(name, 1, price)
    name, price = _largest(prices)
    count = machines(need, price)
    if count > MOST_MACHINES:
        raise SpecError(
            f"a serverful run of {need.vcpus:g} vCPUs and {need.memory_mb} MB at once would take {count} × {name}; "
            f"at most {MOST_MACHINES} are modelled: take fewer or smaller functions, or another `ec2.serverful` family"
        )
    return ReservedMachines(name, count, price)


def choices(prices: Prices) -> tuple[int, ...]:
    """Numbers of vCPUs of all machines that `smallest` may choose, ascending."""
    singles = {price.vcpus for _, price in prices.family()}
    return tuple(sorted(singles | {count * _largest(prices)[1].vcpus for count in range(2, MOST_MACHINES + 1)}))


class ModelledRounds:
    """Models the duration of a job's rounds on machines of any size; equivalent sizes are modelled once per round."""

    def __init__(self, functions: FunctionsSpec, schedule: Schedule) -> None:
        self._functions = functions
        self._first = ModelledRun(VirtualRun(schedule))
        self._runs: dict[int, ModelledRun] = {}

    def phases(self, record: RoundRecord, slots: tuple[int, ...]) -> Mapping[int, PhaseSeconds]:
        """Modelled phases of the next round by number of vCPUs; raises SpecError for one too small for a function.

        A number that was left out of an earlier round cannot be asked for again.
        """
        largest = max(self._functions.actor.vcpus, self._functions.learner.vcpus)
        # With a slot for each function more slots change nothing, so that all larger machines share one model.
        enough = math.ceil(max(len(record.invocations), 1) * largest)
        found: dict[tuple[ModelledRun, int], tuple[PhaseSeconds, ModelledRun]] = {}
        phases: dict[int, PhaseSeconds] = {}
        for count in slots:
            run, lanes = self._runs.get(count, self._first), min(count, enough)
            same = (run, lanes)
            if same not in found:
                found[same] = run.after(record, self._functions, lanes)
            phases[count], self._runs[count] = found[same]
        return phases


def phase_ms(phases: PhaseSeconds) -> dict[str, int]:
    """Milliseconds of each phase, by its function."""
    by_function = {"actor": phases.rollout, "learner": phases.update, "evaluation": phases.evaluation}
    return {function: milliseconds(seconds) for function, seconds in by_function.items()}


def charges(phases: PhaseSeconds, machine: ReservedMachines) -> tuple[Charge, ...]:
    """The charges of a round, by phase: "actor" for its rollout, "learner" for its update, "evaluation"."""
    return merged(Charge(function, "", "machine", picos(ms, machine)) for function, ms in phase_ms(phases).items())


def picos(ms: int, machine: ReservedMachines) -> int:
    """Price in picodollars; the price per millisecond is an integer, so prices of parts add up to that of the whole."""
    return ms * machine.count * per_h(machine.price.usd_h).of(1)


def _largest(prices: Prices) -> tuple[str, InstancePrice]:
    return max(prices.family(), key=lambda each: (each[1].vcpus, each[1].memory_gb))
