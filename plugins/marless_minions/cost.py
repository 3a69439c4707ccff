"""The cost of a round against the scheduler's budget, C_k = c (P^l d_l + Σ P^a_i d_a), d in GB (MinionsRL)."""

from __future__ import annotations

from marless.core.settings import FunctionsSpec
from marless.jobs.record import RoundRecord
from marless.jobs.usage import usage

_MB_PER_GB = 1024


def actor_gb_s(record: RoundRecord, functions: FunctionsSpec) -> float:
    """GB-seconds of a round's actors."""
    return sum(_gb_s(record, functions, actors=True))


def learner_gb_s(record: RoundRecord, functions: FunctionsSpec) -> float:
    """GB-seconds of all functions inside the learners of a round."""
    return sum(_gb_s(record, functions, actors=False))


def round_gb_s(record: RoundRecord, functions: FunctionsSpec) -> float:
    """GB-seconds of a round without evaluations, which do not depend on the scheduler's decisions."""
    return actor_gb_s(record, functions) + learner_gb_s(record, functions)


def _gb_s(record: RoundRecord, functions: FunctionsSpec, *, actors: bool) -> list[float]:
    return [
        use.seconds * use.memory_mb / _MB_PER_GB
        for use in usage(record, functions)
        if use.function != "evaluation" and (use.function == "actor") == actors
    ]
