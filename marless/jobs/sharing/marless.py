"""Sharing policy `marless`: agents that behave alike share a learner while the trend of returns allows it.

Source: Wei et al. 2025 (MARLess), §4.1 and §4.2. Every agent starts with a policy of its own. When the slope of the
trend falls below the threshold, agents are grouped by similarity, and each group trains one policy: on the j-th time
N' = min(2^j, 2^(⌊log2 N⌋ + 1)) groups of N agents, by K-Means. When it falls below again, all groups are split.
Inferred: the clamp to N, how N' is divided among agent classes, and the input of K-Means; docs/sharing.md lists all
that is printed in the paper and all that is inferred. Importing this module does not import NumPy.
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
from marless.core.validation import named
from marless.jobs.record import RoundRecord
from marless.jobs.sharing.base import SharingConfig, SharingDecision, SharingKind
from marless.jobs.sharing.trend import Detector, Range, TrendState
from marless.learning.data.returns import EpisodeReturns
from marless.learning.similarity.measures import check_similarity, needs, similarity_type

if TYPE_CHECKING:
    from marless.learning.envs.base import AgentClass, EnvSpaces


Schedule = Literal["printed", "figure"]
"""Largest number of groups: printed: 2^(⌊log2 N⌋ + 1), clamped to N; figure: 2^⌊log2 N⌋, as in the paper's fig. 12."""
Method = Literal["kmeans", "kmedoids"]
Matrix = Sequence[Sequence[float]]
"""[N, N] distances: symmetric, 0 on the diagonal."""


def read_similarity(value: object) -> SimilarityConfig:
    """Read the section `sharing.similarity` of a job; raises ValueError."""
    return named(value, SimilarityConfig, similarity_type, "similarity: {name: kde}", default="kde")


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
        known = {group.policy: newest.metrics.get(group.policy, {}).get("curvature") for group in newest.groups}
        curvature = {policy: c if c is not None and math.isfinite(c) else None for policy, c in known.items()}
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
        memory = _Memory()
        # The state after the rounds before the newest one is in the inputs of the newest round's decision.
        for decision in history[-1].decisions if history else ():
            if decision.kind == "sharing" and decision.rule == self.config.name:
                kept, agents = decision.inputs, self.detector.agents
                lowest, highest = (
                    tuple(kept[name][agent] for agent in agents) if kept[name] else () for name in ("lowest", "highest")
                )
                seen = TrendState(tuple(tuple(row) for row in kept["window"]), lowest, highest)
                memory = _Memory(kept["sharing"], kept["enablings"], seen)
                break
        if not history or history[-1].returns is None:
            return memory
        seen = self.detector.see(memory.seen, history[-1].returns.per_agent)
        return _Memory(memory.sharing, memory.enablings, seen)

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


def groups_wanted(enabling: int, agents: int, schedule: Schedule) -> int:
    """N' at the `enabling`-th time (from 1) that sharing begins among `agents` agents."""
    highest = agents.bit_length() - (schedule == "figure")  # ⌊log2 N⌋ + 1, or ⌊log2 N⌋
    return min(1 << min(enabling, highest), agents)


def divided(groups: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Number of groups of each agent class: one each, the others to the classes with the most agents per group.

    A class never has more groups than agents; ties go to the first class. The sum exceeds `groups` only if there are
    more classes than that.
    """
    counts = [1] * len(sizes)
    while sum(counts) < min(groups, sum(sizes)):
        crowded = max(range(len(sizes)), key=lambda i: (sizes[i] / counts[i], -i))
        counts[crowded] += 1
    return tuple(counts)


def labels(distances: Matrix, groups: int, method: Method) -> tuple[int, ...]:
    """The group of each agent, numbered in order of appearance; fewer groups if fewer agents differ.

    For one group, or one per agent, only the size of `distances` is used.
    """
    if groups >= len(distances):
        return tuple(range(len(distances)))
    if groups == 1:
        return (0,) * len(distances)
    from marless.jobs.sharing import clustering

    found = (clustering.kmeans if method == "kmeans" else clustering.kmedoids)(distances, groups)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(found))}
    return tuple(numbers[label] for label in found)


def highest_curvature(policies: Sequence[str], curvature: Mapping[str, float | None]) -> str:
    """The policy with the highest C = −λ_max/λ_min, whose weights a group starts from (§4.2).

    Ties go to the first. A policy with unknown C is returned only if all are unknown.
    """
    known = [policy for policy in policies if curvature.get(policy) is not None]
    return max(known, key=lambda policy: curvature[policy] or 0.0) if known else policies[0]


class MarlessSharingKind(SharingKind):
    """Makes the policy; see `SharingKind`."""

    config_type = MarlessSharingConfig

    def curvature(self, config: SharingConfig) -> bool:
        return True  # a group starts from its member with the highest C

    def similarity(self, config: SharingConfig) -> SimilarityConfig | None:
        assert isinstance(config, MarlessSharingConfig), config  # the registry pairs this kind with its config type
        return config.similarity

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> MarlessSharing:
        """Make the policy; raises SpecError for a threshold that no slope can reach, first groups of several agents,
        classes in which no agents could ever share, a similarity of vectors for images, and missing packages.
        """
        assert isinstance(config, MarlessSharingConfig), config  # as above
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
        counts = made._counts(1)  # later enablings make more groups
        if all(counts[each.name] >= len(each.agents) for each in spaces.classes):
            sizes = ", ".join(f"{each.name} {len(each.agents)}" for each in spaces.classes)
            raise SpecError(
                f"sharing.name: {config.name} would never share: the first time it makes {sum(counts.values())} "
                f"groups, as many as there are agents that could be in them (agents of each class: {sizes}); "
                "take sharing.name: fixed"
            )
        check_similarity(config.similarity)
        if config.similarity.name == "kde" and any(each.image for each in spaces.classes):
            raise SpecError(
                "sharing.similarity: kde estimates densities of what agents observe, which are images; take "
                "similarity: policy_distance"
            )
        if config.grouping == "kmeans":
            needs("sharing.grouping: kmeans", "sklearn", "marless[sharing]")
            from marless.jobs.sharing import clustering  # noqa: F401  # imported now, so that no round waits for it
        return made


SHARING = MarlessSharingKind()
