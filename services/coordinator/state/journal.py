"""The recorded rounds of a job: all in rounds.jsonl, in memory the recent ones that decisions depend on; their cost.

The cost is computed from the records: at every round if the job has a budget, else at the latest at its end. A round is
written while the next rollout runs, which publishes nothing; it is durable before the next update begins, and watchers
are told only then. On a disk, everything is durable as soon as it is written, and nothing here waits.
"""

from __future__ import annotations

import asyncio
import copy
from collections import Counter, deque
from collections.abc import Callable, Mapping
from itertools import islice

from marless.core.errors import CorruptError, MarlessError
from marless.cost.billing.ledger import Ledger, RoundCost
from marless.cost.pricing import usd
from marless.jobs import prices
from marless.jobs.prices import Accounting, Prices
from marless.jobs.record import RoundRecord
from marless.jobs.spec import JobSpec
from marless.learning.data.returns import EpisodeReturns
from marless.rpc.concurrency import to_the_end
from marless.services.coordinator.state.run_folder import RunFolder
from marless.storage.round_file import lines_backwards, may_be_evaluated, parse, spent_s

HISTORY_ROUNDS = 512
"""Number of recent rounds that decisions see."""


class Journal:
    """Reads the recorded rounds once, then appends rounds and their costs. Its methods block on the disk."""

    def __init__(self, folder: RunFolder, costs: Costs, *, best: bool = False) -> None:
        self._folder = folder
        self.costs = costs
        self._judged = best
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
        # On the disk first: what decisions and watchers see of a round is never taken back by a crash.
        self._folder.append(record)
        self._add_record(record)

    def cut(self, rounds: int) -> None:
        """Drop all but the first `rounds` rounds, durably."""
        self._folder.cut(rounds)
        # All of it anew, because sums over rounds, such as costs, cannot be taken back.
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
    def best(self) -> int | None:
        """The number of rounds after which policies were evaluated best, if `checkpoint.best` asks; None if not yet."""
        return self._best[1] if self._best else None

    @property
    def env_steps(self) -> int:
        """Env steps sampled for training in all recorded rounds."""
        return self.last.env_steps if self.last else 0

    def _clear(self) -> None:
        # One more than decisions see: a rollout may have been decided before the newest round was recorded.
        self._history: deque[RoundRecord] = deque(maxlen=HISTORY_ROUNDS + 1)
        self.greedy: EpisodeReturns | None = None
        """Returns of the newest evaluation."""
        self._best: tuple[float, int] | None = None
        """The highest mean return of an evaluation, and after how many rounds; of equal ones the newest."""
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
            wanted = (self._judged or self.greedy is None) and may_be_evaluated(line)
            if wanted or len(self._history) <= HISTORY_ROUNDS:
                record = parse(path, line)
                self._judge(record)
                self.greedy = self.greedy or record.newest_evaluation
                if len(self._history) <= HISTORY_ROUNDS:
                    self._history.appendleft(record)
        # Line n is round n, as far as the rounds in memory and their number tell.
        seen = [record.round for record in self._history]
        if seen != list(range(lines - len(seen), lines)):
            raise CorruptError(
                f"{path}: its {lines} lines are not rounds 1 to {lines}; rounds are missing, or there twice: restore "
                "the file, in which line N is round N"
            )
        for record in self._history:
            self.costs.put(record)

    def _add_record(self, record: RoundRecord) -> None:
        self._history.append(record)
        self._judge(record)
        self.greedy = record.newest_evaluation or self.greedy
        self.costs.put(record)
        self.trained_s += record.spent_s

    def _judge(self, record: RoundRecord) -> None:
        found = [(each.returns.mean, each.rounds) for each in record.evaluations]
        self._best = max([*found, self._best] if self._best else found, default=None)


MOST_DUE = 8
"""Rounds that may wait in memory to be priced. With more, as after a restart, `total_usd` reads all from disk."""


def check_costs(spec: JobSpec) -> None:
    """Raise SpecError for a job with a price table or a budget that cannot be used."""
    if spec.stop.cost_usd is not None or spec.bill.prices is not None:
        Ledger(spec, prices.merged(spec.bill.prices))


