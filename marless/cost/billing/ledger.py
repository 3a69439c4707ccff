"""The ledger of one job: the cost of every round by all accountings, computed only from its records, in picodollars.

- *paper*: work alone, by the millisecond (see `marless.cost.pricing.charges.paper`);
- *billed*: everything that a provider charges (see `marless.cost.billing.billed`);
- *serverful*: a machine for the whole run, modelled (see `marless.cost.billing.serverful`);
- *machines*: the machines that the workers ran on (see `marless.cost.billing.machines`).

How long workers took to start, by launcher: from order to connection, and to first task.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from marless.cost.billing import machines, serverful
from marless.cost.billing.billed import Clock, Need, RedisMeter, Span, meter, need_of
from marless.cost.billing.machines import MachineMeter
from marless.cost.billing.serverful import ModelledRounds, ReservedMachines
from marless.cost.pricing import charges
from marless.cost.pricing.charges import Charge
from marless.cost.pricing.money import usd
from marless.jobs.accountings import ALL, Accounting
from marless.jobs.prices import Prices
from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.schedules.registry import made
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST, WHOLE, FunctionUse, usage


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

    def __init__(self, spec: JobSpec, prices: Prices, accountings: Collection[Accounting] = ALL) -> None:
        """Compute the cost by these accountings only. *serverful*, which models each round, takes most of the time.

        Raises SpecError for functions that the backend cannot run, and for a missing price.
        """
        self._functions, self._prices = spec.functions, prices
        self._meter, self._redis = meter(spec.functions, prices), RedisMeter(prices)
        self.machines = MachineMeter(prices)
        """Of the machines that the workers ran on."""
        self._clock = Clock(prices.keep_alive_s)
        self._rounds = ModelledRounds(spec.functions, made(spec.schedule))
        self._need = Need(0.0, 0)
        self._totals: dict[Accounting, int] = dict.fromkeys(accountings, 0)
        self._serverful_ms: Counter[int] = Counter()
        """Modelled time of all rounds by the vCPUs of the machine; which machine is needed is known only at the end."""
        self._choices = serverful.choices(prices)
        # Asked for its error alone: a job whose actors fit on no machine is refused before its first round.
        serverful.smallest(
            Need(spec.actors.count * spec.functions.actor.vcpus, spec.actors.count * spec.functions.actor.memory_mb),
            prices,
        )

    @property
    def machine(self) -> ReservedMachines:
        """The machine that a serverful run of the rounds so far would have reserved."""
        return serverful.smallest(self._need, self._prices)

    def add(self, record: RoundRecord) -> RoundCost:
        """Add the next round; returns its cost (serverful: on the machine that the rounds so far need)."""
        uses, span = usage(record, self._functions), self._clock.span(record)
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
                return charges.paper(uses, self._prices)
            case "billed":
                return charges.merged([*self._meter.charges(record, uses, span), self._redis.charge(span)])
            case "machines":
                return charges.merged(self.machines.charges(record.machines))
            case "serverful":
                return self._serverful(record)

    def _serverful(self, record: RoundRecord) -> tuple[Charge, ...]:
        # The need never shrinks: machines that are too small now need not be modelled any
        # more, which takes most of the time.
        self._choices = tuple(vcpus for vcpus in self._choices if vcpus >= self._need.vcpus)
        modelled = self._rounds.phases(record, self._choices)
        for vcpus in self._choices:
            self._serverful_ms[vcpus] += sum(serverful.phase_ms(modelled[vcpus]).values())
        return serverful.charges(modelled[self.machine.vcpus], self.machine)

    def picos(self, accounting: Accounting) -> int:
        """Cost of all rounds so far in picodollars; raises SpecError for machines without a known price."""
        total = self._totals[accounting]
        if accounting == "machines":
            machines.check_known(self.machines, self._prices)
        if accounting == "serverful":
            return serverful.picos(self._serverful_ms[self.machine.vcpus], self.machine)
        return total

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
            if each.cold and each.init_s and (each.function in WHOLE or each.function == HOST):
                pool = "learner" if each.function == HOST else "actor"
                cold.append((each, pool))
    seen: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for each, pool in cold:  # a machine may be recorded some rounds after the start of its workers
        launcher = launchers.get((each.machine, pool), "")
        seen[launcher, pool].append((each.init_s, each.init_s + each.ready_s))
    return tuple(_summed(launcher, pool, times) for (launcher, pool), times in seen.items())


def _summed(launcher: str, pool: str, times: list[tuple[float, float]]) -> Starts:
    connected, first_task = zip(*times, strict=True)
    return Starts(
        launcher,
        pool=pool,
        workers=len(times),
        connected_s=median(connected),
        connected_most_s=max(connected),
        first_task_s=median(first_task),
        first_task_most_s=max(first_task),
    )
