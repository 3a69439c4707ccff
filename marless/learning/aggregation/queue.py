"""The queue of gradients of one scope, as a bounded state machine without clock, randomness or I/O.

What happens to a queue is a sequence of events: a gradient arrives, a learner ends without one, gradients are lost.
Each event gives a new `Queue` and, if the rule says so, a `GradientBatch` of all that wait. So equal events in equal
order give equal aggregations, which is what recovery and replay rest on. Staleness is the store's clock now minus the
clock of the version that a gradient was computed from; pure functions weigh gradients by it, and bound its mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from marless.learning.aggregation.config import (
    AggregationConfig,
    AsyncRule,
    SoftsyncRule,
    SSPRule,
    StellarisRule,
    Weights,
)

Because = Literal["rule", "escape", "full", "released"]
"""Why gradients were aggregated: the rule allowed it; the rule's escape; no room is left; the schedule asked for it."""
Refusal = Literal["repeated", "too_stale", "from_future", "other_scope"]
"""Why a gradient was not taken: its id is known; its version is older than `max_staleness`; its version does not exist;
it is not of the queue's scope."""


@dataclass(frozen=True, kw_only=True)
class QueuedGradient:
    """A gradient that a learner has computed; its arrays are kept elsewhere, under its id."""

    id: str
    """Unique in the job; a repeated arrival has the same id."""
    learner: str
    """The learner's invocation."""
    scope: str
    """The scope, or policy, that it is of."""
    clock: int
    """Clock of the version that it was computed from."""
    env_steps: int
    """Env steps of its batch."""


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """A gradient of an aggregation."""

    gradient: QueuedGradient
    staleness: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class GradientBatch:
    """Gradients that make the next version together."""

    clock: int
    """The clock before it; the new version has `clock + 1`."""
    gradients: tuple[Weighted, ...]
    """In order of arrival."""
    because: Because
    bound: float | None
    """The bound on the mean staleness when it was decided; None: no bound limited it."""

    @property
    def mean_staleness(self) -> float:
        """δ̄ of its gradients."""
        return sum(each.staleness for each in self.gradients) / len(self.gradients)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of its gradients, in their order."""
        return tuple(each.weight for each in self.gradients)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What has become of the gradients of a queue."""

    applied: int = 0
    lost: int = 0
    """Taken, and discarded before they were aggregated."""
    repeated: int = 0
    too_stale: int = 0
    from_future: int = 0
    other_scope: int = 0


@dataclass(frozen=True, kw_only=True)
class Queue:
    """The state of one scope: at most `capacity` gradients, and `capacity` · `max_staleness` ids of applied ones."""

    scope: str
    clock: int = 0
    """Clock of the newest version."""
    waiting: tuple[QueuedGradient, ...] = ()
    """In order of arrival."""
    done: frozenset[tuple[int, str]] = frozenset()
    """(clock, id) of gradients that were applied, as long as a repetition of them would not be too stale."""
    record: float = 0.0
    """δ_max of rule `stellaris`, so far."""
    first_round: int | None = None
    """Aggregations of its first round; None: it is not over."""
    aggregations: int = 0
    counts: Counts = field(default_factory=Counts)


@dataclass(frozen=True, kw_only=True)
class QueueOutcome:
    """What follows from an event."""

    queue: Queue
    aggregation: GradientBatch | None = None
    refused: Refusal | None = None


