"""Scaling policy `echo`: just enough actors that rollouts keep up with updates (ECHO-2, arXiv 2602.02192).

ECHO-2 gives the learner a pool of remote workers. Within κ updates of T_train seconds each, the workers must generate
what these consume, κR rollouts, and receive one new snapshot, which takes T_bcast; so the learner never waits if

    κR / Σ μ_i + T_bcast ≤ κ T_train        (μ_i: rollouts per second of worker i)

The paper's own text could not be read, only its abstract and summaries of it. These name R, κ, μ_i, T_train and T_bcast
and the condition in words; the formula above, and all that follows, are our inference.

In marless an actor is not a worker of a fixed pool: each brings its own env steps to the round. So n actors on n slots
roll out in the time a of one, whatever n is, and it is the update that grows with n: T(n) = u + v n, its publishing
included. R / Σ μ_i becomes a, and the rule becomes

    n = the smallest number for which a + b/S ≤ u + v n,  n = ⌈(a + b/S − u) / v⌉ in [I_min, I_max]

with b the delivery: from the request for a rollout to the start of its first actor; an actor reads its weights within
a. The bounded staleness S takes the place of κ. Fewer actors would leave the learner idle for a part of each round, and
more would only add samples to a learner that is busy already.

- `pipelined` overlaps rollouts with updates, as ECHO-2 does.
- `stellaris` overlaps them, too, and its learners take a fixed number of rollouts, as in ECHO-2: R is what all of them
  learn from at once, T_train the time t of one learner. So n = ⌈R (a + b/S) / t⌉.
- `synchronous` overlaps nothing. The nearest reading: a round's rollout takes no longer than its update, so that the
  learner waits for at most half of the time.
- Where updates draw batches of a fixed size from a replay, they do not grow with n and never wait: I_min.

a, b, u and v are medians over a window, without starts of workers, and CPU seconds with `bill.time: cpu`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import Field

from marless.core.group import Group
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    TOLERANCE,
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
)
from marless.jobs.scaling.round_times import newest_times


class EchoConfig(BoundedConfig):
    """Settings of ECHO-2's capacity rule; I_min is 1 by default."""

    name: Literal["echo"] = "echo"
    window: int = Field(9, ge=1, le=512, description="rounds over which times are medians")
    staleness: int = Field(1, ge=1, le=512, description="S: updates over which a rollout's delivery is spread")


@dataclass(frozen=True)
class EchoScaling:
    """Just enough actors to keep learners busy; see the module's docstring."""

    bounds: ActorRange
    window: int
    staleness: int
    drawn: bool = False
    """Updates draw batches of a fixed size from a replay."""
    learned_at_once: int | None = None
    """R under schedule `stellaris`; None under schedules of rounds."""
    by_cpu: bool = False
    """Times are CPU seconds."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """Decide; I_max until a round's actors have been timed."""
        times = newest_times(history, self.window, by_cpu=self.by_cpu)
        if not times:
            when = "no round has been timed yet" if history else "first round"
            return ScalingDecision(self.bounds.high, f"{when}: {self.bounds.high} actors, the most allowed")
        acting_s = median(median(each.acting_s) for each in times)
        delivery_s = median(each.delivery_s for each in times)
        rollout_s = acting_s + delivery_s / self.staleness
        inputs = {"acting_s": acting_s, "delivery_s": delivery_s, "staleness": self.staleness, "rounds": len(times)}
        if self.learned_at_once is not None and not self.drawn:
            learner_s = median(each.learner_s for each in times)
            return self._for_learners(rollout_s, learner_s, self.learned_at_once, inputs)
        learning = [0.0 if self.drawn else each.learning_s for each in times]
        fixed_s = median(each.update_s - part for each, part in zip(times, learning, strict=True))
        actor_s = median(part / each.actors for each, part in zip(times, learning, strict=True))
        asked = (rollout_s - fixed_s) / actor_s if actor_s > 0 else self.bounds.low
        actors = self._whole(asked)
        found = self._noted(asked) | {"update_fixed_s": fixed_s, "update_actor_s": actor_s}
        return ScalingDecision(actors, self._reason(actors, rollout_s, fixed_s, actor_s), inputs | found)

    def _for_learners(
        self, rollout_s: float, learner_s: float, rollouts: int, inputs: dict[str, float]
    ) -> ScalingDecision:
        """The decision if learners take a fixed number of rollouts whenever these are there."""
        asked = rollouts * rollout_s / learner_s if learner_s > 0 else float(self.bounds.high)
        actors = self._whole(asked)
        enough = "the fewest that keep learners busy" if asked <= actors + TOLERANCE else "the most allowed"
        reason = (
            f"a rollout takes {1000 * rollout_s:.4g} ms, and learners take {rollouts} in {1000 * learner_s:.4g} ms: "
            f"{actors} actors, {enough}"
        )
        found = self._noted(asked) | {"learner_s": learner_s, "learned_at_once": rollouts}
        return ScalingDecision(actors, reason, inputs | found)

    def _whole(self, asked: float) -> int:
        # A division by almost zero can overflow.
        return self.bounds.whole(self.bounds.clip(min(asked, float(self.bounds.high))))

    def _noted(self, asked: float) -> dict[str, float | None]:
        """What was asked for, and within which bounds."""
        return {
            "asked": asked if math.isfinite(asked) else None,
            "min": self.bounds.low,
            "max": self.bounds.high,
        }

    def _reason(self, actors: int, rollout_s: float, fixed_s: float, actor_s: float) -> str:
        rollout = f"a rollout takes {1000 * rollout_s:.4g} ms"
        if actor_s <= 0:
            return f"{rollout}, and updates do not grow with actors, so more would not keep learners busier: {actors}"
        update = f"an update {1000 * fixed_s:.4g} ms and {1000 * actor_s:.4g} ms an actor"
        if fixed_s + actor_s * actors < rollout_s * (1 - 1e-9):
            return f"{rollout}, {update}: even {actors} actors, the most allowed, do not keep learners busy"
        fewest = "the fewest allowed" if actors == self.bounds.least else "the fewest that keep learners busy"
        return f"{rollout}, {update}: {actors} actors, {fewest}"


class EchoKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = EchoConfig

    def make(self, config: ScalingConfig, context: ScalingContext) -> EchoScaling:
        own = EchoConfig.model_validate(config)
        return EchoScaling(
            own.bounds(context),
            own.window,
            own.staleness,
            context.drawn,
            context.learned_at_once,
            context.by_cpu,
        )


SCALING = EchoKind()
