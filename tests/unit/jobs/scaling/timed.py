"""Made-up rounds with timed actors and learners."""

from dataclasses import replace

from marless.jobs.record import InvocationRecord, PhaseSeconds, RoundRecord
from tests.unit.jobs.scaling.rounds import record


def invocation(function: str, start_s: float, end_s: float, **changes) -> InvocationRecord:
    fields = {
        "id": function, "function": function, "name": "", "index": 0, "attempt": 1, "worker": "", "cold": False,
        "queued_s": start_s, "start_s": start_s, "end_s": end_s, "vcpu_s": end_s - start_s, "memory_bytes": 0,
    }  # fmt: skip
    return InvocationRecord(**fields | changes)


def timed(
    number: int,
    acting_s: list[float],
    *,
    delivery_s: float = 0.0,
    fixed_s: float = 0.0,
    learning_s: float = 0.0,
    evaluation_s: float = 0.0,
    rest_s: float = 0.0,
    start_s: float = 1000.0,
    env_steps: int | None = None,
    slots: int = 1000,
    cold_s: float = 0.0,
) -> RoundRecord:
    """A synchronous round: actors on so many slots, an update of two parts, an evaluation, and time for the rest."""
    free = [start_s + delivery_s + cold_s] * slots
    actors = []
    for each in acting_s:
        begin = min(free)
        free[free.index(begin)] = begin + each
        actors.append(
            invocation("actor", begin, begin + each, queued_s=start_s, cold=cold_s > 0, init_s=cold_s, name="")
        )
    rolled_s = max(each.end_s for each in actors)
    learned_s = rolled_s + fixed_s + learning_s
    passes = (
        invocation("critic", learned_s - learning_s, learned_s, queued_s=0.0, name="a"),
        invocation("policy", learned_s - learning_s, learned_s, queued_s=0.0, name="a"),
    )
    made = record(number, "a", actors=len(acting_s), env_steps=env_steps)
    return replace(
        made,
        started_s=start_s,
        ended_s=learned_s + evaluation_s + rest_s,
        idle_s=0.0,
        phases=PhaseSeconds(rollout=rolled_s - start_s, update=fixed_s + learning_s, evaluation=evaluation_s),
        invocations=(*actors, invocation("learner", rolled_s, learned_s), *(passes if learning_s else ())),
    )
