"""Runs a job's scaling and sharing policies for its next round. The result depends only on the job, the round records
and the budget, so that it can be recomputed from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marless.core.errors import InternalError
from marless.core.group import Group
from marless.jobs.job import PreparedJob
from marless.jobs.record import Decision, RoundRecord
from marless.jobs.scaling.bounds import within_budget


@dataclass(frozen=True)
class Budget:
    """What remains of `stop.cost_usd`, in US dollars."""

    remaining_usd: float
    last_usd: Mapping[str, float]
    """Cost of the newest round, by function."""


@dataclass(frozen=True)
class Decided:
    """The decisions for a round: its groups, its number of actors, and the reasons."""

    groups: tuple[Group, ...]
    actors: int
    decisions: tuple[Decision, ...]


def decide(job: PreparedJob, history: Sequence[RoundRecord], budget: Budget | None = None) -> Decided:
    """Decide the groups and the number of actors of the round after `history`.

    With a budget, and if the job sets `scaling.within_budget`, there are no more actors than the budget pays for.
    Raises InternalError if the inputs of a decision cannot be stored as JSON.
    """
    spec = job.spec
    sharing = job.sharing.decide(history)
    scaling = job.scaling.decide(history, sharing.groups)
    if budget is not None and spec.scaling.within_budget:
        done = history[-1].round + 1 if history else 0
        scaling = within_budget(
            scaling,
            last=history[-1] if history else None,
            last_usd=budget.last_usd,
            remaining_usd=budget.remaining_usd,
            rounds_left=spec.stop.rounds - done if spec.stop.rounds else None,
            drawn=spec.algorithm.drawn(spec.actors.steps) is not None,
        )
    groups = " ".join("+".join(group.agents) for group in sharing.groups)
    return Decided(
        groups=sharing.groups,
        actors=scaling.actors,
        decisions=(
            _decision("scaling", spec.scaling.name, f"{scaling.actors} actors", scaling.reason, scaling.inputs),
            _decision("sharing", spec.sharing.name, groups, sharing.reason, sharing.inputs),
        ),
    )


def _decision(
    kind: Literal["scaling", "sharing"],
    rule: str,
    outcome: str,
    reason: str,
    inputs: Mapping[str, Any],  # Any: what JSON can hold
) -> Decision:
    try:
        kept = json.loads(json.dumps(inputs))  # the same types as after reading the record back
    except (TypeError, ValueError) as error:
        raise InternalError(f"{kind} policy {rule!r}: JSON cannot hold the inputs of its decision: {error}") from None
    return Decision(kind=kind, rule=rule, outcome=outcome, reason=reason, inputs=kept)
