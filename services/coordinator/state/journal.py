"""The recorded rounds of a job: all in rounds.jsonl, and in memory the recent ones that decisions depend on."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from marless.core.errors import CorruptError
from marless.jobs.record import RoundRecord
from marless.learning.data.returns import EpisodeReturns
from marless.storage.round_file import lines_backwards, may_be_evaluated, parse, spent_s
from services.coordinator.state.base import DurableJob
from services.coordinator.state.costs import Costs

HISTORY_ROUNDS = 512
"""Number of recent rounds that decisions see."""


class Journal:
    """Reads the recorded rounds once, then appends rounds and their costs. Its methods block on the disk."""

    def __init__(self, folder: DurableJob, costs: Costs) -> None:
        self._folder = folder
        self.costs = costs
        self._clear()

    def read(self) -> None:
        """Read the recorded rounds; raises CorruptError for a line that is not a record.

        Only the rounds that decisions see are parsed, unless the job has a budget, which needs every round's cost.
        """
        self._clear()
        if self.costs.budget_usd is not None:
            for record in self._folder.records():
                self._add_record(record)
        else:
            self._look_back()

    def append(self, record: RoundRecord) -> None:
        """Append a round durably."""
        self._folder.append(record)
        self._add_record(record)

    def cut(self, rounds: int) -> None:
        """Drop all but the first `rounds` rounds, durably."""
        self._folder.cut(rounds)
        self.read()

    @property
    def history(self) -> tuple[RoundRecord, ...]:
        """The newest rounds, HISTORY_ROUNDS at most, oldest first."""
        return tuple(islice(self._history, max(len(self._history) - HISTORY_ROUNDS, 0), None))

    @property
    def before_last(self) -> tuple[RoundRecord, ...]:
        """The `history` before the newest round was recorded."""
        return tuple(self._history)[:-1]

    @property
    def last(self) -> RoundRecord | None:
        """The newest round; None if there is none."""
        return self._history[-1] if self._history else None

    @property
    def rounds(self) -> int:
        """Number of recorded rounds."""
        return self.last.round + 1 if self.last else 0

    @property
    def versions(self) -> Mapping[str, int]:
        """Newest version of every policy and joint critic; {} if no round is recorded."""
        return self.last.versions if self.last else {}

    @property
    def env_steps(self) -> int:
        """Env steps sampled for training in all recorded rounds."""
        return self.last.env_steps if self.last else 0

    def _clear(self) -> None:
        # One more than decisions see: a rollout may have been decided before the newest round was recorded.
        self._history: deque[RoundRecord] = deque(maxlen=HISTORY_ROUNDS + 1)
        self.greedy: EpisodeReturns | None = None
        """Returns of the newest evaluation."""
        self.trained_s = 0.0
        """Training time in seconds: see `RoundRecord.spent_s`."""
        self.costs.clear()

    def _look_back(self) -> None:
        path, lines = self._folder.rounds_path, 0
        for line in lines_backwards(path):
            lines += 1
            self.trained_s += spent_s(path, line)
            # A job may go on after many thousand rounds. Of those that no decision sees, only the seconds are read, and
            # the newest evaluation.
            if len(self._history) <= HISTORY_ROUNDS or (self.greedy is None and may_be_evaluated(line)):
                record = parse(path, line)
                self.greedy = self.greedy or record.newest_evaluation
                if len(self._history) <= HISTORY_ROUNDS:
                    self._history.appendleft(record)
        self._check_order(path, lines)
        for record in self._history:
            self.costs.put(record)

    def _check_order(self, path: Path, lines: int) -> None:
        """Raise CorruptError unless line n is round n, as far as the rounds in memory and their number tell."""
        seen = [record.round for record in self._history]
        if seen != list(range(lines - len(seen), lines)):
            raise CorruptError(
                f"{path}: its {lines} lines are not rounds 1 to {lines}; rounds are missing, or there twice: restore "
                "the file, in which line N is round N"
            )

    def _add_record(self, record: RoundRecord) -> None:
        self._history.append(record)
        self.greedy = record.newest_evaluation or self.greedy
        self.costs.put(record)
        self.trained_s += record.spent_s
