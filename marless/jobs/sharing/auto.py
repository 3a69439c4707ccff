"""Sharing policy `auto`: all agents of a class share a policy until their gradients point in opposite directions. Ours.

A shared policy learns from all its agents' samples and pays for one learner. Whether its agents want the same is
measured in the gradient: the mean over pairs of agents of the product of their gradients ("gradient_common" of
`marless.learning.algos.training.measuring`). If it is below 0 by more than two standard errors while agents
still have gradients of their own, the policy is a compromise that no agent wants: its agents go on apart, each with a
copy. They do not come together again, since their policies differ from then on.

That gradients agree does not show that sharing pays: with a central critic, three agents of `mpe/simple_spread` learn
far more apart, though their gradients are not opposed. Nor can one run measure how far they agree: noise is several
times what is measured (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from marless.core.group import Group
from marless.jobs.evidence import GradientEvidence
from marless.jobs.record import RoundRecord
from marless.jobs.sharing.base import Members, SharingConfig, SharingDecision, SharingKind
from marless.learning.data.returns import EpisodeReturns

if TYPE_CHECKING:
    from marless.learning.envs.base import EnvSpaces


class AutoSharingConfig(SharingConfig):
    """Settings of `auto`. There is nothing to tune."""

    name: str = "auto"
    groups: Literal["independent", "shared"] | dict[str, Members] = Field(
        "shared", description="groups of the first round"
    )


@dataclass(frozen=True)
class AutoSharing:
    """Shares until agents are opposed; see the module's docstring."""

    groups: tuple[Group, ...]

    def asks(self, history: Sequence[RoundRecord], returns: EpisodeReturns | None) -> bool:
        return False

    def decide(self, history: Sequence[RoundRecord]) -> SharingDecision:
        if not history:
            return SharingDecision(self.groups, f"the first round: {len(self.groups)} policies")
        newest = history[-1]
        kept = next((each.inputs for each in newest.decisions if (each.kind, each.rule) == ("sharing", "auto")), {})
        known = kept.get("evidence", {})
        evidence = {
            each.policy: GradientEvidence.read(known.get(each.policy, {})).after(newest.metrics.get(each.policy, {}))
            for each in newest.groups
            if len(each.agents) > 1
        }
        groups: list[Group] = []
        split: list[str] = []
        for each in newest.groups:
            if each.policy in evidence and evidence[each.policy].opposed:
                split.append(each.policy)
                groups += [Group(agent, (agent,), "" if agent == each.policy else each.policy) for agent in each.agents]
            else:
                groups.append(Group(each.policy, each.agents))
        going_on = {policy: each.to_json() for policy, each in evidence.items() if policy not in split}
        return SharingDecision(tuple(groups), _reason(split, evidence), {"evidence": going_on})


def _reason(split: Sequence[str], evidence: dict[str, GradientEvidence]) -> str:
    if split:
        return f"splits: the gradients of the agents of {', '.join(split)} point in opposite directions"
    if not evidence:
        return "independent: no policy is shared"
    agreeing = [f"{policy} {_agreement(each)}" for policy, each in evidence.items()]
    return f"shares: agreement of agents' gradients (1: the same, below 0: opposed): {', '.join(agreeing)}"


def _agreement(evidence: GradientEvidence) -> str:
    if not evidence.count:
        return "not measured"
    return f"{evidence.common / evidence.own:.2g}" if evidence.own > 0 else "drowned in noise"


class AutoSharingKind(SharingKind):
    """Makes the policy; see `SharingKind`."""

    config_type = AutoSharingConfig

    def gradients(self, config: SharingConfig) -> bool:
        return True

    def make(self, config: SharingConfig, groups: tuple[Group, ...], spaces: EnvSpaces) -> AutoSharing:
        return AutoSharing(groups)


SHARING = AutoSharingKind()
