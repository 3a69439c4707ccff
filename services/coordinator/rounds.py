"""The round loop of one job: rollout, update, decide, record; again until a stop rule is met."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from marless.algos.base import Group
from marless.errors import MarlessError, UnavailableError
from marless.job import Job
from marless.record import GroupRecord, PhaseSeconds, Returns, RoundRecord, Summary
from services.coordinator.pools import Pools, Rollout, Update, Versions
from services.coordinator.run_folder import Checkpoint, JobStatus, RunFolder

HISTORY_ROUNDS = 512
"""Rounds that decisions may look back on."""
_log = structlog.get_logger("coordinator")


@dataclass(frozen=True)
class _Plan:
    """What the next round starts from."""

    round: int
    env_steps: int
    groups: tuple[Group, ...]
    actors: int
    versions: Versions
    decisions: dict[str, str]
    ending: str = ""
    """Why there is no next round, if so."""


class JobRun:
    """One job from acceptance to its end. Whoever holds it reads `status` and is told of every change."""

    def __init__(
        self, *, job_id: str, job: Job, folder: RunFolder, pools: Pools, changed: Callable[[RoundRecord | None], None]
    ) -> None:
        self._id = job_id
        self._job = job
        self._folder = folder
        self._pools = pools
        self._changed = changed
        self._history: deque[RoundRecord] = deque(maxlen=HISTORY_ROUNDS)
        self._epoch = 0
        self._cancelled = False
        self._first_round_s: float | None = None
        self._greedy: Returns | None = None
        self.status = JobStatus(job=job_id, state="PENDING", reason="accepted", accepted_s=time.time())

    def cancel(self) -> None:
        """Stop once the present round is recorded."""
        self._cancelled = True

    async def run(self) -> None:
        """Run the job to its end; never raises for a failure of the job itself, which ends it FAILED."""
        try:
            state, reason = await self._train()
        except asyncio.CancelledError:
            await self._end("CANCELLED", "the coordinator stopped")
            raise
        await self._end(state, reason)

    async def _train(self) -> tuple[str, str]:
        """All rounds; returns the job's last state, and why."""
        try:
            plan = await self._open()
            while not plan.ending and not self._cancelled:
                plan = await self._round(plan)
        except MarlessError as error:
            _log.error("job.failed", job=self._id, error=str(error))
            return "FAILED", str(error)
        except Exception as error:  # noqa: BLE001  # a defect must end the job FAILED, with its reason, not hang it
            _log.error("job.failed", job=self._id, exc_info=error)
            return "FAILED", f"internal error: {type(error).__name__}: {error}"
        return ("SUCCEEDED", plan.ending) if plan.ending else ("CANCELLED", "cancelled by its user")

    async def _open(self) -> _Plan:
        """First versions and the random baseline, side by side: learners start while chance plays."""
        scaling, sharing = self._job.scaling.decide(()), self._job.sharing.decide(())
        self._epoch = await self._pools.store.acquire_epoch(self._id, f"{self._id}/open")
        baseline = asyncio.create_task(self._pools.random_baseline(self._id, self._job))
        try:
            versions = await self._pools.open_job(self._id, self._job, self._epoch, sharing.groups)
            random = await baseline
        finally:
            baseline.cancel()
            await asyncio.gather(baseline, return_exceptions=True)
        self._set(state="RUNNING", reason="training", random=random.returns)
        decisions = {"scaling": scaling.reason, "sharing": sharing.reason}
        return _Plan(0, 0, sharing.groups, scaling.actors, versions, decisions)

    async def _round(self, plan: _Plan) -> _Plan:
        started_s = time.time()
        self._first_round_s = self._first_round_s or started_s
        rollout = await self._pools.train(self._id, self._job, plan.round, plan.actors, plan.groups, plan.versions)
        rolled_s = time.time()
        update = await self._pools.update(
            self._id,
            round_=plan.round,
            epoch=self._epoch,
            env_steps=plan.env_steps,
            actors=plan.actors,
            groups=plan.groups,
            versions=plan.versions,
        )
        updated_s = time.time()
        after = _Plan(
            round=plan.round + 1,
            env_steps=plan.env_steps + rollout.env_steps,
            groups=plan.groups,
            actors=plan.actors,
            versions={**plan.versions, **update.versions},
            decisions=plan.decisions,
        )
        ending = self._stop_reason(after)  # asked once, so that the last round is always an evaluated one
        evaluation = await self._evaluate(after, last=bool(ending) or self._cancelled)
        phases = PhaseSeconds(
            rollout=rolled_s - started_s, update=updated_s - rolled_s, evaluation=time.time() - updated_s
        )
        record = self._record(after, rollout, update, evaluation, started_s, phases)
        await asyncio.to_thread(self._folder.append, record)
        self._history.append(record)
        self._changed(record)
        await self._checkpoint(after)
        return self._decide(after, ending or self._return_reached())

    async def _evaluate(self, after: _Plan, *, last: bool) -> Rollout | None:
        """Play greedily every so many rounds, and after the last one."""
        every = self._job.spec.evaluation.every
        if not last and not (every and after.round % every == 0):
            return None
        evaluation = await self._pools.evaluate(self._id, self._job, after.round, after.groups, after.versions)
        self._greedy = evaluation.returns
        return evaluation

    async def _checkpoint(self, after: _Plan, *, final: bool = False) -> None:
        spec = self._job.spec.checkpoint
        if not final and not (spec.every and after.round % spec.every == 0):
            return
        stored = await self._pools.store.get(self._id, dict(after.versions), ("acting", "learning"))
        saved = {name: Checkpoint(each.version, each.blobs) for name, each in stored.items()}
        await asyncio.to_thread(self._folder.save_checkpoint, after.round, saved, spec.keep)

    def _decide(self, after: _Plan, ending: str) -> _Plan:
        scaling, sharing = self._job.scaling.decide(self._history), self._job.sharing.decide(self._history)
        return _Plan(
            round=after.round,
            env_steps=after.env_steps,
            groups=sharing.groups,
            actors=scaling.actors,
            versions=after.versions,
            decisions={"scaling": scaling.reason, "sharing": sharing.reason},
            ending=ending,
        )

    def _stop_reason(self, plan: _Plan) -> str:
        stop = self._job.spec.stop
        wall_s = time.time() - self._first_round_s if self._first_round_s else 0.0
        if stop.rounds is not None and plan.round >= stop.rounds:
            return f"{plan.round} rounds done"
        if stop.env_steps is not None and plan.env_steps >= stop.env_steps:
            return f"{plan.env_steps} env steps sampled"
        if stop.wall_s is not None and wall_s >= stop.wall_s:
            return f"{wall_s:.0f} s of training passed"
        return ""

    def _return_reached(self) -> str:
        wanted = self._job.spec.stop.greedy_return
        if wanted is None or self._greedy is None or self._greedy.mean < wanted:
            return ""
        return f"greedy return per agent {self._greedy.mean:.3f} reached {wanted:g}"

    def _record(
        self,
        after: _Plan,
        rollout: Rollout,
        update: Update,
        evaluation: Rollout | None,
        started_s: float,
        phases: PhaseSeconds,
    ) -> RoundRecord:
        groups = (GroupRecord(policy=g.policy, agents=g.agents, version=after.versions[g.policy]) for g in after.groups)
        return RoundRecord(
            job=self._id,
            round=after.round - 1,
            env_steps=after.env_steps,
            actors=after.actors,
            groups=tuple(groups),
            versions=after.versions,
            started_s=started_s,
            ended_s=time.time(),
            phases=phases,
            returns=rollout.returns,
            evaluation=evaluation.returns if evaluation else None,
            metrics=update.metrics,
            invocations=rollout.invocations + update.invocations + (evaluation.invocations if evaluation else ()),
            decisions=after.decisions,
        )

    async def _end(self, state: str, reason: str) -> None:
        try:
            if problem := await self._put_away():
                state, reason = ("FAILED", problem) if state == "SUCCEEDED" else (state, reason)
        finally:
            self._set(state=state, reason=reason, summary_json=self._summary(state, reason).to_json())
            _log.info("job.ended", job=self._id, state=state, reason=reason)

    async def _put_away(self) -> str:
        """Save the last versions and let the pools forget the job; returns what went wrong with the saving."""
        problem = ""
        try:
            if self._history:
                last = self._history[-1]
                await self._checkpoint(_Plan(last.round + 1, last.env_steps, (), 0, last.versions, {}), final=True)
        except MarlessError as error:
            problem = f"trained, but its last checkpoint could not be saved: {error}"
            _log.error("job.checkpoint_failed", job=self._id, error=str(error))
        try:
            await self._pools.close_job(self._id)
        except MarlessError as error:
            _log.warning("job.close_failed", job=self._id, error=str(error))
        return problem

    def _summary(self, state: str, reason: str) -> Summary:
        last = self._history[-1] if self._history else None
        training_s = last.ended_s - self._first_round_s if last and self._first_round_s else 0.0
        return Summary(
            job=self._id,
            state=state,
            reason=reason,
            rounds=last.round + 1 if last else 0,
            env_steps=last.env_steps if last else 0,
            greedy=self._greedy,
            random=self.status.random,
            wall_s=round(time.time() - self.status.accepted_s, 3),
            env_steps_per_s=round(last.env_steps / training_s, 1) if last and training_s else 0.0,
            run_dir=str(self._folder.path),
        )

    def _set(self, **changes: Any) -> None:  # Any: fields of several types
        """Note a new status on the disk, and tell whoever watches even if the disk does not let us."""
        self.status = replace(self.status, **changes)
        try:
            self._folder.write_status(self.status)
        except UnavailableError as error:
            _log.error("job.status_not_saved", job=self._id, error=str(error))
        self._changed(None)
