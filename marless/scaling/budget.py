"""The option `within_budget` of every scaling policy: at most as many actors as the rest of `stop.cost_usd` can pay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from marless.record import RoundRecord
from marless.scaling.base import ScalingDecision
from marless.scaling.bounds import TOLERANCE

LEARNING = frozenset({"learner", "post_process", "critic", "mixer", "policy"})
"""What goes over samples."""
GROWING = frozenset({"actor", "machine"})
"""What grows with the actors: actors themselves, and machines that hold them. LEARNING does where learners go over what
the actors sampled. All else (an evaluation's episodes, measurements on a subset, the store) costs a round the same
however many actors it has.
"""
SHARE_OF_REST = 0.1
"""Of what is left, the most that one round may take where nobody knows how many rounds there will be."""


def within_budget(
    decision: ScalingDecision,
    *,
    last: RoundRecord | None,
    last_usd: Mapping[str, float],
    remaining_usd: float,
    rounds_left: int | None,
    drawn: bool = False,
) -> ScalingDecision:
    """The decision, or as many actors as the budget pays in every round that is left; at least one.

    `last_usd` is what `last` cost, by function. The actors' and the learners' part is taken to grow in proportion to
    the number of actors, since learners go over what actors sample; but not the learners' if their batches are `drawn`
    from a replay, as large in every round. The rest is taken to stay. What is left is spread
    evenly over the rounds that are left; where their number is unknown (`rounds_left` None) a round may take a tenth
    of it, so that it is never spent at once. Without a last round nothing is known, and the decision stands.
    """
    functions = GROWING if drawn else GROWING | LEARNING
    growing = math.fsum(usd for function, usd in last_usd.items() if function in functions)
    if last is None or growing <= 0:
        return decision
    per_actor = growing / max(last.actors, 1)
    fixed = math.fsum(last_usd.values()) - growing
    for_a_round = max(remaining_usd, 0.0) * (SHARE_OF_REST if rounds_left is None else 1 / max(rounds_left, 1))
    paid = max(math.floor(min((for_a_round - fixed) / per_actor, float(decision.actors)) + TOLERANCE), 1)
    inputs = {
        **decision.inputs,
        "budget": {
            "wanted": decision.actors,
            "remaining_usd": remaining_usd,
            "rounds_left": rounds_left,
            "round_usd": for_a_round,
            "actor_usd": per_actor,
            "fixed_usd": fixed,
        },
    }
    if paid >= decision.actors:
        return replace(decision, inputs=inputs)
    rounds = "a tenth of it for one round" if rounds_left is None else f"for {max(rounds_left, 1)} rounds"
    reason = (
        f"{paid} actors instead of {decision.actors}: {remaining_usd:.6f} USD are left, {rounds}, and a round costs "
        f"{per_actor:.6f} USD an actor and {fixed:.6f} USD besides (wanted since {decision.reason})"
    )
    return ScalingDecision(paid, reason, inputs)
