"""Accounting `machines`: what the machines cost that a job's workers ran on, by their type, market and time.

The time of each machine that counts for the job is in its records (`marless.core.machine.MachineRecord`). A machine on
which two pools have workers is in a record twice; its time is then divided in proportion. When a machine is released,
the job that was last on it pays what the provider rounds up: to a whole second, and to the minimum of its first minute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marless.core.machine import MachineRecord
from marless.cost.pricing import Charge, Rate
from marless.jobs.prices import Prices

STARTING, WORK, WAITING, KEPT, MINIMUM = "starting", "work", "waiting", "kept", "minimum"
ITEMS = (STARTING, WORK, WAITING, KEPT, MINIMUM)
"""What a machine did: started, worked, waited between tasks, was kept after the end; and what was rounded up."""
MICRO = 10**6
"""Microseconds of a second."""
HOUR_US = 3600 * MICRO
OWN = "own"
"""Market of machines that nobody charges by the second."""


@dataclass(frozen=True)
class Unpriced:
    """Machines without a known price."""

    words: str
    """Their type and market."""
    machine: str
    """The id of one of them."""
    us: int
    """Microseconds of their time."""


@dataclass
class MachineTime:
    """Sums over the machines of a job."""

    us: Counter[str] = field(default_factory=Counter)
    """Microseconds by item; see ITEMS."""
    unpriced: dict[str, Unpriced] = field(default_factory=dict)
    """By words."""

    @property
    def minutes(self) -> Mapping[str, float]:
        """Machine-minutes by item."""
        return {item: self.us[item] / MICRO / 60 for item in ITEMS}

    @property
    def idle_minutes(self) -> float:
        """Machine-minutes without work of the job; what was only rounded up is not among them."""
        return sum(self.minutes[item] for item in (STARTING, WAITING, KEPT))


class MachineMeter:
    """Computes the charges of successive records, each of which holds what each machine has done so far."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._known: dict[tuple[str, str, float], MachineRecord] = {}
        self.time = MachineTime()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> MachineMeter:  # Any: as of copy.deepcopy
        """A copy that can go on by itself; records are immutable and shared."""
        made = MachineMeter(self._prices)
        made._known = dict(self._known)
        made.time = MachineTime(Counter(self.time.us), dict(self.time.unpriced))
        return made

    @property
    def machines(self) -> Sequence[MachineRecord]:
        """The newest record of each machine, in the order in which they were first named."""
        return tuple(self._known.values())

    def charges(self, machines: Iterable[MachineRecord], *, after: bool = False) -> Iterator[Charge]:
        """The charges since the record before; with `after`, of machines that were kept after the job's end."""
        together: dict[str, list[MachineRecord]] = {}
        for each in machines:
            together.setdefault(each.id, []).append(each)
        for rows in together.values():
            present = [self._grown(row, "present_s") for row in rows]
            # A machine that two pools have is paid once: together they pay for the longer presence, each in proportion.
            share = (max(present), sum(present)) if sum(present) else (1, 1)
            before = self._known
            gone = [row for row in rows if row.released and not (row.key in before and before[row.key].released)]
            for row in rows:
                yield from self._of(row.after(self._known.get(row.key)), share, after)
            if gone:
                last = self._known[gone[-1].key]
                others = [each for each in self._known.values() if each.id == last.id and each.pool != last.pool]
                if all(each.released for each in others):  # else another pool still has workers on the machine
                    yield from self._charge(last, MINIMUM, self._rounded_up(last, others))

    def _of(self, row: MachineRecord, share: tuple[int, int], after: bool) -> Iterator[Charge]:
        part, whole = share
        for item in (STARTING, WORK, WAITING):
            grown = self._grown(row, f"{item}_s")
            # Rounded half up in whole numbers, so that equal records give equal bills.
            us = (2 * grown * part + whole) // (2 * whole)
            yield from self._charge(row, KEPT if after and item == WAITING else item, us)
        self._known[row.key] = row

    def _charge(self, row: MachineRecord, item: str, us: int) -> Iterator[Charge]:
        if not us:
            return
        self.time.us[item] += us
        usd_h = self._prices.machine_h(row)
        if usd_h is None:
            seen = self.time.unpriced.get(row.words)
            self.time.unpriced[row.words] = Unpriced(row.words, row.id, us + (seen.us if seen else 0))
        else:
            yield Charge(row.pool or "machine", "", item, Rate.per(usd_h, HOUR_US).of(us))

    def _grown(self, row: MachineRecord, name: str) -> int:
        """Microseconds by which a figure has grown since the record before; never negative."""
        before = self._known.get(row.key)
        return max(_us(getattr(row, name)) - (_us(getattr(before, name)) if before else 0), 0)

    def _rounded_up(self, row: MachineRecord, others: Sequence[MachineRecord]) -> int:
        """Microseconds that a released machine is charged beyond its life, in which `others` had it, too."""
        if row.market == OWN or not (row.type or row.provider or row.market):
            return 0
        # A pool that was done with the machine before this one had it is another life,
        # which has been rounded up already.
        rows = [row, *(each for each in others if _end_s(each) >= row.began_s)]
        life = _us(max(map(_end_s, rows)) - min(each.began_s for each in rows))
        return charged_us(life, self._prices.machines.minimum_s) - life


def charged_us(life_us: int, minimum_s: int) -> int:
    """Microseconds that a rented machine of this life is charged: whole seconds, and at least `minimum_s`."""
    return max(-(-life_us // MICRO) * MICRO, minimum_s * MICRO)


def _end_s(row: MachineRecord) -> float:
    return row.began_s + row.present_s


def problem(time: MachineTime, prices: Prices) -> str:
    """Which machines have no known price, and what to do, in one sentence; "" if all have one."""
    if not time.unpriced:
        return ""
    parts = [f"{each.us / MICRO / 60:,.1f} minutes of {each.words}" for each in time.unpriced.values()]
    example = next(iter(time.unpriced.values()))
    return (
        f"no price is known for {', '.join(parts)} (such as machine {example.machine}), which are in no amount; start "
        f"workers there with --machine type=NAME, and add `machines: {{usd_h: {{NAME: …}}}}` to {prices.file}"
    )


def _us(seconds: float) -> int:
    return round(seconds * MICRO)
