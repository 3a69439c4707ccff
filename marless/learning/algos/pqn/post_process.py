"""The first function of a PQN update: values and targets of a round, and the samples to train on.

Samples are those of the agents of a class, so that a minibatch has the same env steps of all agents. Targets are
λ-returns, computed once, with the nets that are trained on them: R_t = r_t + γ ((1 − λ) V_{t+1} + λ R_{t+1}), where V
is the value of the best legal action: Peng's Q(λ) (Peng & Williams 1996), not corrected for exploratory actions. R − V
is the advantage that GAE finds with these values. After a termination nothing follows; where a segment was cut, R_{t+1}
is V of its last observation.
Shapes: N agents of a class or, for a team, 1; T time, B copies, S = T · B samples, K bootstrap rows, I inputs + 1, A
actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marless.learning.algos.pqn.algorithms import PQNConfig
from marless.learning.algos.pqn.functions import OnlineQ
from marless.learning.algos.training.advantages import Successors, gae
from marless.learning.algos.training.policy_batching import Samples, Stack
from marless.learning.algos.training.rewards import RewardMoments, everyone_gone
from marless.learning.algos.training.round_tensors import Tensors, by_agent, normalised, upload
from marless.learning.algos.training.segments import Segments
from marless.learning.algos.training.table import Table
from marless.learning.algos.training.turns import held_turns
from marless.learning.data.trajectory import Trajectory
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.normalising import SEEN


def values(
    policies: Sequence[tuple[Stack, OnlineQ]], tensors: Tensors, segments: Segments | None
) -> tuple[Tensor, Tensor]:
    """The value of the best legal action of all samples, [N, S], and bootstrap rows, [N, K], by each agent's policy."""
    agents, samples, boots = len(tensors["obs"]), tensors["obs"].shape[2], tensors["boot_obs"].shape[2]
    found_NF = tensors["obs"].new_empty(agents, samples + boots)
    legal_NAF = None
    if "legal" in tensors:
        legal_NAF = torch.cat([tensors["legal"], tensors["boot_legal"]], dim=2)
    for stack, function in policies:
        legal = None if legal_NAF is None else stack.rows(legal_NAF)
        found_NF[stack.agents] = _best(stack, function, tensors, legal, segments)
    return found_NF[:, :samples], found_NF[:, samples:]


def _best(
    stack: Stack, function: OnlineQ, tensors: Tensors, legal_nAF: Tensor | None, segments: Segments | None
) -> Tensor:
    """[n, S + K], samples before bootstrap rows."""
    seen, boots = stack.rows(tensors["obs"]), stack.rows(tensors["boot_obs"])
    if segments is None:
        return function.best(torch.cat([seen, boots], dim=2), legal_nAF, stack.owners)
    frames = segments.frames(seen, boots)
    at_F = torch.cat([segments.at_sample, segments.at_boot])
    if legal_nAF is not None:
        legal_nAJ = legal_nAF.new_ones(*legal_nAF.shape[:2], len(segments.source))
        legal_nAJ[:, :, at_F] = legal_nAF
        legal_nAF = legal_nAJ
    first = segments.own_first_frames.expand(len(tensors["obs"]), -1, -1)
    resets = stack.rows(first).reshape(len(frames), -1, segments.copies) > 0
    memory = stack.rows(tensors["memory"]) if "memory" in tensors else None
    return function.best(frames, legal_nAF, stack.owners, resets, memory)[:, at_F]


@dataclass(frozen=True)
class ValueUnits:
    """What nets learn instead of the value V: (V − `centre`) · `scale`, see `RewardMoments`; each [N, 1, 1]."""

    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, sums_N5: Tensor, gamma: float) -> ValueUnits:
        """The units that follow from the sums of rewards of each agent's policy, float64 [N, 5]."""
        moments = RewardMoments(range(len(sums_N5)), gamma)
        moments.sums[:] = sums_N5.cpu().numpy()
        rows = range(len(sums_N5))
        pair = ([moments.centre(row) for row in rows], [moments.scale(row) for row in rows])
        return cls(*(torch.tensor(each, dtype=torch.float32, device=sums_N5.device).view(-1, 1, 1) for each in pair))

    def reward(self, reward_NTB: Tensor, discount_NTB: Tensor) -> Tensor:
        """Rewards in these units."""
        return (reward_NTB + (discount_NTB - 1) * self.centre) * self.scale


