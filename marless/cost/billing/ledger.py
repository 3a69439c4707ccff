"""The ledger of one job: the cost of every round by all accountings, computed only from its records, in picodollars.

- *paper*: work alone, by the millisecond (see `marless.cost.pricing.paper`);
- *billed*: everything that a provider charges (see `marless.cost.billing.billed`);
- *serverful*: a machine for the whole run, modelled (see `ReservedMachines`);
- *machines*: the machines that the workers ran on (see `marless.cost.billing.machines`).

Also how long workers took to start, by launcher: from order to connection, and to first task.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from marless.core.errors import SpecError
from marless.core.settings import FunctionsSpec
from marless.cost.billing import billed
from marless.cost.billing.billed import Clock, Need, RedisMeter, Span, meter, need_of
from marless.cost.billing.machines import MachineMeter, problem
from marless.cost.pricing import Charge, merged, milliseconds, paper, per_h, usd
from marless.cost.simulation.cluster import ModelledRun
from marless.cost.simulation.virtual import VirtualRun, of_rounds
from marless.jobs.prices import ALL_ACCOUNTINGS, Accounting, BilledTime, InstancePrice, Prices
from marless.jobs.record import InvocationRecord, PhaseSeconds, RoundRecord
from marless.jobs.schedules.base import Schedule
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST, WHOLE, FunctionUse, usage

MOST_MACHINES = 64
"""Most machines of the largest type; the papers' largest testbed is a seventh of that."""


@dataclass(frozen=True)
class ReservedMachines:
    """The machines that a serverful run reserves from its first to its last round.

    They are the cheapest one of a family that provides the capacity for the run's largest phase; if even the largest is
    too small, several of the largest. They are charged for the modelled duration of the phases on their vCPUs (Wei et
    al. 2025, fig. 12: the price of the machine times the sum of the phases; see `marless.cost.simulation.cluster`).
    """

    instance: str
    count: int
    price: InstancePrice

    @property
    def vcpus(self) -> int:
        """vCPUs of all machines together."""
        return self.count * self.price.vcpus

    def __str__(self) -> str:
        return self.instance if self.count == 1 else f"{self.count} × {self.instance}"


def smallest_machines(need: Need, prices: Prices) -> ReservedMachines:
    """The cheapest single machine that provides the needed capacity, or as many of the largest as it takes.

    Raises SpecError if the family has no price, or if more than MOST_MACHINES would be needed.
    """
    family = prices.family()
    for name, price in family:
        if billed.machines(need, price) == 1:
            return ReservedMachines(name, 1, price)
    name, price = _largest(prices)
    count = billed.machines(need, price)
    if count > MOST_MACHINES:
        raise SpecError(
            f"a serverful run of {need.vcpus:g} vCPUs and {need.memory_mb} MB at once would take {count} × {name}; "
            f"at most {MOST_MACHINES} are modelled: take fewer or smaller functions, or another `ec2.serverful` family"
        )
    return ReservedMachines(name, count, price)


class ModelledRounds:
    """Models the duration of a job's rounds on machines of any size; equivalent sizes are modelled once per round."""

    def __init__(self, functions: FunctionsSpec, schedule: Schedule[Any], time: BilledTime) -> None:
        self._functions = functions
        self._first = ModelledRun(VirtualRun.of(schedule), time=time)
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


def serverful_charges(phases: PhaseSeconds, machine: ReservedMachines) -> tuple[Charge, ...]:
    """The charges of a round, by phase: "actor" for its rollout, "learner" for its update, "evaluation"."""
    return merged(
        Charge(function, "", "machine", serverful_picos(ms, machine)) for function, ms in phase_ms(phases).items()
    )


def serverful_picos(ms: int, machine: ReservedMachines) -> int:
    """Price in picodollars; the price per millisecond is an integer, so prices of parts add up to that of the whole."""
    return ms * machine.count * per_h(machine.price.usd_h).of(1)


def _largest(prices: Prices) -> tuple[str, InstancePrice]:
    return max(prices.family(), key=lambda each: (each[1].vcpus, each[1].memory_gb))


@dataclass(frozen=True)
class RoundCost:
    """The charges of one round, by accounting."""

    round: int
    charges: Mapping[Accounting, tuple[Charge, ...]]

    def picos(self, accounting: Accounting) -> int:
        """Cost of the round in picodollars."""
        return sum(charge.picos for charge in self.charges[accounting])

    def usd(self, accounting: Accounting) -> float:
        """Cost of the round in US dollars."""
        return usd(self.picos(accounting))


