"""Feeds a job's rounds to its sinks, in one thread per sink, without blocking the job.

rounds.jsonl is the queue between a job and its sinks. A thread is notified of the newest round and passes on, in order,
all rounds that its sink has not had yet; `sinks/<name>.json` holds their number. So a slow sink lags behind without
using memory, a sink that failed catches up, and rounds that were recorded while no thread ran are not missed.

Sinks get the evaluation of a round's policies with that round, even if it ran beside the update of the next one
(`services/coordinator/execution/evaluations.py`). So a round whose policies are being evaluated is passed on one round
later.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path

from marless.core import regular_files
from marless.core.errors import CorruptError, MarlessError
from marless.core.limits import MAX_SMALL_BYTES
from marless.jobs.record import RoundRecord
from marless.jobs.sinks.base import Sink, SinkConfig, SinkJob, make_sink, scalars, settings
from marless.jobs.spec import JobSpec
from marless.learning.data.returns import EpisodeReturns
from marless.rpc.concurrency import delays
from marless.services.coordinator.execution.evaluations import outstanding
from marless.services.coordinator.state.job_log import JobLog
from marless.services.coordinator.state.status import ENDED
from marless.storage.round_file import read, read_backwards

STOP_S = 5.0
"""Seconds that the end of a job waits for its sinks."""
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 60.0
ATTEMPTS_AFTER_END = 5
"""Attempts that a failing sink gets after the end of its job; while the job runs, they are not limited."""
_LONGEST_ERROR = 500
Report = Callable[..., None]
ROUNDS = "rounds.jsonl"


class SinkFeed:
    """The sinks of one job, for as long as this process runs it. Its methods never raise, and only `stop` waits."""

    def __init__(
        self,
        *,
        job_id: str,
        spec: JobSpec,
        folder: Path,
        log: JobLog,
        make: Callable[[SinkConfig], Sink] = make_sink,
    ) -> None:
        self._notifier = _Notifier(spec.evaluation.every)
        # Called in threads: a large spec is slow to write.
        job = cache(
            lambda: SinkJob(
                id=job_id,
                folder=folder,
                spec_yaml=spec.to_yaml(),
                settings=settings(json.loads(spec.to_json())),
                last=None,
            )
        )
        loop = asyncio.get_running_loop()
        self._couriers = {
            config.name: _Courier(
                config.name,
                partial(make, config),
                job,
                folder,
                self._notifier,
                partial(_report, loop, log, config.name),
            )
            for config in spec.sinks
        }
        self._ends: dict[str, asyncio.Future[None]] = {}
        self._folder = folder
        self._loop = loop
        self._log = log

    def put(self, record: RoundRecord, random: EpisodeReturns | None) -> None:
        """Pass on a newly recorded round; a repeated one replaces the round of its number and all later ones."""
        newest = self._notifier.newest
        if newest is None or record.round <= newest.round:
            for courier in self._couriers.values():
                courier.take_back(record.round)
        self._notifier.tell(newest=record, random=random)
        if self._ends:
            return
        for name, courier in self._couriers.items():
            self._ends[name] = self._loop.create_future()
            # A daemon: a sink that hangs must not keep the process from ending.
            threading.Thread(target=self._run, args=(name, courier), name=f"sink-{name}", daemon=True).start()

    async def stop(self, state: str, random: EpisodeReturns | None) -> None:
        """Let the sinks catch up, and close them; waits STOP_S at most, after which slow sinks continue unobserved."""
        if state in ENDED and not self._ends and (last := await asyncio.to_thread(self._last)):
            self.put(last, random)  # the job ended without a further round
        self._notifier.tell(end=state)
        if self._ends:
            await asyncio.wait(self._ends.values(), timeout=STOP_S)
        for name, end in self._ends.items():
            if not end.done():
                self._log.warning("sink.behind", sink=name, rounds=self._couriers[name].behind)

    def _last(self) -> RoundRecord | None:
        with suppress(CorruptError):
            return next(read_backwards(self._folder / ROUNDS), None)
        return None

    def _run(self, name: str, courier: _Courier) -> None:
        courier.run()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._ends[name].set_result, None)


@dataclass
class _Notifier:
    """State shared with the sink threads of a job, guarded by a condition."""

    every: int
    """The job's `evaluation.every`."""
    newest: RoundRecord | None = None
    random: EpisodeReturns | None = None
    end: str = ""
    """The job's state once no more rounds follow, until then ""."""
    changed: threading.Condition = field(default_factory=threading.Condition)  # reentrant

    def tell(self, **notifier: object) -> None:
        with self.changed:
            for name, value in notifier.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def other_than(self, last: RoundRecord | None) -> RoundRecord | None:
        """Wait until a round other than `last` can be passed on; returns the newest one, which itself may be `held`.

        None if the job ends, or stops running here, without one.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.end or self._fresh(last))
            return self.newest if self._fresh(last) else None

    def held(self, record: RoundRecord) -> bool:
        """True while the evaluation of this round's policies is to come: not for the last round of an ended job."""
        with self.changed:
            final = self.end in ENDED and _same(record, self.newest)
            return outstanding(self.every, record) and not final

    def _fresh(self, last: RoundRecord | None) -> bool:
        newest = self.newest
        if newest is None or _same(newest, last):
            return False
        follows = newest.round == (last.round + 1 if last else 0)
        return not (follows and self.held(newest))


