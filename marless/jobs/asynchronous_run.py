"""How an asynchronous run went: staleness of its gradients, what waited, what was lost, and how busy its slots were.

Also the job that repeats such a run: the same events in the same order, and so the same weights.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marless.core.documents import MAX_TEXT
from marless.core.errors import SpecError
from marless.core.state import REPLAY
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.events import read
from marless.jobs.schedules.overlapping import MAX_ORDER, OverlappingConfig
from marless.jobs.sections import StopSpec
from marless.jobs.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class VersionReport:
    """Sums and means over the versions of a run, or of a part of it."""

    versions: int
    gradients: int
    staleness: float
    """Mean of all gradients."""
    stalest: int
    weight: float
    """Mean weight of all gradients."""
    waited_s: float
    """Mean seconds from a gradient's arrival until it was applied."""
    because: Mapping[str, int]
    """Number of versions by why they were made: see `marless.learning.aggregation.queue.Because`."""
    dropped: int
    """Rollouts that were too old to be learned from."""
    lost: int
    """Rollouts and gradients that failed."""
    refused: int
    """Gradients that came too late, or again."""
    actors_busy: float
    """Fraction of the actors' time in which a rollout ran, from its place in the queue to its end."""

    def __str__(self) -> str:
        why = ", ".join(f"{count} by {name}" for name, count in sorted(self.because.items()))
        return (
            f"{self.versions} versions ({why}) from {self.gradients} gradients; staleness {self.staleness:.2f} on "
            f"average, {self.stalest} at most; mean weight {self.weight:.3f}; a gradient waited {self.waited_s:.3f} s "
            f"on average; {self.dropped} rollouts too old, {self.lost} rollouts or gradients lost, {self.refused} "
            f"gradients refused; actors busy {self.actors_busy:.0%} of the time"
        )


def version_report(records: Sequence[RoundRecord]) -> VersionReport | None:
    """How these successive versions went; None for a job of another schedule, or without a version."""
    found = [(record, record.aggregation) for record in records if record.aggregation]
    if not found:
        return None
    gradients = [gradient for _, each in found for gradient in each.gradients]
    last = found[-1][1]
    count = max(len(gradients), 1)
    return VersionReport(
        versions=len(found),
        gradients=len(gradients),
        staleness=sum(each.staleness for each in gradients) / count,
        stalest=max((each.staleness for each in gradients), default=0),
        weight=sum(each.weight for each in gradients) / count,
        waited_s=sum(each.waited_s for each in gradients) / count,
        because=dict(Counter(each.because for _, each in found)),
        dropped=last.dropped,
        lost=last.lost,
        refused=last.refused,
        actors_busy=busy([record for record, _ in found], "actor"),
    )


@dataclass(frozen=True, kw_only=True)
class Unused:
    """Rollouts of a run that no version was made of: too old, lost, or still waiting when the job ended."""

    rollouts: int
    of: int
    """All that have ended."""
    share: float
    """Of the actors' seconds, and so of what they cost."""


def unused(records: Sequence[RoundRecord]) -> Unused | None:
    """What was rolled out for nothing; None for a job of another schedule."""
    made = [each.aggregation for each in records if each.aggregation]
    if not made:
        return None
    used = {rollout for each in made for gradient in each.gradients for rollout in gradient.rollouts}
    ended = {each.number for one in made for each in read(one.arrivals) if each.kind == "rollout"}
    seconds = {True: 0.0, False: 0.0}
    for each in (invocation for record in records for invocation in record.invocations):
        if each.function == "actor":
            rollout = int(each.id.split("/")[-3])  # of "<job>/<rollout>/train/0"
            seconds[rollout in used] += max(each.end_s - each.start_s, 0.0)
    total = sum(seconds.values())
    return Unused(rollouts=len(ended - used), of=len(ended), share=seconds[False] / total if total else 0.0)


def busy(records: Sequence[RoundRecord], function: str) -> float:
    """Fraction of the actors' time in which invocations of a function were under way, 1 at most.

    An invocation counts where it ended, so that single versions may show more or less than was busy.
    """
    ran_s = sum(
        max(each.end_s - (each.queued_s or each.start_s), 0.0)
        for record in records
        for each in record.invocations
        if each.function == function
    )
    slots_s = sum(record.actors * record.spent_s for record in records)
    return min(ran_s / slots_s, 1.0) if slots_s > 0 else 0.0


def replayed(spec: JobSpec, records: Sequence[RoundRecord]) -> JobSpec:
    """A job that takes the order of these records, from its first version to the last one that they have.

    Raises SpecError for a run of another schedule, without a round, or too long, and for one whose replay lost samples.
    """
    schedule = spec.schedule
    if not isinstance(schedule, OverlappingConfig):
        raise SpecError(
            f"--replay: the run is of schedule {schedule.name}, whose results do not depend on the order in which "
            "functions end; train from its spec.yaml to get the same weights"
        )
    order = " ".join(each.aggregation.arrivals for each in records if each.aggregation)
    if not order:
        raise SpecError("--replay: the run has no version yet")
    if len(order) > MAX_ORDER:
        raise SpecError(f"--replay: the run's events take {len(order):,} characters; at most {MAX_ORDER:,} are taken")
    # Nothing would lose the samples that a replay file has lost in the same way once more.
    for name, metrics in records[-1].metrics.items():
        if name.startswith(f"{REPLAY}.") and (lost := metrics.get("lost")):
            raise SpecError(
                f"--replay: {name} of the run has lost {lost:,.0f} env steps, as after the loss of its file; a "
                "repetition would keep them, and come to other weights; start a new job from its spec.yaml"
            )
    stop = StopSpec.model_validate({"rounds": len(records)})
    # In pieces, because no document holds a longer text, and the spec of a long run's repetition must be read again.
    texts = tuple(textwrap.wrap(order, MAX_TEXT, break_long_words=False))
    return spec.model_copy(update={"schedule": schedule.model_copy(update={"order": texts}), "stop": stop})
