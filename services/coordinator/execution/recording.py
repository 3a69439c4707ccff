"""Records the rounds of a job; builds records, the log lines about changed decisions, and the summary. Asks what
machines did for the job: what has changed since the last record, and machines.json at the job's end and after it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from marless.core.errors import CancelledJobError, MarlessError
from marless.core.group import LaneRecord
from marless.core.log import structlog
from marless.core.machine import FACTS, Kept, MachineRecord
from marless.core.stopwatch import Stopwatch
from marless.jobs.explanation import acted
from marless.jobs.record import Decision, Evaluation, GroupRecord, PhaseSeconds, RoundRecord, Summary
from marless.rpc.concurrency import to_the_end
from marless.services.coordinator.execution.evaluations import Evaluations
from marless.services.coordinator.execution.interruptions import Steps
from marless.services.coordinator.execution.planning import RoundPlan
from marless.services.coordinator.execution.pools import JobContext, Pools, Rollout, Update
from marless.services.coordinator.execution.timing import RoundTimes, Timing
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.journal import Costs, Flusher, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus, PendingRollout

LOOK_S = 1.0
"""Seconds between two looks, at least."""
_log = structlog.get_logger("coordinator")


class PoolMachines:
    """Asks the pools what their machines did for a job that runs."""

    def __init__(self, job_id: str, pools: Pools) -> None:
        self._id = job_id
        self._pools = pools
        self._told: dict[tuple[str, str, float], MachineRecord] = {}
        """What was recorded last."""
        self._looked_s = -math.inf

    async def look(self) -> tuple[MachineRecord, ...]:
        """What the pools' machines did for the job so far; nothing if the last look was less than LOOK_S ago, because
        rounds may follow one another in milliseconds.
        """
        if time.monotonic() - self._looked_s < LOOK_S:
            return ()
        self._looked_s = time.monotonic()
        return await self._pools.machines(self._id)

    def changes(self, found: tuple[MachineRecord, ...]) -> tuple[MachineRecord, ...]:
        """The machines among those of a look that did something for the job since the last call, in all pools that
        have them; facts that the last call returned are left out.
        """
        changed = {each.id for each in found if self._has_changed(each)}
        rows = [each for each in found if each.id in changed]
        short = tuple(_without_facts(each, self._told.get(each.key)) for each in rows)
        self._told |= {each.key: each for each in rows}
        return short

    async def at_the_end(self, folder: RunFolder) -> None:
        """Write machines.json of a job that ends; a failure is logged, and the job ends all the same."""
        try:
            found = await self._pools.machines(self._id)
            await asyncio.to_thread(folder.write_kept, Kept(end=found, now=found, seen_s=time.time()))
        except MarlessError as error:
            _log.warning("job.machines_not_saved", job=self._id, error=str(error))

    def _has_changed(self, found: MachineRecord) -> bool:
        # The time for which a machine is there grows by itself, and is no reason to record it again.
        before = self._told.get(found.key)
        return before is None or replace(found, present_s=before.present_s) != before


def _without_facts(found: MachineRecord, before: MachineRecord | None) -> MachineRecord:
    known = [name for name in FACTS if before and getattr(before, name) == getattr(found, name)]
    defaults: dict[str, Any] = {each.name: each.default for each in fields(MachineRecord)}  # Any: of several kinds
    return replace(found, **{name: defaults[name] for name in known})


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
        self._devices = LearnerDevices(context.log)
        self._costs = costs
        self._flusher = flusher
        self._steps = steps
        self.is_last = is_last
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
            record.round, self.evaluations.of(record, epoch) if self.is_last(record) else None
        )
        changes = self.machines.changes(machines)
        record = self._devices.news(finished(record, own, changes, times=times, evaluation_s=waited_s + own_s))
        await to_the_end(self.journal.append, record)
        self.timing.recorded(record)
        self._told(before)


class LearnerDevices:
    """What the learners of a job compute by, so that a record says it only where it changes."""

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._known: tuple[str, ...] = ()

    def news(self, record: RoundRecord) -> RoundRecord:
        """The record without what is known already. Warns where the bits of the weights may not be those of one learner
        alone: several differ, or others have come in their place.
        """
        found = record.computed_by
        if found in ((), self._known):
            return replace(record, computed_by=())
        if len({*self._known, *found}) > 1:
            self._log.warning("learners.differ", round=record.round, now=list(found), before=list(self._known))
        self._known = found
        return record


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
        computed_by=update.computed_by,
        lanes=pending.lanes,
        broken_episodes=pending.broken_episodes,
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
