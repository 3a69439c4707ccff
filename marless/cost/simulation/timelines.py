"""How much later the commands of a replayed run begin than those of the recorded one: both runs on virtual clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from marless.cost.simulation.virtual import Times, VirtualRun
from marless.jobs.record import PhaseSeconds
from marless.jobs.schedules.base import Schedule


@dataclass(frozen=True, kw_only=True)
class Later:
    """How many seconds later parts of a replayed round begin than those of the recorded one."""

    round_s: float
    """The round itself, which begins when the one before it is recorded."""
    rollout_s: float
    update_s: float
    end_s: float
    waited_s: float
    """How much longer the job waited for the rollout."""


@dataclass(frozen=True)
class Timelines:
    """A recorded and a replayed run of one schedule, between two rounds."""

    recorded: VirtualRun
    replayed: VirtualRun
    later_s: float = 0.0

    @classmethod
    def of(cls, schedule: Schedule) -> Timelines:
        """The timelines of both runs before their first round."""
        return cls(VirtualRun(schedule), VirtualRun(schedule))

    def after(self, recorded: PhaseSeconds, replayed: PhaseSeconds, idle_s: float | None) -> tuple[Later, Timelines]:
        """The next round of both.

        Args:
            recorded: The seconds that its actors, its update and its evaluations took; not how long the job waited.
            replayed: The same of the replayed round.
            idle_s: Seconds between the round before and this one.
        """
        # An interruption, of which the length is unknown, counts as no time for both.
        idle_s = max(idle_s or 0.0, 0.0)
        then, recorded_run = _after(self.recorded.rest(idle_s), recorded)
        now, replayed_run = _after(self.replayed.rest(idle_s), replayed)
        waited_s = now.waited_s - then.waited_s
        longer_s = waited_s + (replayed.update - recorded.update) + (replayed.evaluation - recorded.evaluation)
        later = Later(
            round_s=self.later_s,
            rollout_s=self.later_s + (now.began_s - then.began_s),
            update_s=self.later_s + waited_s,
            end_s=self.later_s + longer_s,
            waited_s=waited_s,
        )
        return later, replace(self, recorded=recorded_run, replayed=replayed_run, later_s=self.later_s + longer_s)


def _after(run: VirtualRun, took: PhaseSeconds) -> tuple[Times, VirtualRun]:
    return run.round(lambda _: took.rollout, lambda _: took.update + took.evaluation)
