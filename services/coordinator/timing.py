"""When a job's rounds begin, how long they take, and how long the job idles between them: what their records say.

Training time, which `stop.wall_s` limits and the bill charges, is the sum of both over the recorded rounds (see
`RoundRecord.spent_s`). An interruption is in neither: nothing of the job runs while it has no coordinator, waits for a
service that is down, or for room in the learner pool. Nothing here is the difference of two wall clocks but `since`,
which is shown to people and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from marless.record import RoundRecord
from marless.stopwatch import Stopwatch


@dataclass(frozen=True)
class RoundTimes:
    """When a round began, how long it takes, and how long the job idled before it."""

    watch: Stopwatch
    """Of the round, its rollout included, whoever ran that."""
    idle_s: float | None
    """See `RoundRecord`."""


class Timing:
    """The time of one job, for as long as one coordinator runs it."""

    def __init__(self) -> None:
        self._life = Stopwatch.start()
        self._round: RoundTimes | None = None
        self._rest: tuple[int, Stopwatch] | None = None
        """The round that was recorded last, and the time since its end; None after an interruption."""

    def begin(self, round_: int) -> RoundTimes:
        """A round begins, with its rollout."""
        rest = self._rest[1] if self._rest and self._rest[0] + 1 == round_ else None
        self._round = times = RoundTimes(Stopwatch.start(), rest.seconds if rest else None)
        return times

    def present(self, rollout_s: float) -> RoundTimes:
        """The round whose rollout is done. If that was before an interruption, the interruption is left out."""
        self._round = times = self._round or RoundTimes(Stopwatch.start(rollout_s), None)
        return times

    def recorded(self, record: RoundRecord) -> None:
        """The present round is on the disk; the job idles since its end."""
        since_end_s = self._round.watch.seconds - record.took_s if self._round else 0.0
        self._round, self._rest = None, (record.round, Stopwatch.start(max(since_end_s, 0.0)))

    def interrupted(self) -> None:
        """Nothing of the job runs from here to where it goes on, with a new round or with the update of this one."""
        self._round = self._rest = None

    def since(self, accepted_s: float) -> float:
        """Seconds since a job was accepted, Unix time."""
        return max(self._life.started_s - accepted_s, 0.0) + self._life.seconds
