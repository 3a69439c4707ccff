"""Plans the next round: the sharing and scaling policies decide its groups and number of actors from the records.

The policies see only records, as they are in `rounds.jsonl`, so that a restarted coordinator decides as one that was
never interrupted.

The stop rules of a job: whether its rounds, env steps, time, return or cost have reached their limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from marless.core.errors import InternalError
from marless.core.group import Group, LaneRecord, Versions
from marless.core.settings import Measure
from marless.jobs.job import Budget, PreparedJob, decide
from marless.jobs.record import Decision, RoundRecord
from marless.jobs.sections import StopSpec
from marless.jobs.sharing.base import SHARING_POLICIES
from marless.learning.data.returns import EpisodeReturns
from marless.services.coordinator.state.journal import Journal

FIRST_VERSION = 1
"""The first version of every policy that was not restored from a checkpoint."""


@dataclass(frozen=True)
class RoundPlan:
    """The inputs of the next round."""

    round: int
    env_steps: int
    groups: tuple[Group, ...]
    actors: int
    versions: Versions
    """Newest version of every policy and joint critic, also of those that no agent uses now."""
    decisions: tuple[Decision, ...]
    lanes: tuple[LaneRecord, ...]
    """The lanes that have begun, if episodes are carried."""
    ending: str
    """Why there is no next round; "" if there is one."""


class Planner:
    """Plans the rounds of one job with its sharing and scaling policies."""

    def __init__(self, job: PreparedJob, journal: Journal) -> None:
        self._job = job
        self._journal = journal

    def plan(self, versions: Versions, ending: str) -> RoundPlan:
        """Plan the round after the recorded ones; raises InternalError if a group starts from an unknown policy."""
        journal = self._journal
        limits = () if ending else (self._budget(), journal.trained_s)
        decided = decide(self._job, journal.history, *limits)
        for group in decided.groups:
            if group.start not in versions:
                rule = self._job.spec.sharing.name
                raise InternalError(
                    f"sharing policy {rule!r}: group {'+'.join(group.agents)} is to start from {group.start!r}, "
                    f"which has no version; there is {', '.join(sorted(versions))}"
                )
        return RoundPlan(
            round=journal.rounds,
            env_steps=journal.env_steps,
            groups=decided.groups,
            actors=decided.actors,
            versions=versions,
            decisions=decided.decisions,
            lanes=journal.last.lanes if journal.last else (),
            ending=ending,
        )

    def again(self) -> RoundPlan:
        """The plan of the newest recorded round, for the rollout of the next one that was decided with it.

        Its groups and their number of actors are those of the record; its versions are those that the groups start
        from.
        """
        history, last = self._journal.before_last, self._journal.last
        assert last is not None  # the caller has seen its record
        groups = tuple(Group(each.policy, each.agents, each.source) for each in last.groups)
        newest = history[-1].versions if history else dict.fromkeys(last.versions, FIRST_VERSION)
        return RoundPlan(
            round=last.round,
            env_steps=history[-1].env_steps if history else 0,
            groups=groups,
            actors=last.ahead or decide(self._job, history, None).actors,  # none began beside what was the last round
            versions={group.start: newest[group.start] for group in groups},
            decisions=last.decisions,
            lanes=last.lanes,
            ending="",
        )

    def _budget(self) -> Budget | None:
        """What is left of the budget; None if there is none, or the scaling policy is not to consider it."""
        costs = self._journal.costs
        if costs.budget_usd is None or not self._job.spec.scaling.within_budget:
            return None
        return Budget(costs.budget_usd - costs.spent_usd(), costs.last_usd())

    def measure(self, returns: EpisodeReturns | None) -> Measure:
        """What learners measure in addition to the update of the present round, whose rollout had these returns."""
        history = self._journal.history
        return self._measure(history[-1].round + 1 if history else 0, self._job.sharing.asks(history, returns))

    def measure_at(self, clock: int) -> Measure:
        """What learners of an asynchronous job measure in addition to a gradient of the version of this clock.

        The similarity of agents, only if sharing would have begun with that version, had it been known. It depends on
        records before it alone, so that a restarted learner measures the same.
        """
        history = [record for record in self._journal.history if record.round < clock]
        return self._measure(clock, bool(history) and self._job.sharing.asks(history[:-1], history[-1].returns))

    def _measure(self, number: int, similarity: bool) -> Measure:
        job, sharing = self._job, self._job.spec.sharing
        return Measure(
            curvature=job.spec.curvature if job.curvature else None,
            noise=job.noise,
            gradients=job.gradients_due(number),
            similarity=SHARING_POLICIES.find(sharing.name).similarity(sharing) if similarity else None,
        )


def limit_reached(stop: StopSpec, *, rounds: int, env_steps: int, wall_s: float) -> str:
    """Which limit of rounds, env steps or time is reached, as a sentence; "" if none is."""
    if stop.rounds is not None and rounds >= stop.rounds:
        return f"{rounds} rounds done"
    if stop.env_steps is not None and env_steps >= stop.env_steps:
        return f"{env_steps} env steps sampled"
    if stop.wall_s is not None and wall_s >= stop.wall_s:
        return f"{wall_s:.0f} s of training passed"
    return ""


def return_reached(stop: StopSpec, greedy: EpisodeReturns | None) -> str:
    """A sentence if the mean return of an evaluation has reached `stop.greedy_return`, else ""."""
    if stop.greedy_return is None or greedy is None or greedy.mean < stop.greedy_return:
        return ""
    return f"greedy return per agent {greedy.mean:.3f} reached {stop.greedy_return:g}"


def cost_reached(stop: StopSpec, spent_usd: float, accounting: str) -> str:
    """A sentence if the cost has reached `stop.cost_usd`, else ""."""
    if stop.cost_usd is None or spent_usd < stop.cost_usd:
        return ""
    return f"{spent_usd:.6f} USD spent by {accounting} accounting, of a budget of {stop.cost_usd:g} USD"


def may_end(stop: StopSpec, journal: Journal, record: RoundRecord) -> bool:
    """True if the job ends with `record`, the next round of the journal, or if its own evaluation is to decide that.

    Asked before that evaluation. `stop.return` is judged by the policies that the job would end with: if those that an
    earlier round has published reach the return, this round's own are evaluated too.
    """
    wall_s = journal.trained_s + record.spent_s
    if limit_reached(stop, rounds=record.round + 1, env_steps=record.env_steps, wall_s=wall_s):
        return True
    if return_reached(stop, record.newest_evaluation):
        return True
    costs = journal.costs
    return stop.cost_usd is not None and costs.spent_usd(record) >= stop.cost_usd


def ending(stop: StopSpec, journal: Journal) -> str:
    """Which stop rule the recorded rounds have met, as a sentence; "" if none.

    Rules other than the cost count only after a round that evaluated its own policies, or gave that up, because a job's
    last round does.
    """
    if spent := spent_up(stop, journal):
        return spent
    last = journal.last
    if last is None or (last.evaluation is None and not last.evaluation_given_up):
        return ""
    reached = limit_reached(stop, rounds=journal.rounds, env_steps=journal.env_steps, wall_s=journal.trained_s)
    return reached or return_reached(stop, last.evaluation)


def spent_up(stop: StopSpec, journal: Journal) -> str:
    """A sentence if the recorded rounds have cost `stop.cost_usd` or more, else ""."""
    if stop.cost_usd is None:
        return ""
    return cost_reached(stop, journal.costs.spent_usd(), journal.costs.accounting)