class Costs:
    """The ledger of one job. Methods take milliseconds unless they say otherwise; they must not run concurrently."""

    def __init__(self, spec: JobSpec, folder: RunFolder) -> None:
        self._spec = spec
        self._folder = folder
        self.budget_usd = spec.stop.cost_usd
        """The budget; None if there is none."""
        self.accounting: Accounting = spec.bill.accounting
        """Which way of accounting counts as the job's cost."""
        self._prices: Prices | None = None
        self._ledger: Ledger | None = None
        self._due: deque[RoundRecord] = deque()
        self._behind = False
        self._last: RoundCost | None = None
        self.problem = ""
        """Why the cost is unknown; "" if it is known. Never set for a job with a budget, which fails instead."""

    def clear(self) -> None:
        """Forget all rounds."""
        self._ledger = self._last = None
        self._behind = False
        self._due.clear()

    def put(self, record: RoundRecord) -> None:
        """Add a recorded round; raises SpecError if there is a budget and the round cannot be priced."""
        if self.budget_usd is not None:
            self._last = self._opened().add(record)
        elif len(self._due) < MOST_DUE and not self._behind:
            self._due.append(record)
        else:
            self._behind = True
            self._due.clear()

    def catch_up(self) -> None:
        """Price the rounds that wait in memory; called while the job waits for something else."""
        try:
            while self._due and not self.problem:
                self._opened().add(self._due[0])
                self._due.popleft()
        except MarlessError as error:
            self.problem = str(error)

    def spent_usd(self, record: RoundRecord | None = None) -> float:
        """The cost so far of a job with a budget, with `record` as its next round if one is given."""
        ledger = self._opened()
        if record is not None:
            # The price table, which never changes, is shared with the copy.
            ledger = copy.deepcopy(ledger, {id(self._prices): self._prices})
            ledger.add(record)
        return ledger.total_usd(self.accounting)

    def last_usd(self) -> Mapping[str, float]:
        """The cost in USD of the newest round of a job with a budget, by function."""
        sums: Counter[str] = Counter()
        for charge in self._last.charges[self.accounting] if self._last else ():
            sums[charge.function] += charge.picos
        return {function: usd(picos) for function, picos in sums.items()}

    def total_usd(self) -> float | None:
        """The cost of all recorded rounds; None if it is unknown. May read all records, at some ms per round."""
        try:
            if self._behind:
                self.clear()
                for record in self._folder.records():
                    self._opened().add(record)
            self.catch_up()
            return None if self.problem else self._opened().total_usd(self.accounting)
        except MarlessError as error:
            self.problem = str(error)
            return None

    def _opened(self) -> Ledger:
        if self._ledger is None:
            self._prices = self._prices or prices.merged(self._spec.bill.prices)
            self._ledger = Ledger(self._spec, self._prices, (self.accounting,))
        return self._ledger


class Flusher:
    """Settles one job's folder in the background."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._under_way: asyncio.Task[None] | None = None
        self._then: list[Callable[[], None]] = []

    def begin(self, then: Callable[[], None] = lambda: None) -> None:
        """Begin to make durable what was written so far, and call `then` once it is."""
        if self._folder.settled:
            then()
            return
        self._then.append(then)
        self._under_way = asyncio.create_task(self._flush(self._under_way))

    async def done(self) -> None:
        """Wait until all that was begun is durable; raises what `RunFolder.flush` raises."""
        # Taken out before it is awaited: its error is raised once, and the next call tries again.
        under_way, self._under_way = self._under_way, None
        if under_way:
            await under_way
        if self._then:  # an earlier attempt has failed
            await self._flush(None)

    async def all(self) -> None:
        """Wait until all that was written is durable; raises as `done`."""
        await self.done()
        if not self._folder.settled:
            await self._flush(None)

    async def stop(self) -> None:
        """Wait for what is under way, whether or not it fails."""
        if self._under_way:
            await asyncio.wait([self._under_way])
            self._under_way.exception()

    async def _flush(self, before: asyncio.Task[None] | None) -> None:
        if before:
            await before
        then, self._then = self._then, []
        try:
            await to_the_end(self._folder.flush)
        # What is not durable yet is told by the next attempt, in the same order.
        except BaseException:
            self._then = then + self._then
            raise
        for call in then:
            call()