@dataclass(frozen=True)
class GradientQueue:
    """The transitions of queues under one rule.

    `under_way` has, for each learner of the scope that is under way, the clock of the version that it computes from;
    the learner whose gradient arrives is not among them any more.
    """

    config: AggregationConfig

    def arrive(self, queue: Queue, gradient: QueuedGradient, under_way: Sequence[int]) -> QueueOutcome:
        """A gradient has arrived. It is taken at most once, whatever is repeated; refusals are counted."""
        if refused := self._refusal(queue, gradient):
            counts = replace(queue.counts, **{refused: getattr(queue.counts, refused) + 1})
            return replace(self.ended(replace(queue, counts=counts), under_way), refused=refused)
        return self.ended(replace(queue, waiting=(*queue.waiting, gradient)), under_way)

    def ended(self, queue: Queue, under_way: Sequence[int]) -> QueueOutcome:
        """A learner is not under way any more, with or without a gradient: decide about those that wait."""
        because = self._because(queue, under_way) if queue.waiting else None
        return QueueOutcome(queue=queue) if because is None else self._aggregated(queue, because)

    def release(self, queue: Queue) -> QueueOutcome:
        """Aggregate what waits, whatever the rule says: nothing more will come, or everything waits for a version."""
        return self._aggregated(queue, "released") if queue.waiting else QueueOutcome(queue=queue)

    def discard(self, queue: Queue, ids: Collection[str]) -> Queue:
        """Take waiting gradients out that cannot be applied, e.g. of a policy that no group has; they count as lost.

        One that arrives once more is taken again: it has not been applied.
        """
        lost = [each for each in queue.waiting if each.id in ids]
        return replace(
            queue,
            waiting=tuple(each for each in queue.waiting if each.id not in ids),
            counts=replace(queue.counts, lost=queue.counts.lost + len(lost)),
        )

    def bound(self, queue: Queue) -> float | None:
        """The present bound on the mean staleness; None if there is none."""
        config = self.config
        if not isinstance(config, StellarisRule) or queue.first_round is None:
            return None
        k = (queue.aggregations - queue.first_round) // config.decay_every + 1
        formula = printed_bound if config.bound == "printed" else authors_bound
        return formula(queue.record, config.decay, k)

    def _refusal(self, queue: Queue, gradient: QueuedGradient) -> Refusal | None:
        if gradient.scope != queue.scope:
            return "other_scope"
        if gradient.clock > queue.clock:
            return "from_future"
        if queue.clock - gradient.clock > self.config.max_staleness:
            return "too_stale"
        # After the test of staleness, because `done` holds no gradients that are too stale.
        known = (gradient.clock, gradient.id) in queue.done or any(each.id == gradient.id for each in queue.waiting)
        return "repeated" if known else None

    def _because(self, queue: Queue, under_way: Sequence[int]) -> Because | None:
        """Why the gradients that wait are to be aggregated; None: they wait on."""
        if self._allowed(queue, under_way):
            return "rule"
        escape = isinstance(self.config, StellarisRule) and self.config.escape
        # As in the public code of Yu et al. 2024: by the printed rule alone, stale gradients may wait for ever.
        if escape and len(queue.waiting) >= len(under_way):
            return "escape"
        return "full" if len(queue.waiting) >= self.config.capacity else None

    def _allowed(self, queue: Queue, under_way: Sequence[int]) -> bool:
        config = self.config
        if isinstance(config, AsyncRule):
            return True
        if isinstance(config, SoftsyncRule):
            return len(queue.waiting) >= config.gradients
        if isinstance(config, SSPRule):
            # Asked for the next version: once it is there, learners under way are one version staler.
            return all(queue.clock + 1 - clock <= config.staleness for clock in under_way)
        if isinstance(config, StellarisRule):
            bound = self.bound(queue)
            ages = [queue.clock - each.clock for each in queue.waiting]
            return bound is None or sum(ages) / len(ages) <= bound
        return not under_way

    def _aggregated(self, queue: Queue, because: Because) -> QueueOutcome:
        config, clock = self.config, queue.clock
        found = GradientBatch(
            clock=clock,
            gradients=tuple(
                Weighted(gradient=each, staleness=age, weight=weight(age, config.weights, config.root))
                for each, age in ((each, clock - each.clock) for each in queue.waiting)
            ),
            because=because,
            bound=self.bound(queue),
        )
        oldest = clock + 1 - config.max_staleness
        done = queue.done | {(each.clock, each.id) for each in queue.waiting}
        after = replace(
            queue,
            clock=clock + 1,
            waiting=(),
            done=frozenset(each for each in done if each[0] >= oldest),
            aggregations=queue.aggregations + 1,
            counts=replace(queue.counts, applied=queue.counts.applied + len(queue.waiting)),
        )
        return QueueOutcome(queue=self._recorded(after, found), aggregation=found)

    def _recorded(self, queue: Queue, found: GradientBatch) -> Queue:
        """The queue with δ_max, as long as its first round lasts."""
        config = self.config
        if not isinstance(config, StellarisRule) or queue.first_round is not None:
            return queue
        if config.bound == "authors":
            record, least = float(int(found.mean_staleness) + 1) if found.mean_staleness > 0 else 0.0, 1
        else:
            stalest = max(each.staleness for each in found.gradients)
            record, least = max(queue.record, float(stalest)), config.first_round
        over = record > 0 and queue.aggregations >= least
        return replace(queue, record=record, first_round=queue.aggregations if over else None)


def weight(staleness: int, weights: Weights, root: float) -> float:
    """The weight of a gradient, in (0, 1]; 1 if it is fresh.

    root: δ^(−1/v) (Yu et al. 2024). reciprocal: 1/δ (Zhang et al. 2016).
    """
    if staleness == 0 or weights == "equal":
        return 1.0
    return float(staleness ** (-1.0 / root if weights == "root" else -1.0))


def printed_bound(record: float, decay: float, k: int) -> float:
    """β_k = δ_max · d^k of the k-th round after the first, k from 1 (Yu et al. 2024)."""
    return float(record * decay**k)


def authors_bound(record: float, decay: float, k: int) -> float:
    """The same in the public code of Yu et al. 2024: int(δ_max · d^(k−1)) + 1, at least 1 and at most δ_max."""
    return float(max(1, min(int(record * decay ** (k - 1)) + 1, record)))
