"""Scaling policy `auto`: the number of actors at which progress costs least, from what the job itself has shown. Ours.

How many rounds it takes to come to a return depends on how many samples a round has: with K rounds' worth of noise,

    S(n) = S_min · (1 + K/n)        K = B / (samples that one actor brings to a policy in a round)

where B = tr Σ / |G|² is the gradient noise scale (McCandlish et al. 2018, eq. 2.11, there for steps of gradient
descent; that rounds of several steps follow it is our inference, which docs/results.md checks). A round with n actors
costs C(n) dollars, fitted to the bill so far (`marless.jobs.scaling.round_costs`). The policy takes the n that
minimises S(n) · C(n). If C were fixed + each · n, that is n = √(K · fixed / each): more actors for noisier gradients,
and where the fixed part of a round is dear.

- At least K/15 actors: with fewer, the cosine between the gradient of a round and the true one, √(n/(n + K)), is below
  a quarter, and steps whose length does not depend on it mostly wander. The law above holds for steps that would be
  shortened for small batches, as optimizers with a given rate do not.
- With several policies, K is the mean of theirs [inference].
- B is the ratio of means over the measurements so far, whose weights halve every eight measurements. The standard error
  of |G|² is added to it, so that actors are added on evidence alone: too many cost more than too few.
- Trials: the first eight rounds have 1, 2 and ½ times the geometric mean of the least and the most actors, and every
  eighth round after has √2 times as many as decided, or as few, in turn: without differences, no cost can be fitted.
- Where rounds cost nothing, such as on capacity that is paid anyway, a round gets `actors.count`.
- A round has at most twice and at least half the actors of the one before.
- Of other groups, noise and costs are measured anew; the number of actors stays until they are.
- Where nothing is known of gradients after the first trials, as with algorithms that do not measure them, a round gets
  `actors.count`; so it does where the size of a batch does not depend on the actors: with batches from a replay buffer,
  and under schedule `stellaris`, whose learners take a fixed number of rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from marless.core.group import Group
from marless.core.settings import FunctionsSpec
from marless.jobs.evidence import EARLY, GradientEvidence
from marless.jobs.record import RoundRecord
from marless.jobs.scaling.base import (
    ActorRange,
    BoundedConfig,
    ScalingConfig,
    ScalingContext,
    ScalingDecision,
    ScalingKind,
    Signal,
    remembered,
)
from marless.jobs.scaling.round_costs import FunctionRates, RoundCostModel, RoundSums

_FIRST_TRIALS = (1.0, 2.0, 0.5)
_TRIAL = math.sqrt(2.0)
_LEAST_SHARE = 1 / 15
"""A round has at least this part of K."""
_WORTHWHILE = 0.02
"""The number of actors stays unless this fraction of the cost is saved, because a change is not free either."""


class AutoConfig(BoundedConfig):
    """Settings of `auto`; I_min is 1 by default. There is nothing to tune."""

    name: Literal["auto"] = "auto"


@dataclass(frozen=True)
class CheapestScaling:
    """Scales to the least cost of progress; see the module's docstring."""

    bounds: ActorRange
    functions: FunctionsSpec
    rates: FunctionRates
    pooled: bool
    """True if a shared policy trains on the samples of all its members."""
    fixed_batch: bool
    """True if an update has as many samples whatever the number of actors."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        most = self.bounds.high
        if self.fixed_batch:
            return ScalingDecision(
                most, f"updates have batches of a fixed size, whatever the number of actors: all {most}"
            )
        if not history:
            start = self._start
            return ScalingDecision(start, f"first round: {start} actors, between the fewest and the most", {})
        kept = _Kept.after(history, groups, self)
        evidence, sums, before = kept.evidence, kept.sums, kept.decided or self._start
        chosen = self._without_evidence(history[-1], kept, before)
        chosen = chosen or self._chosen(_noise_actors(history, groups, evidence, self.pooled), sums, before)
        actors = self._tried(chosen.actors, history[-1].round + 1) if chosen.tries else chosen.actors
        why = chosen.why if actors == chosen.actors else f"{chosen.why}; {actors} in this round, as a trial"
        inputs = {
            "decided": chosen.actors,
            "measured": kept.measured,
            "groups": _named(groups),
            "sums": sums.to_json(),
            "noise_scale": {policy: each.noise_scale for policy, each in evidence.items()},
            "evidence": {policy: each.to_json() for policy, each in evidence.items()},
            **chosen.facts,
        }
        return ScalingDecision(actors, why, inputs)

    @property
    def _start(self) -> int:
        return self.bounds.whole(self.bounds.clip(math.sqrt(self.bounds.low * self.bounds.high)))

    def _without_evidence(self, newest: RoundRecord, kept: _Kept, before: int) -> _Choice | None:
        """The choice while noise or costs are not known, or if they never will be; None if they are known."""
        most, sums = self.bounds.high, kept.sums
        if not sums.rounds or any(each.noise_scale is None for each in kept.evidence.values()):
            if newest.round + 1 < EARLY or kept.measured:
                return _Choice(before, f"too little is known of gradients and costs: {before} actors")
            return _Choice(most, f"no gradients are measured: all {most} actors", tries=False)
        if sums.cost(self.rates).usd(before) <= 0:
            return _Choice(most, f"rounds cost nothing: all {most} actors", tries=False)
        return None

    def _chosen(self, scale: float, sums: RoundSums, before: int) -> _Choice:
        """The number of actors with the least cost of progress, if noise is worth `scale` actors."""
        cost = sums.cost(self.rates)
        # The numbers of actors that may follow `before`.
        near = range(max(self.bounds.least, before // 2), min(self.bounds.high, 2 * before) + 1)
        enough = min(math.ceil(scale * _LEAST_SHARE), near[-1])
        best = min((n for n in near if n >= enough), key=lambda n: (_progress_usd(n, scale, cost), n))
        saved = 1 - _progress_usd(best, scale, cost) / _progress_usd(before, scale, cost)
        actors = before if before >= enough and saved <= _WORTHWHILE else best
        why = (
            f"noise is worth {scale:.3g} actors, and a round costs {cost.usd(actors):.3g} USD with {actors}, "
            f"{cost.usd(0):.2g} without any: progress costs least with {best}"
        )
        facts = {
            "noise_actors": scale,
            "usd_fixed": cost.usd(0),
            "usd": {str(n): cost.usd(n) for n in sorted({before, best})},
            "saved": saved,
        }
        hardly_less = "" if actors == best else f", but hardly less than with {actors}: {actors} actors"
        return _Choice(actors, why + hardly_less, facts)

    def _tried(self, decided: int, number: int) -> int:
        """The actors of a round, which may be a trial of more or fewer than decided."""
        factor = 1.0
        if number < EARLY:
            factor = _FIRST_TRIALS[number % len(_FIRST_TRIALS)]
        elif number % EARLY == 0:
            factor = _TRIAL if number // EARLY % 2 else 1 / _TRIAL
        return self.bounds.whole(self.bounds.clip(decided * factor))


@dataclass(frozen=True)
class _Choice:
    """A number of actors without trials, and why."""

    actors: int
    why: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # Any: JSON
    """The numbers that it follows from."""
    tries: bool = True
    """False if there is nothing to learn from other numbers of actors."""


def _noise_actors(
    history: Sequence[RoundRecord], groups: Sequence[Group], evidence: Mapping[str, GradientEvidence], pooled: bool
) -> float:
    """K: the noise scale in actors, the mean over policies, each by the samples that an actor of the newest round
    brought it.
    """
    newest = history[-1]
    steps = newest.env_steps - (history[-2].env_steps if len(history) > 1 else 0)
    of_agent = steps / max(newest.actors, 1)
    found = [
        (evidence[each.policy].noise_scale or 0.0) / (of_agent * (len(each.agents) if pooled else 1)) for each in groups
    ]
    return math.fsum(found) / len(found)


def _progress_usd(actors: int, scale: float, cost: RoundCostModel) -> float:
    """Dollars to a return, in units of S_min rounds."""
    return (1 + scale / actors) * cost.usd(actors)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What is known of rounds with the next round's groups; others have other learners, which cost something else."""

    decided: int | None
    """The number of actors decided last, without trials, whatever the groups."""
    sums: RoundSums
    evidence: Mapping[str, GradientEvidence]
    measured: bool
    """True if gradients of some policy have been measured, also of other groups."""

    @classmethod
    def after(cls, history: Sequence[RoundRecord], groups: Sequence[Group], scaling: CheapestScaling) -> _Kept:
        """What the decision before has kept, and the newest round, if it had these groups."""
        inputs, newest = remembered(history, "auto"), history[-1]
        same = _named(newest.groups) == _named(groups)
        known = inputs if same and inputs.get("groups") == _named(groups) else {}
        sums = RoundSums.read(known.get("sums", {}))
        if same and newest.round:  # the first round loads libraries
            sums = sums.after(newest, scaling.functions, scaling.rates.time)
        kept, metrics = known.get("evidence", {}), newest.metrics if same else {}
        evidence = {
            each.policy: GradientEvidence.read(kept.get(each.policy, {})).after(metrics.get(each.policy, {}))
            for each in groups
        }
        measured = inputs.get("measured", False) or any("gradient_trace" in each for each in newest.metrics.values())
        return cls(decided=inputs.get("decided"), sums=sums, evidence=evidence, measured=measured)


def _named(groups: Sequence[Any]) -> dict[str, list[str]]:  # Any: Group or GroupRecord
    return {each.policy: list(each.agents) for each in groups}


class AutoKind(ScalingKind):
    """Makes the policy; see `ScalingKind`."""

    config_type = AutoConfig

    def signals(self, config: ScalingConfig) -> frozenset[Signal]:
        return frozenset({"gradients"})

    def make(self, config: ScalingConfig, context: ScalingContext) -> CheapestScaling:
        own = AutoConfig.model_validate(config)
        return CheapestScaling(
            bounds=own.bounds(context),
            functions=context.functions or FunctionsSpec(),
            rates=context.rates or FunctionRates(actor_work=1.0, actor_ready=0.0, learner_work=1.0, learner_ready=0.0),
            pooled=context.samples == "pooled",
            fixed_batch=context.drawn or context.learned_at_once is not None,
        )


SCALING = AutoKind()
