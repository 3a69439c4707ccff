"""How long a job's rounds take: what its records, its limit of time and its bill go by.

Nothing here is the difference of two wall clocks but the time from a job's acceptance to the coordinator that now runs
it, which is shown to people and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from marless.stopwatch import Stopwatch


@dataclass(frozen=True)
class RoundTimes:
    """When a round began, how long it takes, and how long it was waited for."""

    watch: Stopwatch
    """Of the round, its rollout included, whoever ran that."""
    idle_s: float | None
    """See `RoundRecord`."""


class Timing:
    """The time of one job, for as long as one coordinator runs it."""

    def __init__(self) -> None:
        self._life = Stopwatch.start()
        self._training: Stopwatch | None = None
        """Since the first round of this run began."""
        self._before_s = 0.0
        self._round: RoundTimes | None = None
        self._rest: tuple[int, Stopwatch] | None = None
        """The round that was recorded last in this run, and since when."""
        self.trained_s = 0.0
        """Seconds of training up to the last record."""

    def go_on_after(self, recorded_s: float) -> None:
        """Earlier coordinators have recorded rounds that took so many seconds."""
        self.trained_s = self._before_s = recorded_s

    def begin(self, round_: int) -> RoundTimes:
        """A round begins, with its rollout."""
        before = self._rest[1] if self._rest and self._rest[0] + 1 == round_ else None
        self._round = times = RoundTimes(Stopwatch.start(), before.seconds if before else None)
        return times

    def present(self, rollout_s: float) -> RoundTimes:
        """The round whose rollout is done. If an earlier coordinator ran that, what lay between them is left out."""
        self._round = times = self._round or RoundTimes(Stopwatch.start(rollout_s), None)
        self._training = self._training or times.watch
        return times

    def recorded(self, round_: int) -> None:
        """The present round is on the disk."""
        self._round, self._rest = None, (round_, Stopwatch.start())
        self.trained_s = self.training_s

    @property
    def training_s(self) -> float:
        """Seconds of training until now: what earlier coordinators recorded, and all since this one's first round."""
        return self._before_s + (self._training.seconds if self._training else 0.0)

    def since(self, accepted_s: float) -> float:
        """Seconds since a job was accepted, Unix time."""
        return max(self._life.started_s - accepted_s, 0.0) + self._life.seconds
