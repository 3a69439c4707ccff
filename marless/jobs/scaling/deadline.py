"""`scaling.deadline_s`: as many actors as a run needs to end in time, whatever the policy wants.

A run ends with `stop.rounds` or `stop.env_steps`. More actors sample more env steps in a round, so that fewer rounds
reach `stop.env_steps`; but each round takes longer, so that `stop.rounds` is reached later. The measured times of past
rounds say how long a round takes with any number of actors (`RoundForecast`), and so how long the rest of the run
takes. If that is too long, the decision moves to the nearest number that is in time.

Every round decides anew, from what is left by then. So a wrong forecast is corrected, as long as time is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marless.jobs.scaling.base import ScalingDecision
from marless.jobs.scaling.round_times import MeasuredRound, RoundForecast

if TYPE_CHECKING:
    from marless.jobs.sections import ActorsSpec

WINDOW = 20
"""Number of past rounds whose times are used."""
SPARE = 0.05
"""Fraction of the deadline that is kept for what no forecast knows."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """What is left to do, and the time for it. Seconds of training time, as `stop.wall_s` counts them."""

    deadline_s: float
    left_s: float
    """Time until the deadline."""
    kept_s: float
    """Time that is kept for the evaluation at the end, and for what no forecast knows."""
    rounds_left: int | None
    """Until `stop.rounds`; None without it."""
    steps_left: int | None
    """Env steps until `stop.env_steps`; None without it."""
    steps_of_actor: int
    """Env steps that each actor adds to a round."""
    most: int
    """`actors.count`."""
    forecast: RoundForecast

    @classmethod
    def of(
        cls,
        times: Sequence[MeasuredRound],
        *,
        deadline_s: float,
        trained_s: float,
        evaluation_s: float,
        rounds_left: int | None,
        steps_left: int | None,
        actors: ActorsSpec,
        drawn: bool,
    ) -> Deadline:
        """What is left after `trained_s` seconds, if rounds go on as these did, of which there must be one.

        Args:
            evaluation_s: Of the longest evaluation, because a run ends with one.
            drawn: Learners draw batches from a replay buffer, of the same size in every round.
        """
        left_s = deadline_s - trained_s
        return cls(
            deadline_s=deadline_s,
            left_s=left_s,
            kept_s=evaluation_s + SPARE * deadline_s,
            rounds_left=None if rounds_left is None else max(rounds_left, 1),
            steps_left=None if steps_left is None else max(steps_left, 1),
            steps_of_actor=actors.envs * actors.steps,
            most=actors.count,
            forecast=RoundForecast.of(times, drawn=drawn),
        )

    def rounds(self, actors: int) -> int:
        """Rounds until the run ends, with this many actors in each."""
        ends = [] if self.rounds_left is None else [self.rounds_left]
        if self.steps_left is not None:
            ends.append(math.ceil(self.steps_left / (actors * self.steps_of_actor)))
        return max(min(ends), 1)

    def seconds(self, actors: int) -> float:
        """Forecast seconds until the run ends, with this many actors in each round."""
        return self.rounds(actors) * self.forecast.seconds(actors)

    def late_s(self, actors: int) -> float:
        """Forecast seconds beyond the deadline; 0 or less if the run ends in time."""
        return self.seconds(actors) - self.left_s

    def limit(self, decision: ScalingDecision) -> ScalingDecision:
        """The decision, or the nearest number of actors that is in time; if none is, the quickest."""
        wanted = decision.actors
        seconds, actors, in_time = self._nearest(wanted)
        inputs = {
            **decision.inputs,
            "deadline": {
                "wanted": wanted,
                "deadline_s": self.deadline_s,
                "left_s": self.left_s,
                "kept_s": self.kept_s,
                "wanted_s": seconds[wanted],
                "seconds": seconds[actors],
                "rounds": self.rounds(actors),
            },
        }
        if in_time and actors == wanted:
            return replace(decision, inputs=inputs)
        return ScalingDecision(actors, self._reason(decision, actors, seconds, in_time=in_time), inputs)

    def _nearest(self, wanted: int) -> tuple[dict[int, float], int, bool]:
        """Seconds by number of actors, the number that is nearest to the wanted one, and whether it is in time."""
        seconds = {n: self.seconds(n) for n in range(1, self.most + 1)}
        timely = [n for n in seconds if seconds[n] <= self.left_s - self.kept_s]
        if timely:
            return seconds, min(timely, key=lambda n: (abs(n - wanted), n)), True
        return seconds, min(seconds, key=lambda n: (seconds[n], abs(n - wanted))), False

    def outlook(self) -> str:
        """How many actors are in time, in one sentence; before a job begins."""
        seconds, actors, in_time = self._nearest(self.most)
        timely = [n for n in seconds if seconds[n] <= self.left_s - self.kept_s]
        which = f"deadline of {self.deadline_s:g} s: "
        if not in_time:
            return (
                f"{which}no number of actors up to {self.most} is in time; {actors} are the quickest, with "
                f"{seconds[actors]:.1f} s"
            )
        first, last = timely[0], timely[-1]
        return (
            f"{which}{first} to {last} of {self.most} actors are in time: {seconds[first]:.1f} s with {first} in each "
            f"round, {seconds[last]:.1f} s with {last}"
        )

    def _reason(self, decision: ScalingDecision, actors: int, seconds: dict[int, float], *, in_time: bool) -> str:
        wanted = decision.actors
        left = f"{max(self.left_s, 0.0):.1f} s are left until the deadline"
        needs = f"{self._rest(actors)} with {actors} actors {_takes(self.rounds(actors))} {seconds[actors]:.1f} s"
        instead = f"{actors} actors instead of {wanted}" if actors != wanted else f"{actors} actors"
        if not in_time:
            return (
                f"{instead}: {left}, and no number of actors is in time; {needs}, the least of all "
                f"(wanted since {decision.reason})"
            )
        with_wanted = f"{self._rest(wanted)} with {wanted} {_takes(self.rounds(wanted))} {seconds[wanted]:.1f} s"
        return f"{instead}: {left}; {with_wanted}, {needs} (wanted since {decision.reason})"

    def _rest(self, actors: int) -> str:
        count = self.rounds(actors)
        return f"{count} {'round' if count == 1 else 'rounds'}"

    def missed(self, decision: ScalingDecision) -> ScalingDecision:
        """A decision that a budget has made, whose reason says so if the run will be late for it."""
        late_s = self.late_s(decision.actors)
        if late_s <= 0:
            return decision
        reason = (
            f"{decision.reason}; the budget goes before the deadline, which the run will miss by about {late_s:.1f} s"
        )
        return replace(decision, reason=reason)


def _takes(rounds: int) -> str:
    return "takes" if rounds == 1 else "take"