def lambda_returns(
    tensors: Tensors,
    value_NS: Tensor,
    boot_value_NK: Tensor,
    units: ValueUnits | None,
    config: PQNConfig,
    *,
    after_death: bool = False,
) -> Tensor:
    """λ-returns, [N, T, B]; values and returns are in `units` (None: those of rewards).

    At samples that do not count (an agent is absent or waits, or its turn is open) they mean nothing.
    """
    reward_NTB, value_NTB = tensors["reward"], value_NS.view_as(tensors["reward"])
    if units is not None:
        reward_NTB = units.reward(reward_NTB, config.gamma * ~tensors["terminated"])
    later = Successors.of(tensors, reward_NTB, value_NTB, boot_value_NK, gamma=config.gamma, after_death=after_death)
    given = reward_NTB, value_NTB, later.value, later.ends
    return value_NTB + gae(*given, gamma=config.gamma, gae_lambda=config.td_lambda, turns=later.turns)


@dataclass(frozen=True)
class Members:
    """The agents of a class as members of a team, which acts in each env step."""

    there: Tensor
    """float32 [N, S], 1 where an agent is in the episode."""
    counts: Tensor
    """float32 [N, S], 1 where it is there and has had a turn."""
    turn: Tensor | None
    """int64 [N, S], the sample of its last turn; None if nobody waits."""
    waits_at_boots: Tensor | None
    """bool [N, K], likewise."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], k: int, tensors: Tensors) -> Members:
        """The members of class `k`."""
        there_NTB = np.concatenate([each.there(k) for each in trajectories], axis=2).swapaxes(0, 1)
        device = tensors["obs"].device
        there = torch.from_numpy(np.ascontiguousarray(there_NTB)).to(device).flatten(1).float()
        if "waits" not in tensors:
            return cls(there, there, None, None)
        cut_TB, waits_NTB = tensors["cut"].cpu().numpy(), tensors["waits"].cpu().numpy()
        time_NTB, had_NTB = held_turns(there_NTB, waits_NTB, cut_TB)
        turn_NTB = torch.from_numpy(time_NTB * cut_TB.shape[1] + np.arange(cut_TB.shape[1])).to(device)
        counts_NS = torch.from_numpy(had_NTB).to(device).flatten(1).float()
        # The turn of an agent is open in the step before a bootstrap row exactly if the agent waits in that row.
        waits_NK = tensors["open"].flatten(1)[:, tensors["boot_index"]]
        return cls(there, counts_NS, turn_NTB.flatten(1), waits_NK)

    def acts(self, tensors: Tensors) -> Tensor:
        """float32 [N, S], 1 where an agent acts itself."""
        return self.there * ~tensors["waits"].flatten(1) if "waits" in tensors else self.there

    def held(self, x_NRS: Tensor) -> Tensor:
        """The rows of each agent's last turn in the place of those of steps in which it waits."""
        return x_NRS if self.turn is None else x_NRS.gather(2, self.turn.unsqueeze(1).expand_as(x_NRS))

    def value(self, value_NS: Tensor, boot_value_NK: Tensor, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """What they add to the team's value at samples, [1, S], and bootstrap rows, [1, K]; absent ones add nothing."""
        value_NS = self.held(value_NS.unsqueeze(1)).squeeze(1) * self.counts
        at_K = tensors["boot_index"]
        stays_NS = self.there * ~tensors["terminated"].flatten(1)
        boot_value_NK = boot_value_NK * stays_NS[:, at_K]
        if self.waits_at_boots is not None:
            boot_value_NK = torch.where(self.waits_at_boots, value_NS[:, at_K], boot_value_NK)
        return value_NS.sum(dim=0, keepdim=True), boot_value_NK.sum(dim=0, keepdim=True)


def of_team(tensors: Tensors, trajectories: Sequence[Trajectory], classes: Sequence[int]) -> Tensors:
    """The tensors of a class as those of its team, N = 1, whose episode ends when its last agent has gone."""
    over_TB = np.concatenate([everyone_gone(each, classes) for each in trajectories], axis=1)
    terminated = torch.from_numpy(over_TB).to(tensors["reward"].device).unsqueeze(0)
    shared = {name: tensors[name] for name in ("cut", "boot_index")}
    return {**shared, "reward": tensors["reward"][:1], "terminated": terminated}


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
