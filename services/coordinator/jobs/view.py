"""A job as clients see it: its status, its progress and its results.

Counts what recorded rounds have sampled and run, for metrics.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marless.core.errors import CorruptError, MarlessError
from marless.jobs.record import RoundRecord, Summary
from marless.services.coordinator.state.journal import Costs, Journal
from marless.services.coordinator.state.run_folder import RunFolder
from marless.services.coordinator.state.status import JobStatus
from marless.storage.round_file import JobProgress, lines_backwards, progress_of, spent_s


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A snapshot of a job for clients."""

    status: JobStatus
    run_dir: Path
    rounds: int
    env_steps: int
    greedy_return: float | None
    random_return: float | None
    win_rate: float | None
    """Fraction of the newest evaluation's episodes that were won; None if the environment has no wins."""
    random_win_rate: float | None


def view_of(status: JobStatus, run_dir: Path, progress: JobProgress) -> JobView:
    """The view of a job that has not ended."""
    return JobView(
        status=status,
        run_dir=run_dir,
        rounds=progress.rounds,
        env_steps=progress.env_steps,
        greedy_return=progress.greedy.mean if progress.greedy else None,
        random_return=status.random.mean if status.random else None,
        win_rate=progress.greedy.win_rate if progress.greedy else None,
        random_win_rate=status.random.win_rate if status.random else None,
    )


def read(folder: RunFolder) -> JobView:
    """Read the view of a job from its folder; raises NotFoundError, CorruptError."""
    status = folder.read_status()
    if not status.summary_json:
        return view_of(status, folder.path, progress_of(folder.rounds_path))
    try:
        summary: dict[str, Any] = json.loads(status.summary_json)  # Any: JSON
        return JobView(
            status=status,
            run_dir=folder.path,
            rounds=summary["rounds"],
            env_steps=summary["env_steps"],
            greedy_return=summary["return"],
            random_return=summary["random_return"],
            win_rate=summary.get("win_rate"),  # older summaries have no wins
            random_win_rate=summary.get("random_win_rate"),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError(f"{folder.path}: the summary in job.json is damaged") from None


def fresh(folder: RunFolder) -> JobView:
    """Read a job that may run elsewhere; raises also what `RunFolder.refresh` raises."""
    folder.refresh()
    return read(folder)


def ended(status: JobStatus, folder: RunFolder, state: str, reason: str) -> JobStatus:
    """The final status of a job that ends while it is not running; records that cannot be read count as none."""
    progress, trained_s, now_s = JobProgress(), 0.0, time.time()
    with suppress(CorruptError):
        progress = progress_of(folder.rounds_path)
        trained_s = sum(spent_s(folder.rounds_path, line) for line in lines_backwards(folder.rounds_path))
    cost_usd, accounting = _cost(folder)
    summary = Summary(
        job=status.job,
        state=state,
        reason=reason,
        rounds=progress.rounds,
        env_steps=progress.env_steps,
        greedy=progress.greedy,
        random=status.random,
        wall_s=round(trained_s, 3),
        elapsed_s=round(max(now_s - status.accepted_s, 0.0), 3),
        env_steps_per_s=round(progress.env_steps / trained_s, 1) if trained_s > 0 else 0.0,
        run_dir=str(folder.path),
        cost_usd=cost_usd,
        accounting=accounting,
        marless_version=status.marless_version,
    )
    return replace(status, state=state, reason=reason, ended_s=now_s, summary_json=summary.to_json(), cancelling=False)


def _cost(folder: RunFolder) -> tuple[float | None, str]:
    """The cost of the recorded rounds and its accounting; (None, "") if spec or records cannot be read."""
    try:
        spec, _ = folder.load()
        costs = Costs(spec, folder)
        Journal(folder, costs).read()
    except MarlessError:
        return None, ""
    return costs.total_usd(), costs.accounting


EXECUTED = ("actor", "evaluation", "learner")
"""Functions that are executions of workers; every other one runs inside a learner."""


class Tally:
    """Counts over the rounds that this process has recorded.

    Invocations are executions of workers: actors, evaluations, learners. Functions that run inside learners
    (post-processing, critics, mixers, policies, measurements) are counted separately, because their time is part of
    the learners' time.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.env_steps = 0
        self.invocations: Counter[str] = Counter()
        """By function, as are the seconds below."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Wall-clock seconds from start to end."""
        self.vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.inner: Counter[str] = Counter()
        """Functions that ran inside learners, by function, as are their vCPU seconds."""
        self.inner_vcpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.repeated = 0
        """Invocations that needed more than one attempt."""
        self.broken_episodes = 0

    def add(self, record: RoundRecord, *, after_env_steps: int) -> None:
        """Count a round of a job that had sampled `after_env_steps` env steps before it."""
        self.rounds += 1
        self.env_steps += max(0, record.env_steps - after_env_steps)
        self.broken_episodes += record.broken_episodes
        for each in record.invocations:
            if each.function in EXECUTED:
                self.invocations[each.function] += 1
                self.seconds[each.function] += max(each.end_s - each.start_s, 0.0)
                self.vcpu_seconds[each.function] += each.vcpu_s
                self.repeated += each.attempt > 1
            else:
                self.inner[each.function] += 1
                self.inner_vcpu_seconds[each.function] += each.vcpu_s
