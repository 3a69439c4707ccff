"""The inputs of the learned scheduler: eight numbers per round (the state in MinionsRL, AAAI 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from marless.jobs.record import RoundRecord

FEATURES = ("round", "loss", "return", "kl", "learner_s", "actor_s", "round_s", "budget_left")
"""Names of the features, in the order of the nets' inputs; see `observe`."""

Observation = Mapping[str, "float | None"]
"""Values by feature; None if it is not measured yet, which the nets get as the feature's mean."""


def observe(history: Sequence[RoundRecord], rounds: int, budget_left: float) -> dict[str, float | None]:
    """The state before the round after `history`.

    - round: rounds done, as a fraction of `rounds` (the whole run's), at most 1;
    - loss: the newest losses (all that end in "loss", added up), averaged over policies and critics;
    - return: the newest mean return per agent of the exploring policies;
    - kl: the newest approx_kl, averaged over policies: KL(π_{k−1}‖π_k), where the paper has KL(π_k‖π_{k−1}). The
      update estimates it at each gradient step, from samples of π_{k−1}, and it is the mean of all steps. Both
      directions agree up to the second order in the change of the policy;
    - learner_s, actor_s, round_s: of the newest round, see `learner_s`, `actors_s` and `round_s`; seconds;
    - budget_left: share of the budget that is unspent, 1 without a budget, negative beyond it.
    """
    last = history[-1] if history else None
    measured = {
        "round": min((last.round + 1) / rounds, 1.0) if last else 0.0,
        "loss": loss(last) if last else None,
        "return": next((record.returns.mean for record in reversed(history) if record.returns), None),
        "kl": kl(last) if last else None,
        "learner_s": learner_s(last) if last else None,
        "actor_s": _mean(actors_s(last)) if last else None,
        "round_s": round_s(last) if last else None,
        "budget_left": budget_left,
    }
    return {name: value if value is not None and math.isfinite(value) else None for name, value in measured.items()}


def loss(record: RoundRecord) -> float | None:
    """All losses of a policy or critic added up, averaged over those that have any."""
    losses = [
        [value for name, value in metrics.items() if name.endswith("loss")] for metrics in record.metrics.values()
    ]
    return _mean([sum(each) for each in losses if each])


def kl(record: RoundRecord) -> float | None:
    """approx_kl of the update, KL(π_{k−1}‖π) averaged over gradient steps and policies; None if no policy has it."""
    return _mean([metrics["approx_kl"] for metrics in record.metrics.values() if "approx_kl" in metrics])


def actors_s(record: RoundRecord) -> list[float]:
    """Seconds of each actor without queueing, as on a platform with room for all actors."""
    return [each.end_s - each.start_s for each in record.invocations if each.function == "actor"]


def learner_s(record: RoundRecord) -> float:
    """Seconds of the slowest learner, as the learners of several scopes run in parallel."""
    learners = [each.end_s - each.start_s for each in record.invocations if each.function == "learner"]
    return max(learners, default=record.phases.update)


def round_s(record: RoundRecord) -> float:
    """P_k = P^l + max_i P^a_i in seconds (MinionsRL): the learner after the slowest actor, all actors in parallel."""
    return learner_s(record) + max(actors_s(record), default=record.phases.rollout)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
