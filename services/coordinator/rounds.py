"""The round loop of one job: rollout, update, decide, record; again until a stop rule is met."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from marless.algos.base import Group
from marless.errors import MarlessError
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
            plan = await self._open()
            while (reason := self._stop_reason(plan)) is None and not self._cancelled:
                plan = await self._round(plan)
            if self._cancelled:
                await self._end("CANCELLED", "cancelled by its user")
            else:
                await self._end("SUCCEEDED", reason or "")
        except asyncio.CancelledError:
            await self._end("CANCELLED", "the coordinator stopped")
            raise
        except MarlessError as error:
            _log.error("job.failed", job=self._id, error=str(error))
            await self._end("FAILED", str(error))
        except Exception as error:  # noqa: BLE001  # a defect must end the job FAILED, with its reason, not hang it
            _log.error("job.failed", job=self._id, exc_info=error)
            await self._end("FAILED", f"internal error: {type(error).__name__}: {error}")

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
        evaluation = await self._evaluate(after)
        phases = PhaseSeconds(
            rollout=rolled_s - started_s, update=updated_s - rolled_s, evaluation=time.time() - updated_s
        )
        record = self._record(after, rollout, update, evaluation, started_s, phases)
        await asyncio.to_thread(self._folder.append, record)
        self._history.append(record)
        self._changed(record)
        await self._checkpoint(after)
        return self._decide(after)

    async def _evaluate(self, after: _Plan) -> Rollout | None:
        """Play greedily every so many rounds, and after what will be the last one."""
        every = self._job.spec.evaluation.every
        if not (every and after.round % every == 0) and self._stop_reason(after) is None and not self._cancelled:
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

    def _decide(self, after: _Plan) -> _Plan:
        scaling, sharing = self._job.scaling.decide(self._history), self._job.sharing.decide(self._history)
        return _Plan(
            round=after.round,
            env_steps=after.env_steps,
            groups=sharing.groups,
            actors=scaling.actors,
            versions=after.versions,
            decisions={"scaling": scaling.reason, "sharing": sharing.reason},
        )

    def _stop_reason(self, plan: _Plan) -> str | None:
        stop = self._job.spec.stop
        wall_s = time.time() - self._first_round_s if self._first_round_s else 0.0
        if stop.rounds is not None and plan.round >= stop.rounds:
            return f"{plan.round} rounds done"
        if stop.env_steps is not None and plan.env_steps >= stop.env_steps:
            return f"{plan.env_steps} env steps sampled"
        if stop.greedy_return is not None and self._greedy and self._greedy.mean >= stop.greedy_return:
            return f"greedy return per agent {self._greedy.mean:.3f} reached {stop.greedy_return:g}"
        if stop.wall_s is not None and wall_s >= stop.wall_s:
            return f"{wall_s:.0f} s of training passed"
        return None

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
            if self._history:
                last = self._history[-1]
                plan = _Plan(last.round + 1, last.env_steps, (), 0, last.versions, {})
                await self._checkpoint(plan, final=True)
            await self._pools.close_job(self._id)
        except MarlessError as error:
            _log.warning("job.close_failed", job=self._id, error=str(error))
            if state == "SUCCEEDED":
                state, reason = "FAILED", f"trained, but its last checkpoint could not be saved: {error}"
        summary = self._summary(state, reason)
        self._set(state=state, reason=reason, summary_json=summary.to_json())
        _log.info("job.ended", job=self._id, state=state, reason=reason)

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

    def _set(self, **changes: object) -> None:
        self.status = JobStatus(**{**vars(self.status), **changes})
        self._folder.write_status(self.status)
        self._changed(None)