class Ledger:
    """Adds up rounds, each once and in order; for a resumed job, first add the rounds of its records.

    Memory does not grow with the number of rounds. Deterministic: equal records give equal ledgers.
    """

    def __init__(self, spec: JobSpec, prices: Prices, accountings: Collection[Accounting] = ALL_ACCOUNTINGS) -> None:
        """Compute the cost by these accountings only. *serverful*, which models each round, takes most of the time.

        Raises SpecError for functions that the backend cannot run, and for a missing price.
        """
        self._functions, self._prices, self._time = spec.functions, prices, spec.bill.time
        self._starts = spec.bill.starts
        self._meter, self._redis = meter(spec.functions, prices), RedisMeter(prices)
        self.machines = MachineMeter(prices)
        """Of the machines that the workers ran on."""
        self._clock = Clock(prices.keep_alive_s)
        self._rounds = ModelledRounds(spec.functions, of_rounds(spec.schedule), self._time)
        self._need = Need(0.0, 0)
        self._totals: dict[Accounting, int] = dict.fromkeys(accountings, 0)
        self._serverful_ms: Counter[int] = Counter()
        """Modelled time of all rounds by the vCPUs of the machine; which machine is needed is known only at the end."""
        singles = {price.vcpus for _, price in prices.family()}
        several = {count * _largest(prices)[1].vcpus for count in range(2, MOST_MACHINES + 1)}
        self._choices = tuple(sorted(singles | several))
        """Numbers of vCPUs of all machines that `smallest_machines` may choose."""
        # Asked for its error alone: a job whose actors fit on no machine is refused before its first round.
        smallest_machines(
            Need(spec.actors.count * spec.functions.actor.vcpus, spec.actors.count * spec.functions.actor.memory_mb),
            prices,
        )

    @property
    def machine(self) -> ReservedMachines:
        """The machine that a serverful run of the rounds so far would have reserved."""
        return smallest_machines(self._need, self._prices)

    def add(self, record: RoundRecord) -> RoundCost:
        """Add the next round; returns its cost (serverful: on the machine that the rounds so far need)."""
        uses, span = usage(record, self._functions, self._time, self._starts), self._clock.span(record)
        self._need |= need_of(record, uses, self._functions)
        cost = RoundCost(record.round, {each: self._charges(each, record, uses, span) for each in self._totals})
        for accounting in self._totals:
            self._totals[accounting] += cost.picos(accounting)
        return cost

    def _charges(
        self, accounting: Accounting, record: RoundRecord, uses: Sequence[FunctionUse], span: Span
    ) -> tuple[Charge, ...]:
        match accounting:
            case "paper":
                return paper(uses, self._prices)
            case "billed":
                return merged([*self._meter.charges(record, uses, span), self._redis.charge(span)])
            case "machines":
                return merged(self.machines.charges(record.machines))
            case "serverful":
                # The need never shrinks: machines that are too small now need not be modelled any
                # more, which takes most of the time.
                self._choices = tuple(vcpus for vcpus in self._choices if vcpus >= self._need.vcpus)
                modelled = self._rounds.phases(record, self._choices)
                for vcpus in self._choices:
                    self._serverful_ms[vcpus] += sum(phase_ms(modelled[vcpus]).values())
                return serverful_charges(modelled[self.machine.vcpus], self.machine)

    def picos(self, accounting: Accounting) -> int:
        """Cost of all rounds so far in picodollars; raises SpecError for machines without a known price."""
        if accounting == "machines":
            if not self.machines.machines:
                raise SpecError("the records name no machines: set bill.accounting to billed, paper or serverful")
            if without := problem(self.machines.time, self._prices):
                raise SpecError(without)
        if accounting == "serverful":
            return serverful_picos(self._serverful_ms[self.machine.vcpus], self.machine)
        return self._totals[accounting]

    def total_usd(self, accounting: Accounting) -> float:
        """Cost of all rounds so far in US dollars."""
        return usd(self.picos(accounting))


@dataclass(frozen=True)
class Starts:
    """The workers of one launcher that were ordered and had their first task in these rounds."""

    launcher: str
    pool: str
    workers: int
    connected_s: float
    """Median of the seconds from order to connection."""
    connected_most_s: float
    first_task_s: float
    """Median of the seconds from order to first task."""
    first_task_most_s: float


def starts(records: Iterable[RoundRecord]) -> tuple[Starts, ...]:
    """The starts of workers by launcher and pool; without those that were connected before the job, or dialled in."""
    launchers: dict[tuple[str, str], str] = {}
    cold: list[tuple[InvocationRecord, str]] = []
    for record in records:
        launchers |= {(each.id, each.pool): each.launcher for each in record.machines if each.launcher}
        for each in record.invocations:
            if each.cold and each.init_s and each.function in (HOST, *WHOLE):
                cold.append((each, "learner" if each.function == HOST else "actor"))
    seen: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each, pool in cold:  # a machine may be recorded some rounds after the start of its workers
        launcher = launchers.get((each.machine, pool), "")
        seen[launcher, pool].append((each.init_s, each.init_s + each.ready_s))
    found = []
    for (launcher, pool), times in seen.items():
        connected, first_task = zip(*times, strict=True)
        found.append(
            Starts(
                launcher,
                pool=pool,
                workers=len(times),
                connected_s=median(connected),
                connected_most_s=max(connected),
                first_task_s=median(first_task),
                first_task_most_s=max(first_task),
            )
        )
    return tuple(found)
