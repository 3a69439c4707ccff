"""The first function of a PPO update: computes advantages, returns and training samples from trajectories and critics.

V-trace, IMPACT and truncation need the log-probabilities of recorded actions under other policies than the one that is
trained: earlier, later, others'.
Shapes: N agents of the class, T time, B copies, S = T · B, K bootstrap rows, R rows, I features + 1, P nets of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.algorithms import ActorCriticConfig
from marless.learning.algos.ppo.functions import JUDGED, PolicyFunction, ValueFunction
from marless.learning.algos.ppo.minibatch_training import Metrics
from marless.learning.algos.training.advantages import (
    Successors,
    batch_moments,
    gae,
    standardise,
    vtrace_advantages,
    vtrace_corrections,
)
from marless.learning.algos.training.policy_batching import Samples, Stack, weights
from marless.learning.algos.training.round_tensors import Tensors
from marless.learning.algos.training.segments import Segments


@dataclass(frozen=True)
class CriticPass:
    """A stack of critics with its inputs for a round."""

    names: tuple[str, ...]
    function: ValueFunction
    stack: Stack | None
    """The stack of policies that the critics serve, one each; None: one joint critic with one output per agent."""
    features: Tensor
    """[P, I, samples], inputs for training."""
    seen: Tensor
    """[rows, I, samples], inputs for values, see `Stack.seen`; for recurrent critics, the frames of `Segments`."""
    boot_seen: Tensor
    """[rows, I, bootstrap rows], inputs for bootstrap values; empty for recurrent critics, whose frames have them."""
    resets: Tensor | None
    """bool [rows, T', copies]: memory is reset before a frame; None for perceptrons."""

    def pool(self, x_N1S: Tensor) -> Tensor:
        """Convert samples of the agents to samples of the critics, [P, outputs, samples]."""
        return self.stack.pool(x_N1S) if self.stack else x_N1S.transpose(0, 1)

    def judge(self, seen: Tensor, out_NS: Tensor) -> None:
        """Write the values of the agents that the critics serve."""
        if self.stack:
            self.stack.spread(self.function.values_of(seen, self.stack.owner, self.resets), out_NS)
        else:
            out_NS.copy_(self.function.values_of(seen, resets=self.resets)[0])


Judge = tuple[tuple[str, ...], ValueFunction, Stack | None]
"""Names of a stack of critics, its function, and the stack that it serves, as in `CriticPass`."""


def critic_passes(
    judges: Sequence[Judge], sources: tuple[Tensor, Tensor], segments: Segments | None
) -> list[CriticPass]:
    """Combine stacks of critics with their inputs: samples [N, I, S] and bootstrap rows [N, I, K], or [1, ...] of the
    global state for a joint critic, whose stack is None.

    A joint critic serves all agents and trains on each env step once, so its samples are neither pooled nor drawn.
    """
    features, boots = sources
    frames = features
    if segments is not None:
        frames, boots = segments.frames(features, boots), boots[:, :, :0]
    passes = []
    for names, function, stack in judges:
        resets = None if segments is None else segments.resets(stack, agents=len(features))
        if stack is None:
            passes.append(CriticPass(names, function, None, features, frames, boots, resets))
            continue
        seen = stack.seen(frames)
        # Without draws and memory the inputs for values are the pooled samples already: to
        # pool them again would copy them.
        trained = seen if segments is None and stack.owner is None else stack.pool(features)
        boot_seen = stack.seen(boots) if segments is None else boots
        passes.append(CriticPass(names, function, stack, trained, seen, boot_seen, resets))
    return passes


@dataclass(frozen=True)
class Estimates:
    """What is estimated of all samples, each [N, 1, S]."""

    value: Tensor
    """By the critics, before they are trained."""
    correction: Tensor
    """What the returns add to the values."""
    advantage: Tensor
    """Of the actions, for policies; the correction, unless it weighs them by a ratio that the loss of policies has."""


def estimate(
    passes: Sequence[CriticPass],
    tensors: Tensors,
    segments: Segments | None,
    config: ActorCriticConfig,
    ratio_NTB: Tensor | None = None,
) -> Estimates:
    """Estimate values and advantages: by `gae`, or by `vtrace` with the ratios π/μ, [N, T, B]."""
    reward_NTB = tensors["reward"]
    value_NS, boot_value_NK = _values(passes, tensors, segments)
    value_NTB = value_NS.view_as(reward_NTB)
    gamma, gae_lambda, rho, c = config.gamma, config.gae_lambda, config.vtrace_rho, config.vtrace_c
    later = Successors.of(
        tensors, reward_NTB, value_NTB, boot_value_NK, gamma=gamma, after_death=config.credit_after_death
    )
    after_NTB, ends_NTB, turns = later.value, later.ends, later.turns
    if ratio_NTB is None:
        given = reward_NTB, value_NTB, after_NTB, ends_NTB
        correction_NTB = advantage_NTB = gae(*given, gamma=gamma, gae_lambda=gae_lambda, turns=turns)
    else:
        delta_NTB = reward_NTB + gamma * after_NTB - value_NTB
        delta_NTB = delta_NTB if turns is None else turns.errors(delta_NTB)
        decays = {"gamma": gamma, "gae_lambda": gae_lambda}
        correction_NTB = vtrace_corrections(delta_NTB, ends_NTB, ratio_NTB, **decays, rho=rho, c=c, turns=turns)
        advantage_NTB = vtrace_advantages(delta_NTB, ends_NTB, correction_NTB, **decays)
    correction_N1S, advantage_N1S = (each.flatten(1).unsqueeze(1) for each in (correction_NTB, advantage_NTB))
    return Estimates(value_NS.unsqueeze(1), correction_N1S, advantage_N1S)


def _values(passes: Sequence[CriticPass], tensors: Tensors, segments: Segments | None) -> tuple[Tensor, Tensor]:
    """Values of all samples, [N, S], and of the bootstrap rows, [N, K]."""
    agents, new = tensors["reward"].shape[0], tensors["reward"].new_empty
    if segments is not None:
        frame_NJ = new(agents, len(segments.source))
        for critics in passes:
            critics.judge(critics.seen, frame_NJ)
        return frame_NJ[:, segments.at_sample], frame_NJ[:, segments.at_boot]
    value_NS = new(agents, tensors["cut"].numel())
    boot_value_NK = new(agents, tensors["boot_index"].shape[0])
    for critics in passes:
        critics.judge(critics.seen, value_NS)
        critics.judge(critics.boot_seen, boot_value_NK)
    return value_NS, boot_value_NK


Made = tuple[Samples, Metrics, Tensor | None]
"""Training samples; metrics (explained variance of the values before training); and the moments of the returns, float64
[P, K, 3], None without value normalisation."""


def critic_samples(
    critics: CriticPass, estimates: Estimates, tensors: Tensors, segments: Segments | None, config: ActorCriticConfig
) -> Made:
    """Make the critics' samples from the values and corrections of `estimate`, whose sums are the returns.

    With value normalisation, the critics' units follow the returns' moments first, see `ValueFunction.rescale`.
    """
    counted = _judged(tensors, config)
    parts, metrics, moments_PK3 = _critic_rows(critics, estimates, counted, config)
    parts = {"features": critics.features, **parts}
    if counted is not None:
        parts["alive"] = critics.pool(counted)
    return _samples(parts, critics.stack, len(tensors["reward"]), segments), metrics, moments_PK3


def _critic_rows(
    critics: CriticPass, estimates: Estimates, counted_N1S: Tensor | None, config: ActorCriticConfig
) -> tuple[dict[str, Tensor], Metrics, Tensor | None]:
    """What critics are trained on, beside features, in units that have followed the returns."""
    value_N1S, correction_N1S = estimates.value, estimates.correction
    value_PKS, return_PKS = critics.pool(value_N1S), critics.pool(value_N1S + correction_N1S)
    weight_PKS = weights({} if counted_N1S is None else {"alive": critics.pool(counted_N1S)}, return_PKS)
    metrics = {"explained_variance": losses.explained_variance(value_PKS, return_PKS, weight_PKS)}
    moments_PK3 = batch_moments(return_PKS, weight_PKS) if config.value_normalisation else None
    before_PKS = critics.function.normalised(value_PKS)  # the net's outputs, unless its last layer is rescaled
    if moments_PK3 is not None:
        critics.function.rescale(moments_PK3, decay=config.value_decay, popart=config.popart)
    old_PKS = critics.function.normalised(value_PKS) if config.popart else before_PKS
    return {"target": critics.function.normalised(return_PKS), "old": old_PKS}, metrics, moments_PK3


def _judged(tensors: Tensors, config: ActorCriticConfig) -> Tensor | None:
    """[N, 1, S], 1 for samples that critics are trained on, else 0; None if they are on all."""
    if not config.credit_after_death:
        return tensors.get("alive")
    if "waits" not in tensors:
        return None  # the dead have values too
    return (~(tensors["waits"] | tensors["open"])).flatten(1).unsqueeze(1).float()


def policy_samples(
    stack: Stack,
    advantage_N1S: Tensor,
    value_N1S: Tensor,
    tensors: Tensors,
    segments: Segments | None,
    config: ActorCriticConfig,
    peers: Sequence[PeerPolicies] | None = None,
) -> Samples:
    """Make the training samples of a stack of policies; with `peers` (which may be none), for ratios truncated by them.

    Where an episode goes on, recurrent policies start from the memory with which they acted (stored state). Critics
    start from an empty one, see docs/algorithms/ppo.md. Advantages are differences of returns and of `value`, and as
    exact as those.
    """
    parts = _policy_rows(stack, advantage_N1S, value_N1S, tensors, config)
    if peers is not None:
        parts["least"] = least_log_prob(peers, stack, parts, tensors, segments)
    memory = stack.pool(tensors["memory"]) if segments is not None and "memory" in tensors else None
    return _samples(parts, stack, len(tensors["reward"]), segments, memory)


def _policy_rows(
    stack: Stack, advantage_N1S: Tensor, value_N1S: Tensor, tensors: Tensors, config: ActorCriticConfig
) -> dict[str, Tensor]:
    names = [name for name in ("action", "log_prob", "alive", "legal") if name in tensors]
    parts = {"features": stack.pool(tensors["obs"])} | {name: stack.pool(tensors[name]) for name in names}
    parts["advantage"] = stack.pool(advantage_N1S)
    if config.advantage_normalisation == "minibatch":
        parts["value"] = stack.pool(value_N1S)
    elif config.advantage_normalisation == "round":
        advantage_PS, value_PS = parts["advantage"].squeeze(1), stack.pool(value_N1S).squeeze(1)
        weight_PS = weights(parts, advantage_PS)
        parts["advantage"] = standardise(advantage_PS, weight_PS, value_PS).unsqueeze(1)
    return parts


def shared_samples(
    critics: CriticPass,
    stack: Stack,
    estimates: Estimates,
    tensors: Tensors,
    config: ActorCriticConfig,
    peers: Sequence[PeerPolicies] | None = None,
) -> Made:
    """Make the training samples of a stack of nets that are policy and critic at once, and have no memory."""
    counted = _judged(tensors, config)
    parts = _policy_rows(stack, estimates.advantage, estimates.value, tensors, config)
    if peers is not None:
        parts["least"] = least_log_prob(peers, stack, parts, tensors, None)
    judged, metrics, moments_PK3 = _critic_rows(critics, estimates, counted, config)
    parts |= judged
    if config.credit_after_death:  # else what counts for values is what counts for policies
        parts[JUDGED] = torch.ones_like(parts["log_prob"]) if counted is None else stack.pool(counted)
    return _samples(parts, stack, len(tensors["reward"]), None), metrics, moments_PK3


def _samples(
    parts: Mapping[str, Tensor],
    stack: Stack | None,
    agents: int,
    segments: Segments | None,
    memory_PHB: Tensor | None = None,
) -> Samples:
    if segments is None:
        return Samples(parts)
    first = stack.pool(segments.own_first.expand(agents, -1, -1)) if stack else segments.first
    return Samples({**parts, "first": first}, segments.steps, memory_PHB)


@dataclass(frozen=True)
class PeerPolicies:
    """The policies of another learner, for the policies of a stack."""

    function: PolicyFunction
    absent: tuple[int, ...]
    """Indices of policies that it has not; the weights of `function` there mean nothing."""


def log_probs(policies: Sequence[tuple[Stack, PolicyFunction]], tensors: Tensors, segments: Segments | None) -> Tensor:
    """Log-probabilities of all recorded actions, [N, S], under the policies of each agent.

    With memory, policies start from the memory with which the actors did. At steps of dead agents the numbers mean
    nothing.
    """
    out_NS = tensors["log_prob"].new_empty(tensors["log_prob"].shape[0], tensors["log_prob"].shape[2])
    rows = {"features": "obs", "action": "action", "legal": "legal"}
    for stack, function in policies:
        seen = {name: stack.seen(tensors[key]) for name, key in rows.items() if key in tensors}
        seen |= _starts(stack.seen, tensors, segments)
        stack.spread(function.log_probs(seen, stack.owner).unsqueeze(1), out_NS)
    return out_NS


def ratios(log_prob_NS: Tensor, tensors: Tensors) -> Tensor:
    """π/μ of all samples, [N, T, B]; 1 where an agent is dead: it has done nothing that is more or less likely."""
    ratio_NS = (log_prob_NS - tensors["log_prob"].squeeze(1)).exp()
    if "alive" in tensors:
        ratio_NS = ratio_NS.masked_fill(tensors["alive"].squeeze(1) == 0, 1.0)
    return ratio_NS.view_as(tensors["reward"])


def least_log_prob(
    peers: Sequence[PeerPolicies], stack: Stack, parts: Tensors, tensors: Tensors, segments: Segments | None
) -> Tensor:
    """The least log-probability of a stack's training samples under the policies of peers, [P, 1, samples].

    +∞ without peers. `parts` has the rows of the samples, in their order.
    """
    least_PS = torch.full_like(parts["log_prob"].squeeze(1), math.inf)
    seen = {name: parts[name] for name in ("features", "action", "legal") if name in parts}
    seen |= _starts(stack.pool, tensors, segments)
    for peer in peers:
        found_PS = peer.function.log_probs(seen)
        # The least of all peers: one without the policy must not be it.
        found_PS[list(peer.absent)] = math.inf
        least_PS = torch.minimum(least_PS, found_PS)
    return least_PS.unsqueeze(1)


def _starts(pool: Callable[[Tensor], Tensor], tensors: Tensors, segments: Segments | None) -> dict[str, Tensor]:
    """Where recurrent policies have an empty memory, and with what they start; {} for perceptrons."""
    if segments is None:
        return {}
    first = pool(segments.own_first.expand(len(tensors["reward"]), -1, -1))
    found = {"resets": first.reshape(len(first), segments.steps, -1) > 0}
    return found | ({"memory": pool(tensors["memory"])} if "memory" in tensors else {})
