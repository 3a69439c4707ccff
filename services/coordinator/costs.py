"""What a job costs, by its records: exact after every round where it has a budget, else no later than at its end."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping

from marless.errors import MarlessError
from marless.pricing import prices
from marless.pricing.charges import Accounting
from marless.pricing.ledger import Ledger, RoundCost
from marless.pricing.money import usd
from marless.pricing.prices import Prices
from marless.record import RoundRecord
from marless.spec import JobSpec
from services.coordinator.run_folder import RunFolder

MOST_DUE = 8
"""Rounds that may wait to be added up. Beyond, as after a restart, all are added up from the disk when it is asked."""


def check(spec: JobSpec) -> None:
    """Refuse a job that asks for prices, or for a budget, that it cannot have; raises SpecError."""
    if _matters(spec):
        Ledger(spec, prices.merged(spec.bill.prices))


class Costs:
    """The ledger of one job. The methods take milliseconds, and none is called twice at the same time."""

    def __init__(self, spec: JobSpec, folder: RunFolder) -> None:
        self._spec = spec
        self._folder = folder
        self._accounting: Accounting = spec.bill.accounting
        self._prices: Prices | None = None
        self._ledger: Ledger | None = None
        self._due: deque[RoundRecord] = deque()
        self._behind = False
        self._last: RoundCost | None = None
        self.problem = ""
        """Why the cost is not known, if it is not; never so for a job with a budget, which fails instead."""

    @property
    def budget_usd(self) -> float | None:
        """`stop.cost_usd`."""
        return self._spec.stop.cost_usd

    @property
    def accounting(self) -> Accounting:
        """What counts as the job's cost."""
        return self._accounting

    def clear(self) -> None:
        """No round is recorded."""
        self._ledger = self._last = None
        self._behind = False
        self._due.clear()

    def put(self, record: RoundRecord) -> None:
        """One more round is recorded; raises SpecError for one that cannot be priced, if there is a budget."""
        if self.budget_usd is not None:
            self._last = self._opened().add(record)
        elif len(self._due) < MOST_DUE and not self._behind:
            self._due.append(record)
        else:
            self._behind = True
            self._due.clear()

    def catch_up(self) -> None:
        """Add up what is due; for a moment when nobody waits for it."""
        try:
            while self._due and not self.problem:
                self._opened().add(self._due[0])
                self._due.popleft()
        except MarlessError as error:
            self.problem = str(error)

    def spent_usd(self, record: RoundRecord | None = None) -> float:
        """Of a job with a budget, by now; or if this were the next round."""
        ledger = self._opened()
        if record is not None:
            ledger = copy.deepcopy(ledger, {id(self._prices): self._prices})
            ledger.add(record)
        return ledger.total_usd(self._accounting)

    def last_usd(self) -> Mapping[str, float]:
        """What the newest round of a job with a budget cost, by function."""
        sums: Counter[str] = Counter()
        for charge in self._last.charges[self._accounting] if self._last else ():
            sums[charge.function] += charge.picos
        return {function: usd(picos) for function, picos in sums.items()}

    def total_usd(self) -> float | None:
        """Of all recorded rounds; None if it cannot be known. May take a disk's time, and some ms a round."""
        try:
            if self._behind:
                self.clear()
                for record in self._folder.records():
                    self._opened().add(record)
            self.catch_up()
            return None if self.problem else self._opened().total_usd(self._accounting)
        except MarlessError as error:
            self.problem = str(error)
            return None

    def _opened(self) -> Ledger:
        if self._ledger is None:
            self._prices = self._prices or prices.merged(self._spec.bill.prices)
            self._ledger = Ledger(self._spec, self._prices)
        return self._ledger


def _matters(spec: JobSpec) -> bool:
    return spec.stop.cost_usd is not None or spec.bill.prices is not None
