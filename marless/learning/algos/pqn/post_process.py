"""The first function of a PQN update: values and targets of a round, and the samples to train on.

Samples are those of the agents of a class, so that a minibatch has the same env steps of all agents.
Shapes: N agents of a class, S samples, K bootstrap rows, I inputs + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.pqn.algorithms import PQNConfig
from marless.learning.algos.pqn.functions import OnlineQ
from marless.learning.algos.pqn.targets import Members, ValueUnits, lambda_returns, of_team, values
from marless.learning.algos.training.policy_batching import Samples, Stack
from marless.learning.algos.training.round_tensors import Tensors, by_agent, normalised, upload
from marless.learning.algos.training.segments import Segments
from marless.learning.algos.training.table import Table
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.normalising import SEEN

REWARDS = "rewards"
"""Name of the sums of rewards in a policy's row; see `RewardMoments`."""
Stacked = Sequence[tuple[Stack, OnlineQ]]
"""The stacks of the policies of a class; of a stack, only its members matter here."""


@dataclass(frozen=True)
class ClassRound:
    """A round of an agent class, as its policies value it."""

    k: int
    """Index of the class."""
    tensors: Tensors
    segments: Segments | None
    """None for nets without memory."""
    value: Tensor
    """[N, S]."""
    boot_value: Tensor
    """[N, K]."""
    reward_sums: Tensor | None
    """float64 [N, 5], those of each agent's policy; None: rewards stay as they are."""

    @classmethod
    def of(cls, table: Table, k: int, stacked: Stacked, known: Sequence[str], model: ModelSpec) -> ClassRound:
        """Evaluate the nets of `stacked` on the table of class `k`; their inputs have the ids of `known` agents."""
        device = stacked[0][1].tensors["flat"].device
        tensors, agents = upload(table, device, known), len(table.obs)
        if model.normalise_observations:
            seen_NI3 = by_agent([(stack, each.tensors[SEEN]) for stack, each in stacked], agents)
            clip = model.observation_clip
            changed = {name: normalised(tensors[name], seen_NI3, clip) for name in ("obs", "boot_obs")}
            tensors = {**tensors, **changed}
        segments = Segments.of(tensors) if model.remembers else None
        sums = None
        if REWARDS in stacked[0][1].tensors:
            sums = by_agent([(stack, each.tensors[REWARDS]) for stack, each in stacked], agents)
        return cls(k, tensors, segments, *values(stacked, tensors, segments), sums)

    def samples(self, parts: Tensors) -> Samples:
        """The samples of these rows [N, rows, S], as independent ones or, for nets with memory, as segments."""
        if self.segments is None:
            return Samples(parts)
        first = self.segments.own_first.expand(len(self.value), -1, -1)
        return Samples({**parts, "first": first}, self.segments.steps, self.tensors.get("memory"))


def agents_samples(round_: ClassRound, config: PQNConfig) -> Samples:
    """The samples of agents with targets of their own."""
    tensors, after_death = round_.tensors, config.reward_rule.after_death
    units = None if round_.reward_sums is None else ValueUnits.of(round_.reward_sums, config.gamma)
    target_NTB = lambda_returns(tensors, round_.value, round_.boot_value, units, config, after_death=after_death)
    acts_N1S = tensors.get("alive", torch.ones_like(tensors["log_prob"]))
    counts_N1S = acts_N1S
    if after_death:  # the dead have values, too
        pending = (tensors["waits"] | tensors["open"]).flatten(1).unsqueeze(1) if "waits" in tensors else None
        counts_N1S = torch.ones_like(acts_N1S) if pending is None else (~pending).float()
    rows = {"features": tensors["obs"], "action": tensors["action"], "target": target_NTB.flatten(1).unsqueeze(1)}
    return round_.samples({**rows, "counts": counts_N1S, "acts": acts_N1S})


def team_samples(rounds: Sequence[ClassRound], trajectories: Sequence[Trajectory], config: PQNConfig) -> list[Samples]:
    """The samples of the classes of a team, with the team's target for all agents."""
    members = [Members.of(trajectories, each.k, each.tensors) for each in rounds]
    parts = [mine.value(each.value, each.boot_value, each.tensors) for mine, each in zip(members, rounds, strict=True)]
    value_1S, boot_value_1K = (torch.stack(each).sum(dim=0) for each in zip(*parts, strict=True))
    first = rounds[0]
    # All policies have the same sums, unless one has begun from a version of another job.
    units = None if first.reward_sums is None else ValueUnits.of(first.reward_sums[:1], config.gamma)
    team = of_team(first.tensors, trajectories, [each.k for each in rounds])
    target_11S = lambda_returns(team, value_1S, boot_value_1K, units, config).flatten(1).unsqueeze(0)
    return [_members_samples(each, mine, target_11S) for each, mine in zip(rounds, members, strict=True)]


def _members_samples(round_: ClassRound, members: Members, target_11S: Tensor) -> Samples:
    tensors, agents = round_.tensors, len(round_.value)
    rows = {
        "features": tensors["obs"],
        "action": members.held(tensors["action"]),
        "target": target_11S.expand(agents, -1, -1),
        "counts": members.counts.unsqueeze(1),
        "acts": members.acts(tensors).unsqueeze(1),
    }
    if round_.segments is None:
        # Single env steps cannot look back: they have the inputs of last turns.
        rows["features"] = members.held(tensors["obs"])
    elif members.turn is not None:
        rows["turn"] = (members.turn // round_.segments.copies).unsqueeze(1).float()
    return round_.samples(rows)
