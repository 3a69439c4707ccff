"""The job that repeats an asynchronous run: the same events in the same order, and so the same weights."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from marless.core.documents import MAX_TEXT
from marless.core.errors import SpecError
from marless.core.state import REPLAY
from marless.jobs.record import RoundRecord
from marless.jobs.schedules.stellaris_config import MAX_ORDER, StellarisConfig
from marless.jobs.sections import StopSpec
from marless.jobs.spec import JobSpec


def replayed(spec: JobSpec, records: Sequence[RoundRecord]) -> JobSpec:
    """A job that takes the order of these records, from its first version to the last one that they have.

    Raises SpecError for a run of another schedule, without a round, or too long, and for one whose replay lost samples.
    """
    schedule = spec.schedule
    if not isinstance(schedule, StellarisConfig):
        raise SpecError(
            f"--replay: the run is of schedule {schedule.name}, whose results do not depend on the order in which "
            "functions end; train from its spec.yaml to get the same weights"
        )
    order = " ".join(each.aggregation.arrivals for each in records if each.aggregation)
    if not order:
        raise SpecError("--replay: the run has no version yet")
    if len(order) > MAX_ORDER:
        raise SpecError(f"--replay: the run's events take {len(order):,} characters; at most {MAX_ORDER:,} are taken")
    _check_replays(records[-1])
    stop = StopSpec.model_validate({"rounds": len(records)})
    # In pieces, because no document holds a longer text, and the spec of a long run's repetition must be read again.
    texts = tuple(textwrap.wrap(order, MAX_TEXT, break_long_words=False))
    return spec.model_copy(update={"schedule": schedule.model_copy(update={"order": texts}), "stop": stop})


def _check_replays(last: RoundRecord) -> None:
    """Raise SpecError if a replay file has lost samples: nothing would lose them in the same way once more."""
    for name, metrics in last.metrics.items():
        if name.startswith(f"{REPLAY}.") and (lost := metrics.get("lost")):
            raise SpecError(
                f"--replay: {name} of the run has lost {lost:,.0f} env steps, as after the loss of its file; a "
                "repetition would keep them, and come to other weights; start a new job from its spec.yaml"
            )
