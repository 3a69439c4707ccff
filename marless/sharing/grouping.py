"""Number of groups when sharing begins, and the assignment of agents to them.

Source: Wei et al. 2025 (MARLess), §4.2: on the j-th enabling of sharing, N' = min(2^j, 2^(⌊log2 N⌋ + 1)) groups of N
agents, by K-Means. Inferred: the clamp to N, how N' is divided among agent classes, and what K-Means is given.
Importing this module imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Schedule = Literal["printed", "figure"]
"""The most groups: 2^(⌊log2 N⌋ + 1), clamped to N; or, as figure 12 of the paper behaves, 2^⌊log2 N⌋."""
Method = Literal["kmeans", "kmedoids"]
Matrix = Sequence[Sequence[float]]
"""[N, N] distances: symmetric, 0 on the diagonal."""


def groups_wanted(enabling: int, agents: int, schedule: Schedule) -> int:
    """N' at the `enabling`-th time (from 1) that `agents` agents begin to share."""
    highest = agents.bit_length() - (schedule == "figure")  # ⌊log2 N⌋ + 1, or ⌊log2 N⌋
    return min(1 << min(enabling, highest), agents)


def divided(groups: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """N' groups among agent classes of `sizes` agents: one each, the others where agents per group are most.

    Never more groups than agents; ties go to the first class. More than `groups` in all if there are more classes.
    """
    counts = [1] * len(sizes)
    while sum(counts) < min(groups, sum(sizes)):
        crowded = max(range(len(sizes)), key=lambda i: (sizes[i] / counts[i], -i))
        counts[crowded] += 1
    return tuple(counts)


def labels(distances: Matrix, groups: int, method: Method) -> tuple[int, ...]:
    """The group of each agent, numbered in order of appearance; fewer groups where fewer agents differ.

    One group, or one per agent, needs no distances: `distances` then only says how many agents there are.
    """
    if groups >= len(distances):
        return tuple(range(len(distances)))
    if groups == 1:
        return (0,) * len(distances)
    from marless.sharing import clustering

    found = (clustering.kmeans if method == "kmeans" else clustering.kmedoids)(distances, groups)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(found))}
    return tuple(numbers[label] for label in found)


def highest_curvature(policies: Sequence[str], curvature: Mapping[str, float | None]) -> str:
    """The policy with the highest C = −λ_max/λ_min, whose weights a group starts from (§4.2).

    The first of equals; a policy whose C is unknown only if that of all is.
    """
    known = [policy for policy in policies if curvature.get(policy) is not None]
    return max(known, key=lambda policy: curvature[policy] or 0.0) if known else policies[0]
