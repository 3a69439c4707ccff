"""The bill of a recorded run on a spot machine, under a recorded series of prices, in which the machine is killed.

The run is that of accounting `serverful`: its rounds, each as long as modelled on the machine's vCPUs.
The machine is billed by the price of each moment. When it is killed, the round under way is lost: what the machine did
for it is paid, and is done and paid again on the next machine, whose workers start anew. What earlier rounds did is
durable. While none can be had, nothing is paid, and the run waits.

What a run costs depends on when it begins, so it is begun at many moments, evenly over the series.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from statistics import fmean

from marless.core.errors import SpecError
from marless.cost.billing.machines import HOUR_US, MICRO, charged_us
from marless.cost.billing.own import serverful_rounds
from marless.cost.pricing import Rate, usd
from marless.jobs.prices import Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST, WHOLE

BEGINNINGS = 1_000
"""Moments of a series at which a run is begun."""


@dataclass(frozen=True, kw_only=True)
class SpotPrice:
    """A row of a series."""

    time_us: int
    """From when it holds, until the next row."""
    usd_h: Decimal
    killed: bool
    """True if the machine is taken away at this time, and none can be had until the next row."""


@dataclass(frozen=True)
class SpotRun:
    """What a run would have been on spot machines."""

    picos: int
    """Its cost in picodollars."""
    kills: int
    lost_us: int
    """Work that was lost, and paid again."""
    ended_us: int
    """From its beginning to its end, waiting included."""


@dataclass(frozen=True)
class SpotSeries:
    """Prices of one machine over time; `marless.cost.billing.spot_files` reads them."""

    rows: tuple[SpotPrice, ...]
    instance: str = ""
    """The type of the machine, if the file says it."""

    @cached_property
    def _times_us(self) -> tuple[int, ...]:
        return tuple(each.time_us for each in self.rows)

    @cached_property
    def _kills_us(self) -> tuple[int, ...]:
        return tuple(each.time_us for each in self.rows if each.killed)

    def cost(self, begin_us: int, end_us: int) -> int:
        """Picodollars of one machine from `begin_us` to `end_us`."""
        picos = 0
        first = max(bisect_right(self._times_us, begin_us) - 1, 0)
        for at in range(first, bisect_right(self._times_us, end_us)):
            row, until_us = self.rows[at], self._times_us[at + 1] if at + 1 < len(self.rows) else end_us
            part_us = min(until_us, end_us) - max(row.time_us, begin_us)
            if part_us > 0:
                picos += Rate.per(row.usd_h, HOUR_US).of(part_us)
        return picos

    def run(self, rounds_us: Sequence[int], begin_us: int, *, restart_us: int, minimum_s: int) -> SpotRun:
        """A run of rounds of these lengths that is begun at `begin_us`, or as soon as a machine can be had.

        Args:
            restart_us: How long workers take to start on a machine after the first one.
            minimum_s: Seconds that each machine is charged at least.
        """
        began_us = now_us = life_us = self._available(begin_us)
        picos = kills = lost_us = 0
        for round_us in rounds_us:
            work_us = round_us
            while (at := bisect_left(self._kills_us, now_us)) < len(
                self._kills_us
            ) and now_us + work_us > self._kills_us[at]:
                kills, lost_us = kills + 1, lost_us + self._kills_us[at] - now_us
                picos += self.cost(life_us, life_us + charged_us(self._kills_us[at] - life_us, minimum_s))
                life_us = now_us = self._available(self._kills_us[at])
                work_us = restart_us + round_us
            now_us += work_us
        picos += self.cost(life_us, life_us + charged_us(now_us - life_us, minimum_s))
        return SpotRun(picos, kills, lost_us, now_us - began_us)

    def _available(self, time_us: int) -> int:
        """The first moment from then on at which a machine can be had."""
        at = max(bisect_right(self._times_us, time_us) - 1, 0)
        return next(max(each.time_us, time_us) for each in self.rows[at:] if not each.killed)

    def bill(self, records: Sequence[RoundRecord], spec: JobSpec, prices: Prices) -> SpotBill:
        """The bills of a recorded run; raises SpecError as `bill` does, and for prices of another type of machine."""
        machine, seconds = serverful_rounds(records, spec, prices)
        if self.instance not in ("", machine.instance):
            raise SpecError(
                f"--spot: these are prices of {self.instance}, and the run needs {machine}; give those of "
                f"{machine.instance}"
            )
        rounds_us = [round(each * MICRO) for each in seconds]
        restart_us, minimum_s = round(start_s(records) * MICRO), prices.machines.minimum_s
        first_us, span_us = self._times_us[0], self._times_us[-1] - self._times_us[0]
        begins_us = dict.fromkeys(first_us + span_us * number // BEGINNINGS for number in range(BEGINNINGS))
        runs = (self.run(rounds_us, each, restart_us=restart_us, minimum_s=minimum_s) for each in begins_us)
        on_demand = Rate.per(machine.price.usd_h, HOUR_US).of(charged_us(sum(rounds_us), minimum_s))
        return SpotBill(
            machine=str(machine),
            undisturbed_s=sum(seconds),
            on_demand_usd=machine.count * usd(on_demand),
            count=machine.count,
            runs=tuple(runs),
        )


@dataclass(frozen=True, kw_only=True)
class SpotBill:
    """The bills of one run that is begun at many moments of a series."""

    machine: str
    count: int
    """Machines that the run needs at once."""
    undisturbed_s: float
    on_demand_usd: float
    """At the machine's list price, undisturbed."""
    runs: tuple[SpotRun, ...]

    @property
    def usd(self) -> tuple[float, float, float]:
        """The least, mean and greatest cost in US dollars."""
        costs = [self.count * usd(each.picos) for each in self.runs]
        return min(costs), fmean(costs), max(costs)

    @property
    def seconds(self) -> tuple[float, float, float]:
        """The least, mean and greatest duration."""
        lengths = [each.ended_us / MICRO for each in self.runs]
        return min(lengths), fmean(lengths), max(lengths)

    @property
    def kills(self) -> tuple[float, float, float]:
        """The least, mean and greatest number of kills."""
        counts = [each.kills for each in self.runs]
        return min(counts), fmean(counts), max(counts)

    @property
    def lost_s(self) -> tuple[float, float, float]:
        """The least, mean and greatest work that was lost, in seconds."""
        lost = [each.lost_us / MICRO for each in self.runs]
        return min(lost), fmean(lost), max(lost)


def start_s(records: Iterable[RoundRecord]) -> float:
    """How long the workers of a run took to start: the longest start that was recorded."""
    started = (
        each.init_s
        for record in records
        for each in record.invocations
        if each.cold and each.function in (HOST, *WHOLE)
    )
    return max((each for each in started if 0 <= each < math.inf), default=0.0)
