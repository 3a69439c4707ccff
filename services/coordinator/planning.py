"""What the next round starts from: its groups and actors, as the job's policies decide them from the records.

Policies see what a reader of `rounds.jsonl` sees, in the same types. So a coordinator that was restarted decides as an
undisturbed one, whatever a policy keeps in the inputs of its decisions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marless.algos.base import Group
from marless.errors import InternalError
from marless.job import Job
from marless.record import Decision, Returns
from marless.rpc.v1.learner_pool_pb2 import Measure
from marless.scaling.base import ScalingDecision
from marless.scaling.budget import within_budget
from services.coordinator.journal import Journal
from services.coordinator.pools import Versions


@dataclass(frozen=True)
class Plan:
    """What the next round starts from."""

    round: int
    env_steps: int
    groups: tuple[Group, ...]
    actors: int
    versions: Versions
    """Heads of all policies and joint critics, also of those that no agent uses now."""
    decisions: tuple[Decision, ...]
    ending: str
    """Why there is no next round; "" if there is."""


class Planner:
    """Asks the policies of one job."""

    def __init__(self, job: Job, journal: Journal) -> None:
        self._job = job
        self._journal = journal

    def plan(self, versions: Versions, ending: str) -> Plan:
        """Decide on the round after those that are recorded; raises InternalError for what no round can start from."""
        journal, spec = self._journal, self._job.spec
        history = journal.history
        sharing = self._job.sharing.decide(history)
        scaling = self._affordable(self._job.scaling.decide(history, sharing.groups), ending)
        _check_starts(spec.sharing.name, sharing.groups, versions)
        groups = " ".join("+".join(group.agents) for group in sharing.groups)
        return Plan(
            round=journal.rounds,
            env_steps=journal.env_steps,
            groups=sharing.groups,
            actors=scaling.actors,
            versions=versions,
            decisions=(
                _decision("scaling", spec.scaling.name, f"{scaling.actors} actors", scaling.reason, scaling.inputs),
                _decision("sharing", spec.sharing.name, groups, sharing.reason, sharing.inputs),
            ),
            ending=ending,
        )

    def _affordable(self, decision: ScalingDecision, ending: str) -> ScalingDecision:
        """The decision within what is left of the budget, if its policy is to mind that and there is a next round."""
        spec, costs = self._job.spec, self._journal.costs
        if ending or costs.budget_usd is None or not spec.scaling.within_budget:
            return decision
        return within_budget(
            decision,
            last=self._journal.last,
            last_usd=costs.last_usd(),
            remaining_usd=costs.budget_usd - costs.spent_usd(),
            rounds_left=spec.stop.rounds - self._journal.rounds if spec.stop.rounds else None,
        )

    def measure(self, returns: Returns | None) -> Measure:
        """What learners measure beside the update of the present round, whose rollout had these returns."""
        similarity = self._job.sharing.asks(self._journal.history, returns)
        return Measure(curvature=self._job.curvature, noise=self._job.noise, similarity=similarity)


def _decision(
    kind: Literal["scaling", "sharing"],
    rule: str,
    outcome: str,
    reason: str,
    inputs: Mapping[str, Any],  # Any: what JSON can hold
) -> Decision:
    try:
        kept = json.loads(json.dumps(inputs))  # as it will be read back
    except (TypeError, ValueError) as error:
        raise InternalError(f"{kind} policy {rule!r}: JSON cannot hold the inputs of its decision: {error}") from None
    return Decision(kind=kind, rule=rule, outcome=outcome, reason=reason, inputs=kept)


def _check_starts(rule: str, groups: tuple[Group, ...], versions: Versions) -> None:
    for group in groups:
        if group.start not in versions:
            raise InternalError(
                f"sharing policy {rule!r}: group {'+'.join(group.agents)} is to start from {group.start!r}, "
                f"which has no version; there is {', '.join(sorted(versions))}"
            )