class _Courier:
    """Feeds one sink, in a thread."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Sink],
        job: Callable[[], SinkJob],
        folder: Path,
        notifier: _Notifier,
        report: Report,
    ) -> None:
        self._make = make
        self._job = job
        self._folder = folder
        self._notifier = notifier
        self._report = report
        self._taken = _Taken(folder / "sinks" / f"{name}.json")
        self._back_to: int | None = None
        self._failures = 0
        self._delays = delays(first_s=FIRST_DELAY_S, longest_s=LONGEST_DELAY_S)

    @property
    def behind(self) -> int:
        """Number of recorded rounds that the sink has not had."""
        newest = self._notifier.newest
        return newest.round + 1 - self._taken.rounds if newest else 0

    def take_back(self, round_: int) -> None:
        """Withdraw a round and all later ones: they have been cut from the records and are run again."""
        with self._notifier.changed:
            self._back_to = round_ if self._back_to is None else min(self._back_to, round_)

    def run(self) -> None:
        """Feed the sink until the job's end; reopen it after a failure, and when rounds were withdrawn."""
        left = ATTEMPTS_AFTER_END
        while left:
            try:
                self._withdraw_rounds()
                if self._serve():
                    return
            except Exception as error:  # noqa: BLE001  # a sink may raise anything, and the job must not notice
                self._failures += 1
                if self._failures == 1:
                    self._report("sink.failed", error=f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])
                left -= bool(self._notifier.end)
                self._pause()
        self._report("sink.given_up", rounds=self.behind)

    def _withdraw_rounds(self) -> None:
        """Reduce the number of rounds that the sink has had, if some were withdrawn."""
        back_to = self._back_to
        if back_to is not None:
            self._taken.rounds = min(self._taken.rounds, back_to)
        # An earlier round may have been withdrawn meanwhile: the next pass deals with it.
        with self._notifier.changed:
            if self._back_to == back_to:
                self._back_to = None

    def _serve(self) -> bool:
        """Open the sink, pass on rounds, and close it; True at the job's end, False when rounds were withdrawn."""
        last: RoundRecord | None = None
        if had := self._taken.rounds:
            last = next(iter(read(self._folder / ROUNDS, had - 1)), None)
            if last is None:
                raise CorruptError(f"{self._folder}: round {had} is no longer in rounds.jsonl")
        sink = self._make()
        try:
            sink.open(replace(self._job(), last=last))
            while (newest := self._notifier.other_than(last)) and self._back_to is None:
                last = self._hand_over(sink, last, newest)
        except Exception:
            with suppress(Exception):
                sink.close("RUNNING")
            raise
        sink.close("RUNNING" if newest else self._notifier.end)
        return newest is None

    def _hand_over(self, sink: Sink, last: RoundRecord | None, newest: RoundRecord) -> RoundRecord:
        """Write the rounds after `last` to the sink, all that are not held; returns the last one written."""
        given = last
        for record, following in _with_next(self._after(last, newest)):
            if following is None and self._notifier.held(record):
                break
            # Its policies may have been evaluated during the round that follows.
            found = following.earlier_evaluation if following else None
            if found and found.rounds == record.round + 1:
                evaluated = replace(record, evaluation=found.returns)
            else:
                evaluated = record
            sink.write(evaluated, scalars(evaluated, given, self._notifier.random))
            # After the write: a sink may get a round twice, but must not miss one.
            self._taken.rounds = record.round + 1
            given = record
            if self._failures:
                self._report("sink.recovered", failures=self._failures)
                self._failures, self._delays = 0, delays(first_s=FIRST_DELAY_S, longest_s=LONGEST_DELAY_S)
        if given is None or given is last:
            raise CorruptError(f"{self._folder}: rounds before {newest.round + 1} are not in rounds.jsonl")
        return given

    def _after(self, last: RoundRecord | None, newest: RoundRecord) -> Iterator[RoundRecord]:
        """The rounds that follow `last`, up to the newest, which is usually the only one and in memory."""
        first = last.round + 1 if last else 0
        if newest.round == first:
            return iter((newest,))
        return islice(read(self._folder / ROUNDS, first), max(0, newest.round + 1 - first))

    def _pause(self) -> None:
        with self._notifier.changed:
            end = self._notifier.end
            self._notifier.changed.wait_for(lambda: self._notifier.end != end, timeout=next(self._delays))


class _Taken:
    """The number of rounds that a sink has had, in a file; not fsynced: after a power failure it may get them again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def rounds(self) -> int:
        try:
            return int(json.loads(regular_files.read(self._path, MAX_SMALL_BYTES))["rounds"])
        except (MarlessError, ValueError, KeyError, TypeError, RecursionError):
            return 0

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._path.parent.mkdir(exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"rounds": rounds}), encoding="utf-8")
        partial.replace(self._path)


def _with_next(records: Iterable[RoundRecord]) -> Iterator[tuple[RoundRecord, RoundRecord | None]]:
    """Each round with the one after it; the last one with None."""
    before: RoundRecord | None = None
    for record in records:
        if before:
            yield before, record
        before = record
    if before:
        yield before, None


def _same(record: RoundRecord | None, other: RoundRecord | None) -> bool:
    if record is None or other is None:
        return record is other
    return (record.round, record.ended_s) == (other.round, other.ended_s)


def _report(loop: asyncio.AbstractEventLoop, log: JobLog, sink: str, event: str, **fields: object) -> None:
    """Write a warning into the job's log, from any thread."""
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(partial(log.warning, event, sink=sink, **fields))
