"""Models a recorded run whose rollouts overlap on slots: its schedule, with durations drawn from the recorded ones.

Nothing learns here. The results are times, staleness, and how busy slots are, for as many gradients as were recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from marless.core.errors import SpecError
from marless.cost.simulation.asynchronous import SimulatedRun, SlotCounts, SlotSeconds, SpeedSpread, simulate
from marless.jobs.prices import BilledTime
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.base import made
from marless.jobs.schedules.overlapping import OverlappingConfig
from marless.jobs.spec import JobSpec
from marless.jobs.usage import ACTOR, HOST, PARAMETER, working_s


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """A recorded run on modelled slots."""

    actors: int
    """SlotCounts of actors; each has a rollout under way."""
    learners: int
    """SlotCounts of learners."""
    gradients: int
    """That were applied."""
    course: SimulatedRun

    @property
    def staleness(self) -> float:
        """Mean of all gradients."""
        return sum(self.course.staleness) / len(self.course.staleness)


def modelled(records: Sequence[RoundRecord], spec: JobSpec, *, slots: int | None, seed: int) -> Modelled:
    """Model a run with the settings of `spec` on `slots` vCPUs; None: as many as its actors and learners need.

    Learners have their slots first. Raises SpecError for a run without a gradient, and for too few slots.
    """
    config = spec.schedule
    assert isinstance(config, OverlappingConfig)
    gradients = sum(len(each.aggregation.gradients) for each in records if each.aggregation)
    if not gradients:
        raise SpecError("the run has no version yet: there is nothing to model")
    actors, sizes = spec.actors.count, spec.functions
    if slots is not None:
        left = math.floor((slots - config.learners * sizes.learner.vcpus) / sizes.actor.vcpus)
        if left < 1:
            least = math.ceil(config.learners * sizes.learner.vcpus + sizes.actor.vcpus)
            raise SpecError(
                f"--slots {slots}: {config.learners} learners and an actor need {least} vCPUs; give as many, or fewer "
                "learners (--set schedule.learners=N)"
            )
        actors = min(actors, left)
    durations = recorded(records, spec.bill.time)
    given = SlotCounts(actors=actors, learners=config.learners), durations, SpeedSpread()
    course = simulate(made(config), *given, gradients=gradients, seed=seed)
    return Modelled(actors=actors, learners=config.learners, gradients=gradients, course=course)


def recorded(records: Sequence[RoundRecord], time: BilledTime = "duration") -> SlotSeconds:
    """The durations of a run's functions, or their CPU seconds, without cold starts.

    A gradient of several scopes takes as long as the longest of them.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    gradients: defaultdict[str, float] = defaultdict(float)
    for each in (invocation for record in records for invocation in record.invocations):
        seconds = working_s(each, time)
        if each.function == HOST:
            learner = each.id.rpartition("/")[0]
            gradients[learner] = max(gradients[learner], seconds)
        else:
            found[each.function].append(seconds)
    return SlotSeconds(
        sample_s=found[ACTOR], learn_s=list(gradients.values()), publish_s=median(found[PARAMETER] or [0.0])
    )
