"""The round loop of one job: rollout, update, decide, record; again until a stop rule is met, whatever happens."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import structlog

from marless.algos.base import Group
from marless.checkpoint import Progress
from marless.errors import (
    CancelledJobError,
    FencedError,
    MarlessError,
    StaleError,
    UnavailableError,
)
from marless.job import Job
from marless.record import Decision, GroupRecord, PhaseSeconds, RoundRecord, Summary
from marless.rpc.concurrency import to_the_end
from marless.rpc.v1.learner_pool_pb2 import Measure
from marless.scaling.base import ScalingDecision
from marless.sharing.base import SharingDecision
from marless.spec import JobSpec
from services.coordinator import stopping
from services.coordinator.journal import Journal
from services.coordinator.logs import JobLog
from services.coordinator.patience import PASSING, Patience
from services.coordinator.pools import Pools, Rollout, Update, Versions
from services.coordinator.recovery import Recovery
from services.coordinator.run_folder import JobStatus, Pending, RunFolder

PATIENCE_S = 120.0
MAX_FENCED = 3
DETAIL_FRAMES = 8
_CANCELLED = "cancelled by its user"
_log = structlog.get_logger("coordinator")


@dataclass(frozen=True)
class _Plan:
    """What the next round starts from."""

    round: int
    env_steps: int
    groups: tuple[Group, ...]
    actors: int
    versions: Versions
    decisions: tuple[Decision, ...]
    ending: str
    """Why there is no next round; "" if there is."""


class JobRun:
    """One job from where its folder says it is to its end. Whoever holds it reads `status` and is told of changes.

    Several may be made of one folder, one after another; the folder must be owned, and is released when `run` ends.
    """

    def __init__(
        self,
        *,
        job_id: str,
        job: Job,
        folder: RunFolder,
        pools: Pools,
        status: JobStatus,
        log: JobLog,
        changed: Callable[[RoundRecord | None], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._id = job_id
        self._job = job
        self._folder = folder
        self._pools = pools
        self._log = log
        self._changed = changed
        self._journal = Journal(folder)
        self._recovery = Recovery(job_id=job_id, job=job, folder=folder, pools=pools, journal=self._journal, log=log)
        self._cancelled = asyncio.Event()
        self._patience = Patience(patience_s, self._cancelled)
        self._fenced = 0
        self._first_round_s: float | None = None
        """When the first round of this run started; earlier ones took `_before_s`."""
        self._before_s = 0.0
        self._pending: Pending | None = None
        self.status = status
        self.detail = ""
        """The end of a traceback, if the job ended by a defect."""

    @property
    def in_trouble(self) -> bool:
        """True while it waits for a service, or tries a round again."""
        return self._patience.waiting

    def cancel(self) -> None:
        """Stop once the present round is recorded; that has been written down when this returns."""
        if not self.status.ended and not self._cancelled.is_set():
            self._cancelled.set()
            self._set(cancelling=True)

    async def run(self) -> None:
        """Run the job to its end; never raises for a failure of the job itself, which ends it FAILED.

        A run that is cancelled, or whose job another coordinator takes over, ends without a word in the folder, so
        that the next one goes on from there.
        """
        try:
            if self._folder.ownership:
                self._folder.ownership.keep_beating()
            await self._end(*await self._live())
        except FencedError as error:
            _log.warning("job.taken_over", job=self._id, error=str(error))
        finally:
            self._folder.release()

    async def _live(self) -> tuple[str, str]:
        """All rounds; returns the job's last state, and why. Raises FencedError if the job is not ours any more."""
        try:
            await self._begin()
            ending = await self._train()
        except CancelledJobError:
            return "CANCELLED", _CANCELLED
        except FencedError:
            self._folder.check_owned()
            return "FAILED", f"another coordinator publishes under the name {self._id!r} in the same store"
        except MarlessError as error:
            self.detail = error.detail
            return "FAILED", str(error)
        except Exception as error:  # noqa: BLE001  # a defect must end the job FAILED, with its reason, not hang it
            _log.error("job.failed", job=self._id, exc_info=error)
            self.detail = "".join(traceback.format_exception(error)[-DETAIL_FRAMES:])
            return "FAILED", f"internal error: {type(error).__name__}: {error}"
        return ("SUCCEEDED", ending) if ending else ("CANCELLED", _CANCELLED)

    async def _begin(self) -> None:
        """Take in what the folder holds."""
        await to_the_end(self._folder.take_over)
        await asyncio.to_thread(self._journal.read)
        self._before_s = self._journal.rounds_s
        self._pending = await asyncio.to_thread(self._folder.read_pending, self._journal.rounds)
        if self.status.cancelling:
            self._cancelled.set()
        if self.status.state == "RUNNING":
            self._set(resumes=self.status.resumes + 1, reason=f"goes on after {self._journal.rounds} rounds")
            self._log.info("job.continued", rounds=self._journal.rounds, rolled_out=self._pending is not None)

    async def _train(self) -> str:
        """Rounds until one is the last; returns why there is no further one, "" if the job was cancelled."""
        plan: _Plan | None = None
        while True:
            try:
                plan = plan or await self._stand()
                await self._checkpoint(plan)
                if plan.ending or self._cancelled.is_set():
                    return plan.ending
                plan = await self._round(plan)
                self._settle()
            except PASSING as trouble:
                plan = None
                await self._bear(trouble)

    async def _bear(self, trouble: MarlessError) -> None:
        """Wait for what may pass; raises what does not."""
        self._folder.check_owned()
        if isinstance(trouble, FencedError):
            self._recovery.epoch, self._fenced = 0, self._fenced + 1
            if self._fenced > MAX_FENCED:
                raise trouble
        self._show(f"waits for the {trouble}" if _names_a_service(trouble) else f"tries again: {trouble}")
        await self._patience.bear(trouble)

    def _settle(self) -> None:
        """A round is done: whatever was waited for is there."""
        if self._patience.waiting:
            self._show("training")
        self._patience.over()

    async def _stand(self) -> _Plan:
        """Open the job where it stands; chance plays meanwhile, if it has not: learners take a while to start."""
        baseline = None if self.status.random else asyncio.create_task(self._pools.random_baseline(self._id, self._job))
        try:
            versions = await self._recovery.stand(rolled_out=self._pending is not None)
            random = (await baseline).returns if baseline else self.status.random
        finally:
            if baseline:
                baseline.cancel()
                await asyncio.gather(baseline, return_exceptions=True)
        if self.status.state != "RUNNING" or baseline:
            self._set(state="RUNNING", reason="training", random=random)
        elif not self._patience.waiting:
            self._show("training")
        return self._plan(versions, stopping.ending(self._job.spec.stop, self._journal))

    def _plan(self, versions: Versions, ending: str) -> _Plan:
        history = self._journal.history
        sharing = self._job.sharing.decide(history)
        scaling = self._job.scaling.decide(history, sharing.groups)
        return _Plan(
            round=self._journal.rounds,
            env_steps=self._journal.env_steps,
            groups=sharing.groups,
            actors=scaling.actors,
            versions=versions,
            decisions=_decisions(self._job.spec, scaling, sharing),
            ending=ending,
        )

    async def _round(self, plan: _Plan) -> _Plan:
        self._first_round_s = self._first_round_s or time.time()
        if self._pending is None or self._pending.round != plan.round:
            self._pending = await self._roll_out(plan)
        pending, rolled_s = self._pending, time.time()
        update = await self._update(plan, pending)
        updated_s = time.time()
        round_, env_steps = plan.round + 1, plan.env_steps + pending.env_steps
        versions = {**plan.versions, **update.versions}
        # Asked once, so that the last round is always an evaluated one.
        ending = stopping.limit_reached(
            self._job.spec.stop,
            rounds=round_,
            env_steps=env_steps,
            wall_s=self._before_s + time.time() - self._first_round_s,
        )
        last = bool(ending) or self._cancelled.is_set()
        evaluation = await self._evaluate(round_, plan.groups, versions, last=last)
        phases = PhaseSeconds(
            rollout=pending.rollout_s, update=updated_s - rolled_s, evaluation=time.time() - updated_s
        )
        record = self._record(plan, pending, update, evaluation, phases)
        await to_the_end(self._journal.append, record)
        self._pending = None
        self._changed(record)
        return self._plan(versions, ending or stopping.return_reached(self._job.spec.stop, self._journal.greedy))

    async def _roll_out(self, plan: _Plan) -> Pending:
        """Run the round's actors, and note what came of them before anything is made of it."""
        started_s = time.time()
        rollout = await self._pools.train(
            *(self._id, self._job, plan.round, plan.actors, plan.groups, plan.versions), epoch=self._recovery.epoch
        )
        pending = Pending(
            round=plan.round,
            started_s=started_s,
            rollout_s=time.time() - started_s,
            env_steps=rollout.env_steps,
            returns=rollout.returns,
            invocations=rollout.invocations,
        )
        self._folder.write_pending(pending)
        return pending

    async def _update(self, plan: _Plan, pending: Pending) -> Update:
        """Train, and have the rollout's outcome on the disk when that is done."""
        syncing = asyncio.create_task(to_the_end(self._folder.sync_pending))
        try:
            return await self._pools.update(
                self._id,
                round_=plan.round,
                epoch=self._recovery.epoch,
                env_steps=plan.env_steps,
                actors=plan.actors,
                groups=plan.groups,
                versions=plan.versions,
                measure=self._measure(pending),
            )
        except StaleError:
            self._pending = None  # the trajectories went with the learner pool that held them
            raise
        finally:
            await syncing

    def _measure(self, pending: Pending) -> Measure:
        similarity = self._job.sharing.asks(self._journal.history, pending.returns)
        return Measure(curvature=self._job.curvature, noise=self._job.noise, similarity=similarity)

    async def _evaluate(
        self, round_: int, groups: tuple[Group, ...], versions: Versions, *, last: bool
    ) -> Rollout | None:
        """Play greedily every so many rounds, and after the last one."""
        every = self._job.spec.evaluation.every
        if not last and not (every and round_ % every == 0):
            return None
        own = [Group(group.policy, group.agents) for group in groups]  # what a group started from is behind it now
        return await self._pools.evaluate(self._id, self._job, round_, own, versions, epoch=self._recovery.epoch)

    def _record(
        self, plan: _Plan, pending: Pending, update: Update, evaluation: Rollout | None, phases: PhaseSeconds
    ) -> RoundRecord:
        versions = {**plan.versions, **update.versions}
        groups = (
            GroupRecord(policy=g.policy, agents=g.agents, version=versions[g.policy], source=g.source)
            for g in plan.groups
        )
        return RoundRecord(
            job=self._id,
            round=plan.round,
            env_steps=plan.env_steps + pending.env_steps,
            actors=plan.actors,
            groups=tuple(groups),
            versions=versions,
            started_s=pending.started_s,
            ended_s=time.time(),
            phases=phases,
            returns=pending.returns,
            evaluation=evaluation.returns if evaluation else None,
            metrics=update.metrics,
            invocations=pending.invocations + update.invocations + (evaluation.invocations if evaluation else ()),
            decisions=plan.decisions,
            distances=update.distances,
        )

    async def _checkpoint(self, plan: _Plan, *, final: bool = False) -> None:
        """Save what the newest round came to, if it is time: every so many rounds, and at the end."""
        spec = self._job.spec.checkpoint
        final = final or bool(plan.ending) or self._cancelled.is_set()
        if not plan.round or not (final or (spec.every and plan.round % spec.every == 0)):
            return
        progress = Progress(
            round=plan.round,
            env_steps=plan.env_steps,
            seed=self._job.spec.seed,
            actors=plan.actors,
            groups={group.policy: group.agents for group in plan.groups},
        )
        await self._recovery.snapshots.save(progress, plan.versions, spec.keep)

    async def _end(self, state: str, reason: str) -> None:
        if self._fenced > MAX_FENCED:
            problem = ""  # what the store has under this name is another's
        else:
            problem = await self._put_away()
        if problem:
            state, reason = ("FAILED", problem) if state == "SUCCEEDED" else (state, reason)
        summary = self._summary(state, reason)
        self._set(state=state, reason=reason, cancelling=False, ended_s=time.time(), summary_json=summary.to_json())

    async def _put_away(self) -> str:
        """Save the last versions, and have the other services forget the job; returns what went wrong with the saving.

        Versions that could not be saved stay in the store, for the job to be resumed from.
        """
        try:
            if last := self._journal.last:
                await self._checkpoint(self._plan(last.versions, ""), final=True)
            await to_the_end(self._folder.drop_pending)
        except FencedError:
            raise
        except MarlessError as error:
            self._log.error("job.checkpoint_failed", error=str(error))
            return f"trained, but its last checkpoint could not be saved: {error}"
        try:
            await self._recovery.end()
        except FencedError:
            raise
        except MarlessError as error:
            self._log.warning("job.not_forgotten", error=str(error))
        return ""

    def _summary(self, state: str, reason: str) -> Summary:
        last = self._journal.last
        training_s = self._before_s + (last.ended_s - self._first_round_s if last and self._first_round_s else 0.0)
        return Summary(
            job=self._id,
            state=state,
            reason=reason,
            rounds=self._journal.rounds,
            env_steps=self._journal.env_steps,
            greedy=self._journal.greedy,
            random=self.status.random,
            wall_s=round(time.time() - self.status.accepted_s, 3),
            env_steps_per_s=round(last.env_steps / training_s, 1) if last and training_s > 0 else 0.0,
            run_dir=str(self._folder.path),
        )

    def _show(self, reason: str) -> None:
        """What the job does now, for whoever looks; not worth a write."""
        self.status = replace(self.status, reason=reason)
        self._changed(None)

    def _set(self, **changes: Any) -> None:  # Any: fields of several types
        """Note a new status on the disk, and tell whoever watches even if the disk does not let us."""
        self.status = replace(self.status, **changes)
        try:
            self._folder.write_status(self.status)
        except UnavailableError as error:
            self._log.error("job.status_not_saved", error=str(error))
        self._changed(None)


def _decisions(spec: JobSpec, scaling: ScalingDecision, sharing: SharingDecision) -> tuple[Decision, ...]:
    groups = " ".join("+".join(group.agents) for group in sharing.groups)
    return (
        Decision(
            kind="scaling",
            rule=spec.scaling.name,
            outcome=f"{scaling.actors} actors",
            reason=scaling.reason,
            inputs=scaling.inputs,
        ),
        Decision(kind="sharing", rule=spec.sharing.name, outcome=groups, reason=sharing.reason, inputs=sharing.inputs),
    )


def _names_a_service(trouble: MarlessError) -> bool:
    """True for the errors of `Peer`, which start with the service that did not answer."""
    return str(trouble).partition(":")[0] in ("actor_pool", "learner_pool", "param_store")
