"""Sharing policy `marless`: agents that behave alike share a learner while the trend of returns allows it.

Source: Wei et al. 2025 (MARLess), §4.1 and §4.2. Every agent starts with a policy of its own. When the slope of the
trend falls below the threshold, agents are grouped by similarity, and each group trains one policy. When it does so
again, all groups are split. docs/sharing.md lists what is printed in the paper and what is inferred.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.core.settings import SimilarityConfig
from marless.jobs.record import RoundRecord
from marless.jobs.sharing.base import SharingConfig, SharingDecision
from marless.jobs.sharing.grouping import Matrix, Method, Schedule, divided, groups_wanted, highest_curvature, labels
from marless.jobs.sharing.trend import Detector, Range, TrendState
from marless.learning.data.returns import EpisodeReturns
from marless.learning.similarity.measures import check_similarity, needs, read_similarity

if TYPE_CHECKING:
    from marless.learning.envs.base import AgentClass, EnvSpaces


class MarlessSharingConfig(SharingConfig):
    """Settings of MARLess's sharing: share and split by the trend of returns, group by similarity."""

    name: str = "marless"
    window: int = Field(10, ge=2, le=512, description="W: number of rounds in the trend's window")
    threshold: float = Field(
        0.1, description="γ, in scaled returns per round: a slope below it starts sharing, or ends it"
    )
    split_threshold: float | None = Field(
        None, description="γ while agents share; null: the same. If negative, agents share until returns fall"
    )
    range: Range = Field(
        "history",
        description="rounds of min and max: all so far, those in the window, or (then) all up to each round",
    )
    aggregate: Literal["sum", "mean"] = Field("sum", description="how the scaled returns of agents are combined")
    schedule: Schedule = Field(
        "printed",
        description="most groups: 2^(⌊log2 N⌋ + 1), clamped to N agents; or 2^⌊log2 N⌋, as the paper's figure",
    )
    grouping: Method = Field("kmeans", description="clustering of agents by their distances")
    similarity: Annotated[SerializeAsAny[SimilarityConfig], BeforeValidator(read_similarity)] = Field(
        "kde", validate_default=True, description="how differently agents behave: kde, policy_distance, or your own"
    )


@dataclass(frozen=True)
class _Memory:
    """The state that decisions keep in their inputs."""

    sharing: bool = False
    enablings: int = 0
    """j, the number of times that sharing has begun."""
    seen: TrendState = field(default_factory=TrendState)


