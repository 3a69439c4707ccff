"""Number of groups when sharing begins, and the assignment of agents to them.

Source: Wei et al. 2025 (MARLess), §4.2: on the j-th enabling of sharing, N' = min(2^j, 2^(⌊log2 N⌋ + 1)) groups of N
agents, by K-Means. Inferred: the clamp to N, how N' is divided among agent classes, and the input of K-Means.
Importing this module does not import NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

Schedule = Literal["printed", "figure"]
"""Largest number of groups: printed: 2^(⌊log2 N⌋ + 1), clamped to N; figure: 2^⌊log2 N⌋, as in the paper's fig. 12."""
Method = Literal["kmeans", "kmedoids"]
Matrix = Sequence[Sequence[float]]
"""[N, N] distances: symmetric, 0 on the diagonal."""


def groups_wanted(enabling: int, agents: int, schedule: Schedule) -> int:
    """N' at the `enabling`-th time (from 1) that sharing begins among `agents` agents."""
    highest = agents.bit_length() - (schedule == "figure")  # ⌊log2 N⌋ + 1, or ⌊log2 N⌋
    return min(1 << min(enabling, highest), agents)


def divided(groups: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Number of groups of each agent class: one each, the others to the classes with the most agents per group.

    A class never has more groups than agents; ties go to the first class. The sum exceeds `groups` only if there are
    more classes than that.
    """
    counts = [1] * len(sizes)
    while sum(counts) < min(groups, sum(sizes)):
        crowded = max(range(len(sizes)), key=lambda i: (sizes[i] / counts[i], -i))
        counts[crowded] += 1
    return tuple(counts)


def labels(distances: Matrix, groups: int, method: Method) -> tuple[int, ...]:
    """The group of each agent, numbered in order of appearance; fewer groups if fewer agents differ.

    For one group, or one per agent, only the size of `distances` is used.
    """
    if groups >= len(distances):
        return tuple(range(len(distances)))
    if groups == 1:
        return (0,) * len(distances)
    from marless.jobs.sharing import clustering

    found = (clustering.kmeans if method == "kmeans" else clustering.kmedoids)(distances, groups)
    numbers = {label: number for number, label in enumerate(dict.fromkeys(found))}
    return tuple(numbers[label] for label in found)


def highest_curvature(policies: Sequence[str], curvature: Mapping[str, float | None]) -> str:
    """The policy with the highest C = −λ_max/λ_min, whose weights a group starts from (§4.2).

    Ties go to the first. A policy with unknown C is returned only if all are unknown.
    """
    known = [policy for policy in policies if curvature.get(policy) is not None]
    return max(known, key=lambda policy: curvature[policy] or 0.0) if known else policies[0]
