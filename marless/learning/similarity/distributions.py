"""Distances between action distributions of policies on the same observations. Imports NumPy and SciPy: learners only.

Shapes: N policies, M observations, A actions or action components.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon

from marless.core.interruption import check
from marless.learning.similarity.measures import Behaviour, Choices, Normals


class PolicyDistances:
    """The similarity `policy_distance`: mean distances of action distributions on the same observations."""

    def distances(self, behaviour: Behaviour, rng: np.random.Generator) -> NDArray[np.float64]:
        """Means over all agents' observations, [N, N]; a mean of metrics is a metric, too."""
        obs_MO = behaviour.obs.reshape(-1, behaviour.obs.shape[2])
        legal_MA = None if behaviour.legal is None else behaviour.legal.reshape(len(obs_MO), -1)
        acting = behaviour.policies(obs_MO, legal_MA)
        count = len(behaviour.obs)
        far_NN = np.zeros((count, count))
        for i, j in itertools.combinations(range(count), 2):
            check(behaviour.stopped)
            far_NN[i, j] = far_NN[j, i] = _apart(acting, i, j)
        return far_NN


def _apart(acting: Choices | Normals, i: int, j: int) -> float:
    """Mean distance of policies i and j: discrete: sqrt of the Jensen-Shannon divergence in bits, in [0, 1]; normal:
    W2 = sqrt(‖Δμ‖² + ‖Δσ‖²).
    """
    if isinstance(acting, Choices):
        p_MA, q_MA = (acting.probability[k].astype(np.float64) for k in (i, j))
        same_M = (p_MA == q_MA).all(axis=1)  # rounding errors could give the root of a negative number
        with np.errstate(invalid="ignore"):
            far_M = jensenshannon(p_MA, q_MA, base=2, axis=1)
        return float(np.where(same_M, 0, np.nan_to_num(far_M)).mean())
    mean_MA = acting.mean[i].astype(np.float64) - acting.mean[j]
    std_MA = acting.std[i].astype(np.float64) - acting.std[j]
    return float(np.sqrt((np.square(mean_MA) + np.square(std_MA)).sum(axis=1)).mean())
