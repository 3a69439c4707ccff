"""Clusters agents by their distances. It imports NumPy and scikit-learn; import it only when a decision needs it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

STARTS = 10
SEED = 0
"""Seed of K-Means' starting points, a constant, so that a decision depends on its distances alone."""
DIGITS = 9
"""Decimals to which distances relative to the largest are rounded, so that rounding errors create no clusters."""
MOST_CHOICES = 20_000
"""Maximum number of sets of medoids for an exhaustive search; with more, the search is greedy."""
Matrix = Sequence[Sequence[float]]


def kmeans(distances: Matrix, groups: int) -> tuple[int, ...]:
    """A cluster label per agent: K-Means on the rows of the distance matrix, with at most as many clusters as distinct
    rows.

    Inferred, as K-Means needs vectors: agents are similar if their distances to all agents are similar. Deterministic:
    `STARTS` seeded starts, and Lloyd's algorithm on one thread.
    """
    far_NN = np.asarray(distances, np.float64)
    # Agents that are all alike have no distance to divide by.
    rows_NN = (far_NN / (far_NN.max() or 1.0)).round(DIGITS)
    distinct = len(np.unique(rows_NN, axis=0))
    model = KMeans(n_clusters=min(groups, distinct), n_init=STARTS, random_state=SEED, algorithm="lloyd")
    with threadpool_limits(1):
        return tuple(int(label) for label in model.fit_predict(rows_NN))


def kmedoids(distances: Matrix, groups: int) -> tuple[int, ...]:
    """A cluster label per agent: K-medoids, which minimises the sum of distances to the nearest medoid.

    Exact if there are at most `MOST_CHOICES` sets of medoids (six agents, twelve agents); else a greedy choice,
    improved by the best swap until none helps. Ties go to the first.
    Source: Kaufman and Rousseeuw 1990.
    """
    far_NN = np.asarray(distances, np.float64)
    agents = len(far_NN)
    if math.comb(agents, groups) <= MOST_CHOICES:
        medoids = min(itertools.combinations(range(agents), groups), key=lambda chosen: _cost(far_NN, chosen))
    else:
        medoids = _improved(far_NN, _greedy(far_NN, groups))
    return tuple(int(label) for label in far_NN[:, list(medoids)].argmin(axis=1))


def _cost(far_NN: NDArray[np.float64], medoids: Sequence[int]) -> float:
    return float(far_NN[:, list(medoids)].min(axis=1).sum())


def _greedy(far_NN: NDArray[np.float64], groups: int) -> tuple[int, ...]:
    medoids: tuple[int, ...] = ()
    while len(medoids) < groups:
        others = [i for i in range(len(far_NN)) if i not in medoids]
        medoids = (*medoids, min(others, key=lambda i: _cost(far_NN, (*medoids, i))))
    return medoids


def _improved(far_NN: NDArray[np.float64], medoids: tuple[int, ...]) -> tuple[int, ...]:
    while True:
        swaps = [
            tuple(sorted({*medoids} - {out} | {new}))
            for out in medoids
            for new in range(len(far_NN))
            if new not in medoids
        ]
        best = min(swaps, key=lambda chosen: _cost(far_NN, chosen))
        # A swap that only keeps the cost ends the search, too: else two equal choices could alternate for ever.
        if _cost(far_NN, best) >= _cost(far_NN, medoids):
            return medoids
        medoids = best
