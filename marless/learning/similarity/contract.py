"""A contract test for similarities, of marless and of other packages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from marless.learning.similarity.measures import (
    LEAST_SAMPLES,
    Behaviour,
    BoolArray,
    Choices,
    FloatArray,
    Normals,
    Similarity,
)


def check_similarity(similarity: Similarity) -> None:
    """Measure synthetic agents, edge cases included; raises AssertionError, naming the broken rule.

    Agents 0 and 1 behave alike, and agent 2 does not: its distance from both must be the largest.
    """
    for discrete in (True, False):
        alike = sample_behaviour(discrete=discrete)
        far_NN = _measured(similarity, alike)
        assert max(far_NN[0, 1], far_NN[1, 0]) < min(far_NN[0, 2], far_NN[1, 2]), (
            f"agents 0 and 1 behave alike, and agent 2 does not, but the distances are {far_NN.tolist()}"
        )
        again = similarity.distances(alike, np.random.default_rng(0))
        assert again.tobytes() == far_NN.tobytes(), "equal inputs and an equal generator must give equal distances"
        for odd in (
            sample_behaviour(discrete=discrete, samples=LEAST_SAMPLES),
            sample_behaviour(discrete=discrete, agents=1),
            sample_behaviour(discrete=discrete, stuck=True),
        ):
            _measured(similarity, odd)


def sample_behaviour(
    *, discrete: bool = True, agents: int = 3, samples: int = 200, stuck: bool = False, seed: int = 0
) -> Behaviour:
    """Synthetic agents with 4 observations and 3 actions or action components; all but the last behave alike.

    `stuck`: all observations are equal, and each agent always takes the same action.
    """
    rng = np.random.default_rng(seed)
    weight_N4A = np.repeat(rng.normal(size=(1, 4, 3)), agents, axis=0).astype(np.float32) * 2
    weight_N4A[agents - 1] *= -1 if agents > 1 else 1
    obs_NSO = rng.normal(1.0, 1.0, (agents, samples, 4)).astype(np.float32)
    if stuck:
        obs_NSO[:] = 1

    def act(obs_MO: FloatArray, legal_MA: BoolArray | None) -> Choices | Normals:
        mean_NMA = np.einsum("mo,noa->nma", obs_MO, weight_N4A)
        if not discrete:
            return Normals(mean_NMA, np.full_like(mean_NMA, 0.5))
        weights_NMA = np.exp(mean_NMA) if legal_MA is None else np.exp(mean_NMA) * legal_MA
        return Choices(weights_NMA / weights_NMA.sum(axis=2, keepdims=True))

    mean_NSA = np.einsum("nso,noa->nsa", obs_NSO, weight_N4A)
    action_NSA: NDArray[np.float32] = mean_NSA.astype(np.float32)
    if discrete:
        action_NSA = np.eye(3, dtype=np.float32)[mean_NSA.argmax(axis=2)]
    elif not stuck:
        action_NSA = (action_NSA + 0.5 * rng.normal(size=mean_NSA.shape)).astype(np.float32)
    return Behaviour(obs_NSO, action_NSA, None, act)


def _measured(similarity: Similarity, behaviour: Behaviour) -> NDArray[np.float64]:
    far_NN = similarity.distances(behaviour, np.random.default_rng(0))
    agents, what = len(behaviour.obs), f"{behaviour.obs.shape[:2]} agents and samples"
    assert far_NN.shape == (agents, agents), f"{what}: distances must be [{agents}, {agents}], got {far_NN.shape}"
    assert np.isfinite(far_NN).all(), f"{what}: distances must be finite, got {far_NN.tolist()}"
    assert (far_NN >= 0).all(), f"{what}: distances must be at least 0, got {far_NN.tolist()}"
    assert (far_NN == far_NN.T).all(), f"{what}: distances must be symmetric, got {far_NN.tolist()}"
    assert (far_NN.diagonal() == 0).all(), f"{what}: an agent is at no distance from itself, got {far_NN.diagonal()}"
    return far_NN