@dataclass(frozen=True)
class MarlessSharing:
    """The sharing policy of MARLess; see the module's docstring."""

    config: MarlessSharingConfig
    groups: tuple[Group, ...]
    """Groups of the first round: one policy per agent."""
    classes: tuple[AgentClass, ...]
    detector: Detector

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        """True only if sharing begins with these returns, and its groups depend on similarity."""
        memory = self._after(history)
        changed = bool(history) and self.detector.fires(memory.seen, sharing=memory.sharing)
        if changed and (memory.sharing or not self._missing(memory, history[-1])):
            return False  # the strategy has just changed, and the window is empty
        if memory.sharing or returns is None:
            return False
        if not self.detector.fires(self.detector.see(memory.seen, returns.per_agent)):
            return False
        counts = self._counts(memory.enablings + 1)
        return any(1 < counts[each.name] < len(each.agents) for each in self.classes)

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        """See `Sharing`. Sharing begins only once similarity was measured; until then it asks again every round."""
        memory = self._after(history)
        if not history:
            return self._stay(memory, self.groups, "the first round")
        newest = history[-1]
        # Without their sources: what a group started from was copied in the round that began with it.
        groups = tuple(Group(group.policy, group.agents) for group in newest.groups)
        if newest.returns is None:
            return self._stay(memory, groups, f"no episode ended in round {newest.round + 1}")
        slope = self.detector.slope(memory.seen)
        if slope is None:
            known = f"{len(memory.seen.window)} of {self.config.window} rounds of the trend are known"
            return self._stay(memory, groups, known)
        below = self.detector.below(memory.sharing)
        if slope >= below:
            return self._stay(memory, groups, f"slope {slope:.3g} is not below {below:g}")
        return self._split(memory, groups) if memory.sharing else self._share(memory, groups, newest)

    def _share(self, memory: _Memory, groups: tuple[Group, ...], newest: RoundRecord) -> SharingDecision:
        if missing := self._missing(memory, newest):
            what = (
                f"{self._fall(memory)}, but it was not measured how alike the agents of class {', '.join(missing)} are"
            )
            return self._stay(memory, groups, f"{what}; it is asked for again")
        counts = self._counts(memory.enablings + 1)
        distances = {each.name: _distances(newest, each, counts[each.name]) for each in self.classes}
        curvature = _curvature(newest)
        found, chosen = {}, []
        for each in self.classes:
            found[each.name] = labels(distances[each.name] or (), counts[each.name], self.config.grouping)
            chosen += _clustered(each, found[each.name], groups, curvature)
        measured = {name: matrix for name, matrix in distances.items() if 1 < counts[name] < len(matrix or ())}
        return self._decision(
            _Memory(True, memory.enablings + 1, memory.seen.cleared()),
            tuple(chosen),
            f"begins to share: {self._fall(memory)}; {len(newest.groups)} policies become {len(chosen)}",
            self._facts(memory)
            | {
                "clusters": counts,
                "distances": measured,
                "labels": {name: list(each) for name, each in found.items()},
                "curvature": curvature,
            },
        )

    def _split(self, memory: _Memory, groups: tuple[Group, ...]) -> SharingDecision:
        shared = {agent: group.policy for group in groups for agent in group.agents}
        own = tuple(
            Group(agent, (agent,), "" if shared[agent] == agent else shared[agent])
            for each in self.classes
            for agent in each.agents
        )
        return self._decision(
            _Memory(False, memory.enablings, memory.seen.cleared()),
            own,
            f"splits: {self._fall(memory)}; every agent goes on with a copy of what it shared",
            self._facts(memory) | {"sources": shared},
        )

    def _stay(self, memory: _Memory, groups: tuple[Group, ...], why: str) -> SharingDecision:
        state = "shares" if memory.sharing else "independent"
        return self._decision(memory, groups, f"{state}: {why}", self._facts(memory))

    def _decision(
        self, memory: _Memory, groups: tuple[Group, ...], reason: str, facts: dict[str, Any]
    ) -> SharingDecision:  # Any: what JSON can hold
        agents, seen = self.detector.agents, memory.seen
        remembered = {
            "sharing": memory.sharing,
            "enablings": memory.enablings,
            "window": [list(row) for row in seen.window],
            "lowest": dict(zip(agents, seen.lowest, strict=False)),
            "highest": dict(zip(agents, seen.highest, strict=False)),
        }
        return SharingDecision(groups, reason, remembered | facts)

    def _facts(self, memory: _Memory) -> dict[str, Any]:  # Any: what JSON can hold
        trend = list(self.detector.trend(memory.seen))
        threshold = self.detector.below(memory.sharing)
        return {"trend": trend, "slope": self.detector.slope(memory.seen), "threshold": threshold}

    def _fall(self, memory: _Memory) -> str:
        slope = self.detector.slope(memory.seen) or 0.0
        return f"slope {slope:.3g} over {self.config.window} rounds is below {self.detector.below(memory.sharing):g}"

    def _after(self, history: Sequence[RoundRecord]) -> _Memory:
        """The state after the newest round, before the decision."""
        memory = self._memory(history)
        if not history or history[-1].returns is None:
            return memory
        seen = self.detector.see(memory.seen, history[-1].returns.per_agent)
        return _Memory(memory.sharing, memory.enablings, seen)

    def _memory(self, history: Sequence[RoundRecord]) -> _Memory:
        """The state after the rounds before the newest one, from the inputs of the newest round's decision."""
        for decision in history[-1].decisions if history else ():
            if decision.kind == "sharing" and decision.rule == self.config.name:
                kept, agents = decision.inputs, self.detector.agents
                lowest, highest = (
                    tuple(kept[name][agent] for agent in agents) if kept[name] else () for name in ("lowest", "highest")
                )
                seen = TrendState(tuple(tuple(row) for row in kept["window"]), lowest, highest)
                return _Memory(kept["sharing"], kept["enablings"], seen)
        return _Memory()

    def _missing(self, memory: _Memory, newest: RoundRecord) -> list[str]:
        """The classes whose similarity the next enabling needs, but which was not measured."""
        counts = self._counts(memory.enablings + 1)
        return [each.name for each in self.classes if _distances(newest, each, counts[each.name]) is None]

    def _counts(self, enabling: int) -> dict[str, int]:
        """Number of groups per agent class at the `enabling`-th time that sharing begins."""
        sizes = [len(each.agents) for each in self.classes]
        wanted = groups_wanted(enabling, sum(sizes), self.config.schedule)
        return dict(zip((each.name for each in self.classes), divided(wanted, sizes), strict=True))


