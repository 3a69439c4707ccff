"""Kullback-Leibler divergences between agents' samples. Imports NumPy, SciPy and scikit-learn: learners only.

Shapes: N agents, S samples of each, D features, d principal components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import gaussian_kde
from sklearn.decomposition import PCA

from marless.core.interruption import Stopped, check, never
from marless.learning.similarity.measures import Behaviour

FloatArray = NDArray[np.float64]

BLUR = 0.1
"""Standard deviation of the noise added to each component, in standard deviations of a feature, the same for all
agents. Without it, an agent that always acts the same has a singular covariance and no density. Differences much
smaller than this are not resolved."""


@dataclass(frozen=True)
class Densities:
    """The similarity `kde`: symmetrised KL divergences of kernel density estimates."""

    dimensions: int
    variance: float

    def distances(self, behaviour: Behaviour, rng: np.random.Generator) -> FloatArray:
        """(KL_ij + KL_ji) / 2 in nats, [N, N] float64."""
        samples_NSD = np.concatenate([behaviour.obs, behaviour.action], axis=2).astype(np.float64)
        scores_NSd = self.compressed(samples_NSD)
        if not scores_NSd.shape[2]:
            return np.zeros((len(samples_NSD), len(samples_NSD)))
        return divergences(scores_NSd + BLUR * rng.standard_normal(scores_NSd.shape[1:]), behaviour.stopped)

    def compressed(self, samples_NSD: FloatArray) -> FloatArray:
        """[N, S, d], joint principal components of all agents' standardised samples.

        Constant features are left out; d = 0 if all are constant.
        """
        agents, count, features = samples_NSD.shape
        pooled = samples_NSD.reshape(-1, features)
        mean_D, std_D = pooled.mean(axis=0), pooled.std(axis=0)
        # A constant far from 0 has a deviation of rounding errors, which must not be scaled to 1.
        varies_D = std_D > 1e-8 * np.maximum(1, abs(mean_D))
        standard = (pooled[:, varies_D] - mean_D[varies_D]) / std_D[varies_D]
        if not standard.size:
            return np.empty((agents, count, 0))
        pca = PCA(svd_solver="covariance_eigh")
        scores = pca.fit_transform(standard)
        # Shares of the variance add up to 1 only up to rounding: at `variance` 1 none of the sums might reach it.
        enough = int(np.searchsorted(pca.explained_variance_ratio_.cumsum(), self.variance - 1e-12)) + 1
        kept = min(enough, self.dimensions, scores.shape[1], count // 4)  # half of the samples must span them
        return np.ascontiguousarray(scores[:, :kept]).reshape(agents, count, kept)


def divergences(scores_NSd: FloatArray, stopped: Stopped = never) -> FloatArray:
    """Symmetrised Monte-Carlo estimates of the KL divergence, clamped at 0, from samples in random order, [N, N].

    The density p of an agent is a Gaussian kernel density estimate with Scott's bandwidth on one half of its samples;
    over the other half, KL_ij = mean(log p_i − log p_j). On the same half, each sample would be at the centre of a
    kernel of p_i, and all agents would seem different.
    """
    agents, count, dimensions = scores_NSd.shape
    made_of, seen = scores_NSd[:, : count // 2], scores_NSd[:, count // 2 :]
    points = seen.reshape(-1, dimensions).T
    log_densities = []
    for own_Sd in made_of:
        check(stopped)
        log_densities.append(gaussian_kde(own_Sd.T, bw_method="scott").logpdf(points))
    log_p_NNS = np.stack(log_densities).reshape(agents, agents, -1)  # [i, j]: log density j at the samples of i
    own_NS = log_p_NNS[np.arange(agents), np.arange(agents)]
    kl_NN = np.maximum((own_NS[:, None] - log_p_NNS.transpose(1, 0, 2)).mean(axis=2), 0)
    both_NN: FloatArray = (kl_NN + kl_NN.T) / 2
    np.fill_diagonal(both_NN, 0)
    return both_NN
