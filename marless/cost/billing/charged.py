"""What a provider would charge for a run as functions, and on a machine of its own: both modelled alike.

Accounting `billed` charges for the time that rounds took where the job ran; `serverful` is modelled. So neither says
anything about the other. Here both sides have the same run, in which every function takes its recorded seconds:

- as functions, each has a slot of its own, and all charges are those of `billed` for rounds of this length;
- on a machine, the smallest that fits is rented from the first round to the last.

Both sides also pay, for as long as the run takes there, for the Redis node and for the host of the coordinator and the
other services. The time between rounds is the recorded one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from marless.cost.billing.billed import Clock, RedisMeter, Span, meter
from marless.cost.billing.ledger import ModelledRounds, ReservedMachines, serverful_picos
from marless.cost.pricing import per_h, usd
from marless.cost.simulation.cluster import total
from marless.cost.simulation.virtual import of_rounds
from marless.jobs.prices import Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.jobs.usage import usage

ChargedSide = Literal["billed", "serverful"]
_ENOUGH = 10**9
"""vCPUs: a slot for each function of any round."""


def charged(
    records: Iterable[RoundRecord], spec: JobSpec, prices: Prices, machine: ReservedMachines
) -> Mapping[ChargedSide, float]:
    """US dollars of a run as functions ("billed") and on this machine ("serverful"); records in order of rounds."""
    rounds = ModelledRounds(spec.functions, of_rounds(spec.schedule), spec.bill.time)
    functions, rented = _ModelledTime(prices), _ModelledTime(prices)
    bill = meter(spec.functions, prices)
    picos: dict[ChargedSide, int] = {"billed": 0, "serverful": 0}
    for record in records:
        phases = rounds.phases(record, (machine.vcpus, _ENOUGH))
        span = functions.span(record, total(phases[_ENOUGH]))
        uses = usage(record, spec.functions, spec.bill.time, spec.bill.starts)
        picos["billed"] += sum(charge.picos for charge in bill.charges(record, uses, span)) + functions.services(span)
        span = rented.span(record, total(phases[machine.vcpus]))
        picos["serverful"] += serverful_picos(span.length_ms, machine) + rented.services(span)
    return {side: usd(amount) for side, amount in picos.items()}


class _ModelledTime:
    """The time of a run on one side, and what it pays there for services."""

    def __init__(self, prices: Prices) -> None:
        self._clock, self._redis = Clock(prices.keep_alive_s), RedisMeter(prices)
        self._host = per_h(prices.services.usd_h)

    def span(self, record: RoundRecord, seconds: float) -> Span:
        """The next round, as if it had taken so many seconds."""
        return self._clock.span(replace(record, started_s=0.0, ended_s=seconds))

    def services(self, span: Span) -> int:
        """Picodollars of the Redis node and the services' host."""
        return self._redis.charge(span).picos + self._host.of(span.length_ms)
