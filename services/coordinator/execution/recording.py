"""Records the rounds of a job; builds records, the log lines about changed decisions, and the summary."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from marless.core.errors import CancelledJobError
from marless.core.group import LaneRecord
from marless.core.machine import MachineRecord
from marless.core.stopwatch import Stopwatch
from marless.jobs.explanation import acted
from marless.jobs.record import Decision, Evaluation, GroupRecord, PhaseSeconds, RoundRecord, Summary
from marless.rpc.concurrency import to_the_end
from marless.services.coordinator.execution.cancellation import Steps
from marless.services.coordinator.execution.evaluations import Evaluations
from marless.services.coordinator.execution.machines import PoolMachines
from marless.services.coordinator.execution.planning import RoundPlan
from marless.services.coordinator.execution.pools import JobContext, Rollout, Update
from marless.services.coordinator.execution.timing import RoundTimes, Timing
from marless.services.coordinator.state.journal import Costs, Flusher, Journal
from marless.services.coordinator.state.status import JobStatus, PendingRollout


class RoundRecorder:
    """Records the rounds of one job, with what was measured beside them.

    Args:
        context: The job.
        journal: Of its records.
        costs: Of its recorded rounds.
        flusher: Makes records durable in a bucket.
        timing: Of its rounds.
        steps: Bound what a round waits for.
        is_last: Whether a round that is not recorded yet may be the job's last: then it evaluates its own policies.
        told: Called once a round is recorded, with the record before it.
    """

    def __init__(
        self,
        context: JobContext,
        *,
        journal: Journal,
        costs: Costs,
        flusher: Flusher,
        timing: Timing,
        steps: Steps,
        is_last: Callable[[RoundRecord], bool],
        told: Callable[[RoundRecord | None], None],
    ) -> None:
        self.timing = timing
        self.journal = journal
        self.evaluations = Evaluations(job_id=context.job_id, job=context.job, pools=context.pools, log=context.log)
        self.machines = PoolMachines(context.job_id, context.pools)
        self._folder = context.folder
        self._costs = costs
        self._flusher = flusher
        self._steps = steps
        self._is_last = is_last
        self._told = told

    async def before(self) -> RoundRecord | None:
        """The newest record, once it is durable: nothing is published earlier that is built on it."""
        await self._flusher.done()
        return self.journal.last

    def catch_up(self) -> None:
        """Do what is done while a version is made: pending.json becomes durable, costs are added up. It blocks."""
        self._folder.sync_pending()
        self._costs.catch_up()

    async def evaluated(self, round_: int, evaluating: Awaitable[Rollout] | None) -> tuple[Rollout | None, float]:
        """Wait for an evaluation, if there is one; returns it, and the seconds.

        None if the job is cancelled first: a version that is made already is recorded all the same.
        """
        if evaluating is None:
            return None, 0.0
        evaluation, waiting = None, Stopwatch.start()
        with suppress(CancelledJobError):
            async with self._steps.step(round_, "actors evaluate"):
                evaluation = await evaluating
        return evaluation, waiting.seconds

    async def record(
        self,
        record: RoundRecord,
        machines: tuple[MachineRecord, ...],
        *,
        times: RoundTimes,
        waited_s: float,
        epoch: int,
    ) -> None:
        """Append the record of a round durably, with an evaluation of its own policies if it may be the last one.

        Args:
            record: Of the round after its update.
            machines: What the pools' machines did for the job so far.
            times: Of the round.
            waited_s: Seconds after its update that it has waited for an evaluation of the round before.
            epoch: Of the versions.
        """
        before = self.journal.last
        own, own_s = await self.evaluated(
            record.round, self.evaluations.of(record, epoch) if self._is_last(record) else None
        )
        changes = self.machines.changes(machines)
        record = finished(record, own, changes, times=times, evaluation_s=waited_s + own_s)
        await to_the_end(self.journal.append, record)
        self.timing.recorded(record)
        self._told(before)


def trained(
    job: str,
    plan: RoundPlan,
    pending: PendingRollout,
    update: Update,
    *,
    times: RoundTimes,
    update_s: float,
    ahead: int = 0,
) -> RoundRecord:
    """The record of a round after its update, without evaluations; `ahead` is that of the record."""
    versions = {**plan.versions, **update.versions}
    groups = (
        GroupRecord(policy=g.policy, agents=g.agents, version=versions[g.policy], source=g.source) for g in plan.groups
    )
    return RoundRecord(
        job=job,
        round=plan.round,
        env_steps=plan.env_steps + pending.env_steps,
        actors=pending.actors,
        groups=tuple(groups),
        versions=versions,
        started_s=times.watch.started_s,
        ended_s=times.watch.now_s,
        idle_s=times.idle_s,
        phases=PhaseSeconds(rollout=pending.rollout_s, update=update_s, evaluation=0.0),
        returns=pending.returns,
        evaluation=None,
        metrics=update.metrics,
        invocations=pending.invocations + update.invocations,
        decisions=plan.decisions,
        distances=update.distances,
        lanes=pending.lanes,
        ahead=ahead,
    )


def left(before: Iterable[LaneRecord], now: Iterable[LaneRecord]) -> tuple[LaneRecord, ...]:
    """All lanes after a rollout: those that it ran, and as they were those that rest; by index."""
    return tuple(lane for _, lane in sorted({each.lane: each for each in (*before, *now)}.items()))


def with_earlier(record: RoundRecord, before: RoundRecord | None, evaluation: Rollout | None) -> RoundRecord:
    """The record with the evaluation that ran beside its update, of the policies that the round `before` published."""
    if before is None or evaluation is None:
        return record
    # One in which no episode ended has no result, and has cost what it cost.
    measured = None
    if evaluation.returns is not None:
        measured = Evaluation(rounds=before.round + 1, env_steps=before.env_steps, returns=evaluation.returns)
    return replace(
        record,
        earlier_evaluation=measured,
        invocations=record.invocations + tuple(replace(each, during_update=True) for each in evaluation.invocations),
    )


def finished(
    record: RoundRecord,
    evaluation: Rollout | None,
    machines: tuple[MachineRecord, ...] = (),
    *,
    times: RoundTimes,
    evaluation_s: float,
) -> RoundRecord:
    """The final record of a round.

    Args:
        evaluation: Of the round's own policies, if it evaluated them.
        machines: Those of which something has changed since the round before.
        evaluation_s: Seconds after its update that it waited for evaluations.
    """
    return replace(
        record,
        ended_s=times.watch.now_s,
        phases=replace(record.phases, evaluation=evaluation_s),
        evaluation=evaluation.returns if evaluation else None,
        evaluation_given_up=evaluation is not None and evaluation.returns is None,
        invocations=record.invocations + (evaluation.invocations if evaluation else ()),
        machines=machines,
    )


def changes(before: RoundRecord | None, record: RoundRecord) -> Iterator[tuple[str, dict[str, object]]]:
    """Changes of groups and number of actors since the round before, as log lines: event name and fields.

    In logs, rounds count from 1.
    """
    if before is None:
        return
    why = {decision.kind: decision for decision in acted(before, record)}
    together = {agent: set(group.agents) for group in before.groups for agent in group.agents}
    joined = [group for group in record.groups if any(not set(group.agents) <= together[a] for a in group.agents)]
    parted = [group for group in record.groups if any(not together[a] <= set(group.agents) for a in group.agents)]
    for event, groups in (("learners.shared", joined), ("learners.split", parted)):
        if groups:
            named = {group.policy: group.agents for group in groups}
            yield event, {"round": record.round + 1, "policies": named, "reason": _reason(why.get("sharing"))}
    if record.actors != before.actors:
        yield (
            "actors.scaled",
            {
                "round": record.round + 1,
                "before": before.actors,
                "actors": record.actors,
                "reason": _reason(why.get("scaling")),
            },
        )


def summary(status: JobStatus, journal: Journal, timing: Timing, path: Path, cost_usd: float | None) -> Summary:
    """The summary of a job that has ended with this status."""
    last, trained_s = journal.last, journal.trained_s
    return Summary(
        job=status.job,
        state=status.state,
        reason=status.reason,
        rounds=journal.rounds,
        env_steps=journal.env_steps,
        greedy=journal.greedy,
        random=status.random,
        wall_s=round(trained_s, 3),
        elapsed_s=round(timing.since(status.accepted_s), 3),
        env_steps_per_s=round(last.env_steps / trained_s, 1) if last and trained_s > 0 else 0.0,
        run_dir=str(path),
        cost_usd=cost_usd,
        accounting=journal.costs.accounting,
        marless_version=status.marless_version,
    )


def _reason(decision: Decision | None) -> str:
    return decision.reason if decision else ""
