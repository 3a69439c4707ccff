"""The bill of a recorded run on a spot machine, under a recorded series of prices, in which the machine is killed.

The run is that of accounting `serverful`: its rounds, each as long as modelled on the machine's vCPUs.
The machine is billed by the price of each moment. When it is killed, the round under way is lost: what the machine did
for it is paid, and is done and paid again on the next machine, whose workers start anew. What earlier rounds did is
durable. While none can be had, nothing is paid, and the run waits.

What a run costs depends on when it begins, so it is begun at many moments, evenly over the series.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from marless.core.errors import SpecError
from marless.cost.billing.machines import HOUR_US, MICRO, charged_us
from marless.cost.billing.own import serverful_rounds
from marless.cost.pricing import Rate, usd
from marless.jobs.prices import Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import HOST, WHOLE

COLUMNS = ("time", "usd_h")
KILLED = "killed"
MOST_ROWS = 100_000
MOST_USD_H = 10_000
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
    """Prices of one machine over time."""

    rows: tuple[SpotPrice, ...]

    @classmethod
    def read(cls, path: Path) -> SpotSeries:
        """Read a CSV file with the columns time (seconds), usd_h and, if machines are killed, killed (0 or 1).

        Lines that begin with # are comments. Raises SpecError for a file that cannot be read or makes no sense.
        """
        try:
            with path.open(encoding="utf-8", newline="") as file:
                rows = csv.DictReader(line for line in file if line.strip() and not line.startswith("#"))
                missing = [each for each in COLUMNS if each not in (rows.fieldnames or ())]
                if missing:
                    raise SpecError(f"{path}: has no column {missing[0]!r}; name the columns time,usd_h,killed")
                found = tuple(_row(row, f"{path}: row {number}") for number, row in enumerate(rows, 1))
        except OSError as error:
            raise SpecError(f"{path}: cannot be read ({error.strerror}); give a file of spot prices") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise SpecError(f"{path}: cannot be read as CSV: {error}") from None
        if not found or len(found) > MOST_ROWS:
            raise SpecError(f"{path}: has {len(found):,} rows; give 1 to {MOST_ROWS:,}")
        for before, after in pairwise(found):
            if after.time_us <= before.time_us:
                raise SpecError(f"{path}: time {after.time_us / MICRO:g} follows {before.time_us / MICRO:g}; sort rows")
        if found[-1].killed:
            raise SpecError(f"{path}: ends with a kill, after which there is no machine; add a row without one")
        return cls(found)

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
        """The bills of a recorded run; raises SpecError as `bill` does."""
        machine, seconds = serverful_rounds(records, spec, prices)
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


def _row(row: dict[str, str], where: str) -> SpotPrice:
    try:
        time_s, usd_h = float(row["time"]), Decimal(row["usd_h"].strip())
        killed = {"": False, "0": False, "1": True}[(row.get(KILLED) or "").strip()]
    except (ValueError, InvalidOperation, KeyError, TypeError, AttributeError):
        raise SpecError(f"{where}: give time and usd_h as numbers, and killed as 0 or 1") from None
    if not (0 <= time_s < 1e10 and usd_h.is_finite() and 0 <= usd_h <= MOST_USD_H):
        raise SpecError(f"{where}: time must be 0 to 1e10 seconds, and usd_h 0 to {MOST_USD_H:,} US dollars")
    return SpotPrice(time_us=round(time_s * MICRO), usd_h=round(usd_h, 12), killed=killed)


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
