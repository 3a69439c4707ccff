"""The control `scaling.placebo`: a policy decides from random numbers in place of the signal that learners measured.

A policy that saves actors no better by its signal than by a placebo of the same distribution does not save them by what
the signal says. The signal is measured all the same, so that a run with a placebo pays for what its original pays for.
This is no policy of its own: it works with every policy that reads one signal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import overload

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    LARGEST,
    METRICS,
    ActorScaling,
    PlaceboConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
)

_STANDARD = NormalDist()
_BITS = 52
"""Random bits of a number between 0 and 1; with one more, the largest would be rounded to 1."""


def made_scaling(kind: ScalingKind, config: ScalingConfig, context: ScalingContext) -> ActorScaling:
    """The policy that `kind` makes for one job; with `scaling.placebo`, it decides from that.

    Raises SpecError for settings that do not fit the job, and for a placebo if the policy does not read one signal.
    """
    policy = kind.make(config, context)
    if config.placebo is None:
        return policy
    signals = sorted(kind.signals(config))
    if len(signals) != 1:
        reads = f"reads {' and '.join(signals)}" if signals else "reads no measured signal"
        raise SpecError(f"scaling.placebo: scaling {config.name!r} {reads}, and a placebo replaces one; leave it out")
    return PlaceboScaling(policy, METRICS[signals[0]], config.placebo, context.seed)


@dataclass(frozen=True)
class PlaceboScaling:
    """Another policy that sees random numbers in place of one metric."""

    policy: ActorScaling
    metric: str
    placebo: PlaceboConfig
    seed: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide as the policy does; a value that is missing or invalid stays so."""
        found = self.policy.decide(_ChangedRecords(history, self._changed), groups)
        return replace(found, reason=f"with random numbers for {self.metric.replace('_', ' ')}: {found.reason}")

    def _changed(self, record: RoundRecord) -> RoundRecord:
        metrics: dict[str, Mapping[str, float]] = dict(record.metrics)
        for name, values in record.metrics.items():
            # False for NaN, too; what `series` would leave out stays as it is.
            if abs(values.get(self.metric, math.nan)) <= LARGEST:
                metrics[name] = {**values, self.metric: placebo_value(self.placebo, self.seed, name, record.round)}
        return replace(record, metrics=metrics)


def placebo_value(placebo: PlaceboConfig, seed: int, policy: str, round_: int) -> float:
    """The number for a policy in a round: log-normal, and independent of those of other policies, rounds and seeds.

    It depends on nothing but the arguments, so that a resumed job sees the same.
    """
    digest = hashlib.blake2b(f"{seed} {round_} {policy}".encode(), digest_size=8).digest()
    uniform = ((int.from_bytes(digest, "big") >> (64 - _BITS)) + 0.5) / 2**_BITS
    return math.exp(math.log(placebo.median) + placebo.deviation * _STANDARD.inv_cdf(uniform))


@dataclass(frozen=True)
class _ChangedRecords(Sequence[RoundRecord]):
    """Records that are changed when they are looked at, because policies look at few of them."""

    records: Sequence[RoundRecord]
    change: Callable[[RoundRecord], RoundRecord]

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> RoundRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RoundRecord]: ...
    def __getitem__(self, index: int | slice) -> RoundRecord | Sequence[RoundRecord]:
        if isinstance(index, slice):
            return [self.change(record) for record in self.records[index]]
        return self.change(self.records[index])

    def __iter__(self) -> Iterator[RoundRecord]:
        return map(self.change, self.records)

    def __reversed__(self) -> Iterator[RoundRecord]:
        return map(self.change, reversed(self.records))
