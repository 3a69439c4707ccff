"""How far a job is, from its records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from marless.jobs.record import RoundRecord
from marless.learning.data.returns import EpisodeReturns
from marless.storage.round_file import lines_backwards, may_be_evaluated, parse

LOOK_BACK_ROUNDS = 512
"""An evaluation older than this many rounds is not searched for."""


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """The progress of a job."""

    rounds: int = 0
    """Recorded rounds."""
    env_steps: int = 0
    """Env steps sampled for training in the recorded rounds."""
    greedy: EpisodeReturns | None = None
    """Returns of the newest evaluation."""

    def after(self, record: RoundRecord) -> JobProgress:
        """The progress after one more round."""
        return JobProgress(
            rounds=record.round + 1, env_steps=record.env_steps, greedy=record.newest_evaluation or self.greedy
        )


def progress_of(rounds: Path) -> JobProgress:
    """Read a job's progress from the end of its rounds.jsonl; raises CorruptError."""
    newest: RoundRecord | None = None
    for looked, line in enumerate(lines_backwards(rounds)):
        if newest is None or may_be_evaluated(line):
            record = parse(rounds, line)
            newest = newest or record
            if record.evaluations:
                return replace(JobProgress().after(newest), greedy=record.newest_evaluation)
        if looked >= LOOK_BACK_ROUNDS:
            break
    return JobProgress().after(newest) if newest else JobProgress()
