"""What rounds took, read from their records: for policies and limits that decide by time.

A round's rollout and update are read apart, because they depend on the number of actors in different ways. An actor
always plays the same number of env steps, so with a slot for each, more actors do not make a rollout longer; but the
update then learns from more samples. Starts of workers are left out, because they do not come back in later rounds.

Durations hold the time in which a function waited for a core that other programs used. By CPU seconds (`bill.time:
cpu`), an actor counts with its own, at most its duration, and an update with the part of its time in which its learners
computed. Time in which an environment waits for something else does not count then.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median

from marless.jobs.record import InvocationRecord, RoundRecord
from marless.jobs.usage import ACTOR, HOST

LEARNING = frozenset({"learner", "post_process", "critic", "mixer", "policy"})
"""Functions that process samples."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRound:
    """What one round took, in seconds."""

    actors: int
    acting_s: tuple[float, ...]
    """Working time of each actor."""
    delivery_s: float
    """From the request for the actors to the start of the first one."""
    rollout_s: float
    """From the request for the actors to the end of the last one."""
    at_once: int
    """The most actors that ran at the same time."""
    update_s: float
    """Of the update, until its versions are published."""
    learning_s: float
    """The part of the update in which functions process samples."""
    learner_s: float
    """Of one learner, from its start to its end; 0 if none is recorded."""
    spent_s: float
    """Of the whole round, with the time since the round before."""
    ahead: bool
    """True if its actors began beside an earlier update."""

    @property
    def rest_s(self) -> float:
        """What is neither rollout nor update."""
        works_s = max(self.rollout_s, self.update_s) if self.ahead else self.rollout_s + self.update_s
        return max(self.spent_s - works_s, 0.0)


def newest_times(history: Sequence[RoundRecord], rounds: int, *, by_cpu: bool = False) -> list[MeasuredRound]:
    """The times of at most the `rounds` newest rounds, newest first; rounds without a recorded actor are left out."""
    found = (times_of(record, by_cpu=by_cpu) for record in islice(reversed(history), rounds))
    return [each for each in found if each is not None]


def times_of(record: RoundRecord, *, by_cpu: bool = False) -> MeasuredRound | None:
    """The times of one round; None if its record has no actor that worked for a positive, finite time.

    Args:
        by_cpu: `acting_s`, `update_s`, `learning_s` and `learner_s` are CPU seconds, where these were measured.
    """
    acting = [each for each in record.invocations if each.function == ACTOR and 0 < _worked_s(each) < math.inf]
    if not acting:
        return None
    learners = [each for each in record.invocations if each.function == HOST]
    learning = [each for each in record.invocations if each.function in LEARNING and each.function != HOST]
    queued_s = min(each.queued_s or each.start_s for each in acting)
    starts_s = max(map(_awaited_s, acting))
    update_s = max(record.phases.update - max(map(_awaited_s, learners), default=0.0), 0.0)
    computing = _computing(learners) if by_cpu else 1.0
    learning_s = min(_covered_s(learning or learners), update_s)
    return MeasuredRound(
        actors=max(record.actors, 1),
        acting_s=tuple(map(_computed_s if by_cpu else _worked_s, acting)),
        delivery_s=max(min(each.start_s - (each.queued_s or each.start_s) - _awaited_s(each) for each in acting), 0.0),
        rollout_s=max(max(each.end_s for each in acting) - queued_s - starts_s, 0.0),
        at_once=_at_once(acting),
        update_s=update_s * computing,
        learning_s=learning_s * computing,
        learner_s=median(map(_computed_s if by_cpu else _worked_s, learners)) if learners else 0.0,
        spent_s=max(record.spent_s - starts_s - (record.phases.update - update_s), 0.0),
        ahead=queued_s < record.started_s,
    )


def _worked_s(invocation: InvocationRecord) -> float:
    return max(invocation.end_s - invocation.start_s, 0.0)


def _computed_s(invocation: InvocationRecord) -> float:
    """CPU seconds of an execution, at most its duration, which holds those of several cores; its duration if none."""
    return min(invocation.cpu_s, _worked_s(invocation)) if invocation.cpu_s > 0 else _worked_s(invocation)


def _computing(learners: Sequence[InvocationRecord]) -> float:
    """The fraction of their time in which learners computed."""
    worked_s = sum(map(_worked_s, learners))
    return sum(map(_computed_s, learners)) / worked_s if worked_s > 0 else 1.0


def _awaited_s(invocation: InvocationRecord) -> float:
    """Seconds that it waited for the start of its worker."""
    waited_s = max(invocation.start_s - (invocation.queued_s or invocation.start_s), 0.0)
    return min(max(invocation.init_s, 0.0), waited_s) if invocation.cold else 0.0


def _at_once(acting: Iterable[InvocationRecord]) -> int:
    known = list(acting)
    # Of two changes at one time an end comes first.
    changes = sorted([(each.start_s, 1) for each in known] + [(each.end_s, -1) for each in known])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _covered_s(invocations: Iterable[InvocationRecord]) -> float:
    """Seconds in which at least one of them ran."""
    covered_s, reached_s = 0.0, -math.inf
    for each in sorted(invocations, key=lambda each: each.start_s):
        covered_s += max(each.end_s - max(each.start_s, reached_s), 0.0)
        reached_s = max(reached_s, each.end_s)
    return covered_s


@dataclass(frozen=True, kw_only=True)
class RoundForecast:
    """How long a round takes with any number of actors, from the medians of measured rounds. Seconds."""

    acting_s: float
    """Of a rollout in which every actor has a slot: until the slowest has ended."""
    slots: int | None
    """Actors that run at once; None if none had to wait for another one."""
    update_s: float
    """The part of an update that does not depend on the number of actors."""
    actor_update_s: float
    """What each actor adds to an update."""
    rest_s: float
    """Of everything else, on average: evaluations, and the time between rounds."""
    ahead: bool
    """True if rollouts run beside updates."""

    @classmethod
    def of(cls, times: Sequence[MeasuredRound], *, drawn: bool = False) -> RoundForecast:
        """The forecast from at least one measured round; `drawn`: updates draw batches of a fixed size."""
        waited = [each for each in times if each.at_once < each.actors]
        slots = max((each.at_once for each in waited), default=None)
        learning = [0.0 if drawn else each.learning_s for each in times]
        return cls(
            acting_s=median(each.rollout_s / _turns(each.actors, slots) for each in times),
            slots=slots,
            update_s=median(each.update_s - part for each, part in zip(times, learning, strict=True)),
            actor_update_s=median(part / each.actors for each, part in zip(times, learning, strict=True)),
            rest_s=fmean(each.rest_s for each in times),
            ahead=times[0].ahead,
        )

    def seconds(self, actors: int) -> float:
        """Seconds of a round with this many actors."""
        rollout_s = self.acting_s * _turns(actors, self.slots)
        update_s = self.update_s + self.actor_update_s * actors
        return self.rest_s + (max(rollout_s, update_s) if self.ahead else rollout_s + update_s)


def _turns(actors: int, slots: int | None) -> int:
    """How many actors run one after another on the same slot."""
    return 1 if slots is None else max(math.ceil(actors / slots), 1)
