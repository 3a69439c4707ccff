"""Reads metrics and stored state of past rounds for scaling policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from marless.core.group import Group
from marless.jobs.record import RoundRecord

LARGEST = 1e100
"""Larger values come from a division by almost zero, and would overflow in a variance."""
Series = dict[int, float]
"""Values by round, oldest first."""


def series(history: Sequence[RoundRecord], groups: Sequence[Group], metric: str, rounds: int) -> dict[str, Series]:
    """A metric of each policy of the next round, over at most the `rounds` newest rounds with the same groups.

    All series start anew when any group changes, as the window of MARLess's detector is cleared at every change (Wei
    et al. 2025). Values that are missing, not finite, or beyond `LARGEST` are left out.
    """
    found: dict[str, Series] = {group.policy: {} for group in groups}
    wanted = {(group.policy, group.agents) for group in groups}
    for record in islice(reversed(history), rounds):
        if {(group.policy, group.agents) for group in record.groups} != wanted:
            break
        for policy, values in found.items():
            value = record.metrics.get(policy, {}).get(metric, math.nan)
            # False for NaN, too.
            if abs(value) <= LARGEST:
                values[record.round] = float(value)
    return {policy: dict(reversed(values.items())) for policy, values in found.items()}


def remembered(history: Sequence[RoundRecord], rule: str) -> Mapping[str, Any]:  # Any: what JSON can hold
    """The inputs of the newest round's scaling decision if `rule` made it, else {}."""
    decisions = history[-1].decisions if history else ()
    return next((each.inputs for each in decisions if each.kind == "scaling" and each.rule == rule), {})
