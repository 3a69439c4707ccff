"""Clusters agents by their distances. Imports NumPy and scikit-learn, so import it only where a decision is made."""

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
"""Of K-Means' starting points: a constant, so that a decision follows from its distances alone."""
DIGITS = 9
"""Of distances over the largest one: what differs less is equal, and not more clusters are asked for than there are."""
MOST_CHOICES = 20_000
"""Sets of medoids that are all tried; beyond, they are improved one by one."""
Matrix = Sequence[Sequence[float]]


def kmeans(distances: Matrix, groups: int) -> tuple[int, ...]:
    """A label per agent: K-Means on the rows of the distance matrix.

    Inferred, for K-Means needs vectors: two agents are alike if they are equally far from all agents. Deterministic:
    `STARTS` seeded starts, and Lloyd's algorithm on one thread, for which more would only wait.
    """
    far_NN = np.asarray(distances, np.float64)
    rows_NN = (far_NN / (far_NN.max() or 1.0)).round(DIGITS)
    distinct = len(np.unique(rows_NN, axis=0))
    model = KMeans(n_clusters=min(groups, distinct), n_init=STARTS, random_state=SEED, algorithm="lloyd")
    with threadpool_limits(1):
        return tuple(int(label) for label in model.fit_predict(rows_NN))


def kmedoids(distances: Matrix, groups: int) -> tuple[int, ...]:
    """A label per agent: the medoids to which all agents together are nearest (Kaufman and Rousseeuw 1990).

    Exact where at most `MOST_CHOICES` sets of medoids exist (six agents, twelve agents); beyond, a greedy choice,
    improved by the best exchange until none helps. Ties go to the first.
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
        if _cost(far_NN, best) >= _cost(far_NN, medoids):
            return medoids
        medoids = best
