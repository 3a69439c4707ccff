"""`BillBook`: the cost of a job by every accounting, round by round, computed once a page asks for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from marless.app.dashboard.sources import JobSource, read
from marless.core import documents
from marless.core.errors import MarlessError, SpecError
from marless.cost.billing.ledger import Ledger
from marless.jobs import prices
from marless.jobs import spec as specs
from marless.jobs.prices import ALL_ACCOUNTINGS, Accounting
from marless.jobs.record import RoundRecord

if TYPE_CHECKING:
    from marless.app.dashboard.following import JobFollower
    from marless.jobs.spec import JobSpec

BATCH = 16
"""Rounds priced at a time, in a thread, so that pages are served meanwhile."""
RETRY_S = 2.0


async def spec_of(source: JobSource, job: str) -> JobSpec:
    """The spec of a job; raises SpecError if it cannot be read here, as if its algorithm is not installed."""
    text = (await read(source, job, "spec.yaml")).decode(errors="replace")
    return specs.parse(documents.yaml_of(text, f"spec.yaml of {job}"), f"spec.yaml of {job}")


class BillBook:
    """The bills of one job: columns `cost/<accounting>` of its curves, in US dollars, cumulative."""

    def __init__(self, source: JobSource, follower: JobFollower) -> None:
        self.follower = follower
        self.rounds = 0
        """Rounds that are priced."""
        self.budget_usd: float | None = None
        """`stop.cost_usd`."""
        self.accounting = ""
        """`bill.accounting`, to which the budget applies."""
        self.problem = ""
        self._source = source
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop computing."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def about(self) -> dict[str, Any]:  # Any: JSON
        """How far it is, and the budget."""
        series = self.follower.series
        totals = {name: float(values[-1]) for name, values in series.columns.items() if name.startswith("cost/")}
        return {
            "priced": self.rounds,
            "rounds": series.rounds,
            "budget_usd": self.budget_usd,
            "accounting": self.accounting,
            "problem": self.problem,
            "totals": totals,
        }

    async def _run(self) -> None:
        while True:
            try:
                await self._price()
            except MarlessError as error:
                self.problem = str(error)
                self.follower.announce()
            await asyncio.sleep(RETRY_S)

    async def _price(self) -> None:
        follower, generation = self.follower, self.follower.generation
        spec = await spec_of(self._source, follower.name)
        self.budget_usd, self.accounting = spec.stop.cost_usd, spec.bill.accounting
        ledger, self.rounds, self.problem = Ledger(spec, prices.merged(spec.bill.prices)), 0, ""
        while generation == follower.generation:
            changed = follower.changed
            if self.rounds >= follower.series.rounds:
                await changed.wait()
                continue
            records = await self._source.records(follower.name, self.rounds, BATCH)
            for record, costs in zip(records, await asyncio.to_thread(_totals, ledger, records), strict=True):
                for accounting, cost in costs.items():
                    follower.series.set(f"cost/{accounting}", record.round, cost)
            self.rounds += len(records)
            follower.announce()
            if not records:
                await asyncio.sleep(RETRY_S)


def _totals(ledger: Ledger, records: Sequence[RoundRecord]) -> list[dict[Accounting, float]]:
    found = []
    for record in records:
        ledger.add(record)
        costs: dict[Accounting, float] = {}
        for accounting in ALL_ACCOUNTINGS:
            with suppress(SpecError):  # machines whose price nobody has told
                costs[accounting] = ledger.total_usd(accounting)
        found.append({name: cost for name, cost in costs.items() if math.isfinite(cost)})
    return found
