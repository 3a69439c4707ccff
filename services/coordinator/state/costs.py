"""The cost of a job, computed from its round records: every round if it has a budget, else at the latest at its end."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Mapping

from marless.core.errors import MarlessError
from marless.cost.billing.ledger import Ledger, RoundCost
from marless.cost.pricing.money import usd
from marless.jobs import prices
from marless.jobs.accountings import Accounting
from marless.jobs.prices import Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from services.coordinator.state.base import DurableJob

MOST_DUE = 8
"""Rounds that may wait in memory to be priced. With more, as after a restart, `total_usd` reads all from disk."""


def check(spec: JobSpec) -> None:
    """Raise SpecError for a job with a price table or a budget that cannot be used."""
    if _matters(spec):
        Ledger(spec, prices.merged(spec.bill.prices))


class Costs:
    """The ledger of one job. Methods take milliseconds unless they say otherwise; they must not run concurrently."""

    def __init__(self, spec: JobSpec, folder: DurableJob) -> None:
        self._spec = spec
        self._folder = folder
        self._accounting: Accounting = spec.bill.accounting
        self._prices: Prices | None = None
        self._ledger: Ledger | None = None
        self._due: deque[RoundRecord] = deque()
        self._behind = False
        self._last: RoundCost | None = None
        self.problem = ""
        """Why the cost is unknown; "" if it is known. Never set for a job with a budget, which fails instead."""

    @property
    def budget_usd(self) -> float | None:
        """The budget, `stop.cost_usd`; None if there is none."""
        return self._spec.stop.cost_usd

    @property
    def accounting(self) -> Accounting:
        """Which way of accounting counts as the job's cost."""
        return self._accounting

    def clear(self) -> None:
        """Forget all rounds."""
        self._ledger = self._last = None
        self._behind = False
        self._due.clear()

    def put(self, record: RoundRecord) -> None:
        """Add a recorded round; raises SpecError if there is a budget and the round cannot be priced."""
        if self.budget_usd is not None:
            self._last = self._opened().add(record)
        elif len(self._due) < MOST_DUE and not self._behind:
            self._due.append(record)
        else:
            self._behind = True
            self._due.clear()

    def catch_up(self) -> None:
        """Price the rounds that wait in memory; called while the job waits for something else."""
        try:
            while self._due and not self.problem:
                self._opened().add(self._due[0])
                self._due.popleft()
        except MarlessError as error:
            self.problem = str(error)

    def spent_usd(self, record: RoundRecord | None = None) -> float:
        """The cost so far of a job with a budget, with `record` as its next round if one is given."""
        ledger = self._opened()
        if record is not None:
            # The price table, which never changes, is shared with the copy.
            ledger = copy.deepcopy(ledger, {id(self._prices): self._prices})
            ledger.add(record)
        return ledger.total_usd(self._accounting)

    def last_usd(self) -> Mapping[str, float]:
        """The cost in USD of the newest round of a job with a budget, by function."""
        sums: Counter[str] = Counter()
        for charge in self._last.charges[self._accounting] if self._last else ():
            sums[charge.function] += charge.picos
        return {function: usd(picos) for function, picos in sums.items()}

    def total_usd(self) -> float | None:
        """The cost of all recorded rounds; None if it is unknown. May read all records, at some ms per round."""
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
            self._ledger = Ledger(self._spec, self._prices, (self._accounting,))
        return self._ledger


def _matters(spec: JobSpec) -> bool:
    return spec.stop.cost_usd is not None or spec.bill.prices is not None