def _distances(record: RoundRecord, agents: AgentClass, groups: int) -> Matrix | None:
    """The distances of a class's agents in class order; zeros if they are not needed, None if they are missing."""
    if groups in (1, len(agents.agents)):
        return [[0.0] * len(agents.agents)] * len(agents.agents)
    for measured in record.distances:
        if sorted(measured.agents) == sorted(agents.agents):
            at = [measured.agents.index(agent) for agent in agents.agents]
            matrix = [[measured.values[i][j] for j in at] for i in at]
            return matrix if all(map(math.isfinite, itertools.chain(*matrix))) else None
    return None


def _curvature(record: RoundRecord) -> dict[str, float | None]:
    """C of each policy of the round; None if it is unknown."""
    found = {group.policy: record.metrics.get(group.policy, {}).get("curvature") for group in record.groups}
    return {policy: c if c is not None and math.isfinite(c) else None for policy, c in found.items()}


def _clustered(
    agents: AgentClass, found: Sequence[int], groups: Sequence[Group], curvature: Mapping[str, float | None]
) -> list[Group]:
    """One group per label, each with the policy of its member with the highest C."""
    policies = {agent: group.policy for group in groups for agent in group.agents}
    made = []
    for label in sorted(set(found)):
        members = tuple(agent for agent, own in zip(agents.agents, found, strict=True) if own == label)
        made.append(Group(highest_curvature([policies[agent] for agent in members], curvature), members))
    return made


class MarlessSharingKind:
    """See `marless.jobs.sharing.base.SharingKind`."""

    config_type = MarlessSharingConfig

    def curvature(self, config: SharingConfig) -> bool:
        """True: a group starts from its member with the highest C."""
        return True

    def similarity(self, config: SharingConfig) -> SimilarityConfig | None:
        """The similarity of the config."""
        return _checked(config).similarity

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> MarlessSharing:
        """Make the policy; raises SpecError for a threshold that no slope can reach, first groups of several agents,
        classes in which no agents could ever share, and missing packages.
        """
        config = _checked(config)
        if config.groups != "independent":
            raise SpecError(
                f"sharing.groups: {config.name} begins with a policy per agent and decides on groups by itself; "
                "leave groups out, or take sharing.name: fixed to keep groups of your own"
            )
        detector = Detector(
            agents=spaces.agents,
            window=config.window,
            threshold=config.threshold,
            split_threshold=config.split_threshold,
            range=config.range,
            aggregate=config.aggregate,
        )
        detector.check()
        made = MarlessSharing(config, groups, spaces.classes, detector)
        _check_sharable(made)
        check_similarity(config.similarity)
        if config.grouping == "kmeans":
            needs("sharing.grouping: kmeans", "sklearn", "marless[sharing]")
            from marless.jobs.sharing import clustering  # noqa: F401  # imported now, so that no round waits for it
        return made


def _checked(config: SharingConfig) -> MarlessSharingConfig:
    assert isinstance(config, MarlessSharingConfig), config  # the registry pairs this kind with its config type
    return config


def _check_sharable(sharing: MarlessSharing) -> None:
    counts = sharing._counts(1)  # later enablings make more groups
    if all(counts[each.name] >= len(each.agents) for each in sharing.classes):
        sizes = ", ".join(f"{each.name} {len(each.agents)}" for each in sharing.classes)
        raise SpecError(
            f"sharing.name: {sharing.config.name} would never share: the first time it makes {sum(counts.values())} "
            f"groups, as many as there are agents that could be in them (agents of each class: {sizes}); "
            "take sharing.name: fixed"
        )


SHARING = MarlessSharingKind()
