"""A similarity: the distance of two agents is that of the frequencies of their actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from marless.core.settings import Field, SimilarityConfig
from marless.learning.similarity.measures import Behaviour, SimilarityKind

if TYPE_CHECKING:  # validating a job file must not load NumPy: import it in `make`, if you need it
    import numpy as np
    from numpy.typing import NDArray


class MySimilarityConfig(SimilarityConfig):
    """Settings of the section `sharing.similarity` of a job; `samples` per agent is inherited."""

    name: Literal["my_similarity"] = "my_similarity"
    power: float = Field(1.0, gt=0, description="of the distances")


class MySimilarity:
    """Measures N agents of one class, on a thread beside the update."""

    def __init__(self, config: MySimilarityConfig) -> None:
        self._power = config.power

    def distances(self, behaviour: Behaviour, rng: np.random.Generator) -> NDArray[np.float64]:
        """Distances [N, N]; random numbers may come from `rng` only."""
        share_NA = behaviour.action.mean(axis=1, dtype="float64")  # of [N, S, A]: one-hot, or continuous components
        distance_NN: NDArray[np.float64] = abs(share_NA[:, None] - share_NA).sum(axis=2) ** self._power
        return distance_NN


SIMILARITY = SimilarityKind(config_type=MySimilarityConfig, make=MySimilarity)
