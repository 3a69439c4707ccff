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
- Where nothing is known of gradients after the first trials, a round gets `actors.count`: with algorithms that do not
  measure them, and with those that draw batches from a replay buffer, whose size does not depend on the actors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marless.core.group import Group
from marless.core.settings import FunctionsSpec
from marless.jobs.gradient_evidence import EARLY, GradientEvidence
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
    drawn: bool
    """True if learners draw batches from a replay buffer."""

    def decide(self, history: Sequence[RoundRecord], groups: Sequence[Group]) -> ScalingDecision:
        if self.drawn:
            why = f"batches are drawn from a replay buffer, whatever the number of actors: all {self.bounds.high}"
            return ScalingDecision(self.bounds.high, why)
        if not history:
            start = self._start
            return ScalingDecision(start, f"first round: {start} actors, between the fewest and the most", {})
        kept = _Kept.read(remembered(history, "auto"), history[-1], groups)
        sums = kept.sums.after(history[-1], self.functions, self.rates.time) if history[-1].round else kept.sums
        evidence = {
            group.policy: kept.evidence[group.policy].after(history[-1].metrics.get(group.policy, {}))
            for group in groups
        }
        number = history[-1].round + 1
        decided, why, facts = self._decided(history, groups, sums, evidence, kept.decided or self._start)
        actors = self._tried(decided, number)
        if actors != decided:
            why = f"{why}; {actors} in this round, as a trial"
        inputs = {
            "decided": decided,
            "groups": _named(groups),
            "sums": sums.to_json(),
            "evidence": {policy: each.to_json() for policy, each in evidence.items()},
            **facts,
        }
        return ScalingDecision(actors, why, inputs)

    @property
    def _start(self) -> int:
        return self.bounds.whole(self.bounds.clip(math.sqrt(self.bounds.low * self.bounds.high)))

    def _decided(
        self,
        history: Sequence[RoundRecord],
        groups: Sequence[Group],
        sums: RoundSums,
        evidence: Mapping[str, GradientEvidence],
        before: int,
    ) -> tuple[int, str, dict[str, Any]]:  # Any: JSON
        """The number of actors without trials, why, and the numbers that it follows from."""
        known = {policy: each.noise_scale for policy, each in evidence.items()}
        newest = history[-1]
        if not sums.rounds or None in known.values():
            if newest.round + 1 < EARLY or any(each.count for each in evidence.values()):
                return before, f"too little is known of gradients and costs: {before} actors", {}
            return self.bounds.high, f"no gradients are measured: all {self.bounds.high} actors", {}
        steps = newest.env_steps - (history[-2].env_steps if len(history) > 1 else 0)
        of_actor = steps / max(newest.actors, 1)  # samples per agent
        scale = sum(
            (known[each.policy] or 0.0) / (of_actor * (len(each.agents) if self.pooled else 1)) for each in groups
        ) / len(groups)
        cost = sums.cost(self.rates)
        if cost.usd(before) <= 0:
            return self.bounds.high, f"rounds cost nothing: all {self.bounds.high} actors", {}
        near = self._near(before)
        enough = min(math.ceil(scale * _LEAST_SHARE), near[-1])
        best = min((n for n in near if n >= enough), key=lambda n: (_progress_usd(n, scale, cost), n))
        saved = 1 - _progress_usd(best, scale, cost) / _progress_usd(before, scale, cost)
        chosen = before if before >= enough and saved <= _WORTHWHILE else best
        facts = {
            "noise_scale": known,
            "noise_actors": scale,
            "usd_fixed": cost.usd(0),
            "usd": {str(n): cost.usd(n) for n in sorted({before, best})},
            "saved": saved,
        }
        why = (
            f"noise is worth {scale:.3g} actors, and a round costs {cost.usd(chosen):.3g} USD with {chosen}, "
            f"{cost.usd(0):.2g} without any: progress costs least with {best}"
        )
        if chosen != best:
            why = f"{why}, but hardly less than with {chosen}: {chosen} actors"
        return chosen, why, facts

    def _near(self, before: int) -> range:
        """The numbers of actors that may follow `before`."""
        return range(max(self.bounds.least, before // 2), min(self.bounds.high, 2 * before) + 1)

    def _tried(self, decided: int, number: int) -> int:
        """The actors of a round, which may be a trial of more or fewer than decided."""
        factor = 1.0
        if number < EARLY:
            factor = _FIRST_TRIALS[number % len(_FIRST_TRIALS)]
        elif number % EARLY == 0:
            factor = _TRIAL if number // EARLY % 2 else 1 / _TRIAL
        return self.bounds.whole(self.bounds.clip(decided * factor))


def _progress_usd(actors: int, scale: float, cost: RoundCostModel) -> float:
    """Dollars to a return, in units of S_min rounds."""
    return (1 + scale / actors) * cost.usd(actors)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What the decision before has kept; anew for other groups, since other learners cost something else."""

    decided: int | None
    sums: RoundSums
    evidence: Mapping[str, GradientEvidence]

    @classmethod
    def read(cls, inputs: Mapping[str, Any], newest: RoundRecord, groups: Sequence[Group]) -> _Kept:  # Any: JSON
        same = inputs.get("groups") == _named(groups) and _named(newest.groups) == _named(groups)
        kept = inputs.get("evidence", {}) if same else {}
        return cls(
            decided=inputs.get("decided"),
            sums=RoundSums.read(inputs.get("sums", {}) if same else {}),
            evidence={each.policy: GradientEvidence.read(kept.get(each.policy, {})) for each in groups},
        )


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
            drawn=context.drawn,
        )


SCALING = AutoKind()
