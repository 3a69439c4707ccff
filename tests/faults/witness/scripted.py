"""Policies that change groups and actors every few rounds, by a rule that leans on all that it may lean on: the newest
record, and what its own last decision remembers. Installed as `witness` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from marless.core.group import Group
from marless.core.settings import SimilarityConfig
from marless.jobs.record import Decision, RoundRecord
from marless.jobs.scaling.base import ScalingConfig, ScalingContext, ScalingDecision, Signal
from marless.jobs.sharing.base import SharingConfig, SharingDecision
from marless.learning.data.returns import EpisodeReturns
from marless.learning.envs.base import EnvSpaces


class ScriptedSharingConfig(SharingConfig):
    """All agents of a class share from every second turn to the next one."""

    name: str = "scripted"
    period: int = Field(2, ge=1, description="rounds from turn to turn")


@dataclass(frozen=True)
class ScriptedSharing:
    """Who is merged into whom depends on the newest returns, the turns on what the last decision remembers."""

    period: int
    groups: tuple[Group, ...]
    spaces: EnvSpaces

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        """Never."""
        return False

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        """Every `period` rounds the other way."""
        if not history:
            return SharingDecision(self.groups, "the first round", {"left": self.period, "turns": ()})
        last = _last(history, "sharing").inputs
        left, turns = last["left"] - 1, last["turns"]
        now = tuple(Group(group.policy, group.agents) for group in history[-1].groups)
        if left:
            return SharingDecision(now, f"{left} rounds to the next turn", {"left": left, "turns": turns})
        apart = len(now) == len(self.spaces.agents)
        turned = self._merged(now, history[-1]) if apart else self._split(now)
        what = "share" if apart else "split"
        turns = [*turns, [history[-1].round, what]]  # a tuple would fail here: what JSON makes of one is a list
        return SharingDecision(turned, f"turn {len(turns)}: {what}", {"left": self.period, "turns": list(turns)})

    def _merged(self, now: tuple[Group, ...], newest: RoundRecord) -> tuple[Group, ...]:
        scores = newest.returns.per_agent if newest.returns else {}
        merged = []
        for each in self.spaces.classes:
            best = max(each.agents, key=lambda agent: scores.get(agent, 0.0))
            [policy] = (group.policy for group in now if best in group.agents)
            merged.append(Group(policy, each.agents))
        return tuple(merged)

    def _split(self, now: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(
            Group(agent, (agent,), "" if agent == group.policy else group.policy)
            for group in now
            for agent in group.agents
        )


class ScriptedSharingKind:
    """See `SharingKind`."""

    config_type = ScriptedSharingConfig

    def curvature(self, config: SharingConfig) -> bool:
        """Not needed."""
        return False

    def gradients(self, config: SharingConfig) -> bool:
        """Not needed."""
        return False

    def similarity(self, config: SharingConfig) -> SimilarityConfig | None:
        """Not needed."""
        return None

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> ScriptedSharing:
        """See `SharingKind`."""
        return ScriptedSharing(ScriptedSharingConfig.model_validate(config).period, groups, spaces)


class ScriptedScalingConfig(ScalingConfig):
    """Another number of actors in each round."""

    name: str = "scripted"


@dataclass(frozen=True)
class ScriptedScaling:
    """One step from the last number, up or down by the last digits of the newest return."""

    most: int

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        """From 1 to `most`, and never twice the same if `most` is more than 1."""
        if not history:
            return ScalingDecision(self.most, "the first round", {"past": ()})
        past, returns = _last(history, "scaling").inputs["past"], history[-1].returns
        step = 1 + int(abs(returns.mean if returns else 0.0) * 1e6) % max(self.most - 1, 1)
        actors = (history[-1].actors - 1 + step) % self.most + 1
        past = [*past, history[-1].actors][-3:]
        return ScalingDecision(actors, f"{step} from {past[-1]}, {len(groups)} groups", {"past": past})


class ScriptedScalingKind:
    """See `ScalingKind`."""

    config_type = ScriptedScalingConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        """None."""
        return frozenset()

    def make(self, config: ScalingConfig, context: ScalingContext) -> ScriptedScaling:
        """See `ScalingKind`."""
        return ScriptedScaling(context.max_actors)


def _last(history: Sequence[RoundRecord], kind: str) -> Decision:
    return next(decision for decision in history[-1].decisions if decision.kind == kind)


SHARING = ScriptedSharingKind()
SCALING = ScriptedScalingKind()
