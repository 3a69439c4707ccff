"""The protocol of similarities, which measure how differently agents behave, and their registry.

Other packages register similarities as entry points of the group "marless.similarity". Importing this module, with the
configs of marless's own similarities, does not import NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from marless.core.errors import SpecError
from marless.core.interruption import Stopped, never
from marless.core.registry import Registry
from marless.core.settings import Field, SimilarityConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FloatArray: TypeAlias = "NDArray[np.float32]"
BoolArray: TypeAlias = "NDArray[np.bool_]"

LEAST_SAMPLES = 8
"""Minimum number of samples per agent; with fewer, no similarity is measured."""


@dataclass(frozen=True)
class Choices:
    """Distributions of each policy over discrete actions."""

    probability: FloatArray
    """float32 [N, M, A]: policies, observations, actions."""


@dataclass(frozen=True)
class Normals:
    """Distributions of each policy over continuous actions, as they are recorded: independent normal components, or
    means and deviations of others.
    """

    mean: FloatArray
    """float32 [N, M, A]: policies, observations, components."""
    std: FloatArray
    """float32 [N, M, A]."""


@dataclass(frozen=True)
class Behaviour:
    """Observations and actions of the N agents of a class in a round: S samples of each, drawn without replacement."""

    obs: FloatArray
    """float32 [N, S, O]."""
    action: FloatArray
    """float32 [N, S, A]: 1 for the discrete action taken and 0 for others; or the components of a continuous one."""
    legal: BoolArray | None
    """bool [N, S, A], True = legal; None if every action always is."""
    policies: Callable[[FloatArray, BoolArray | None], Choices | Normals]
    """Action distributions of all agents' policies, as before the update, on observations [M, O], legal [M, A]."""
    stopped: Stopped = field(default=never, compare=False)
    """Returns True once the distances are no longer needed; similarities with long computations check it regularly."""


class Similarity(Protocol):
    """Measures how differently agents behave; runs concurrently with the update, and should take much less time."""

    def distances(self, behaviour: Behaviour, rng: np.random.Generator) -> NDArray[np.float64]:
        """Distances [N, N]: finite, at least 0, symmetric, 0 on the diagonal; larger for agents that differ more.

        Equal inputs and an equal `rng` give equal results, bit for bit.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SimilarityKind:
    """A registered similarity: its config type, how to make it, and the package that it needs."""

    config_type: type[SimilarityConfig]
    make: Callable[[Any], Similarity]  # Any: takes an instance of `config_type`
    """Makes the similarity, and imports its libraries, so that no measurement waits for them."""
    package: str = ""
    """Top-level module that must be importable where learners run; "": none."""
    install: str = ""
    """pip requirement that installs this module."""


SIMILARITIES: Registry[SimilarityKind] = Registry(
    "similarity",
    "marless.similarity",
    "SIMILARITY",
    {name: f"{__name__}:{name}" for name in ("kde", "policy_distance")},
)

similarity = SIMILARITIES.find
"""Look up a similarity by name; raises SpecError with the nearest match for an unknown name."""


def similarity_type(name: str) -> type[SimilarityConfig]:
    """The config type of a similarity; raises SpecError as `similarity` does."""
    return similarity(name).config_type


def check_similarity(config: SimilarityConfig) -> None:
    """Raise SpecError, with what to install, for a similarity whose package is missing here."""
    kind = similarity(config.name)
    needs(f"sharing.similarity: {config.name}", kind.package, kind.install)


def make_similarity(config: SimilarityConfig) -> Similarity:
    """Make the similarity of a config; the first call imports its libraries."""
    return similarity(config.name).make(config)


def needs(what: str, package: str, install: str) -> None:
    """Raise SpecError if `package` is not "" and cannot be imported."""
    if package and find_spec(package) is None:
        raise SpecError(f"{what} needs the package {package!r}: pip install '{install}'")


class KdeConfig(SimilarityConfig):
    """Symmetrised Kullback-Leibler divergence, in nats, between kernel density estimates.

    Source: Wei et al. 2025 (MARLess), §4.2: samples (observation, action) compressed by PCA, a kernel density estimate
    per agent, the Kullback-Leibler divergence of every pair.
    """

    name: Literal["kde"] = "kde"
    dimensions: int = Field(8, ge=1, le=32, description="largest number of principal components")
    variance: float = Field(
        0.95, gt=0, le=1, description="fraction of the variance that the principal components explain"
    )


def _densities(config: KdeConfig) -> Similarity:
    from marless.learning.similarity.densities import Densities

    return Densities(config.dimensions, config.variance)


kde = SimilarityKind(config_type=KdeConfig, make=_densities, package="sklearn", install="marless[sharing]")


class PolicyDistanceConfig(SimilarityConfig):
    """Mean Jensen-Shannon distance, in [0, 1], of discrete actions; mean 2-Wasserstein distance of normal ones.

    A substitute for MAPD (Hu et al.) that needs no training, and ours: distances of the action distributions
    themselves, over a pooled batch of observations of all agents.
    """

    name: Literal["policy_distance"] = "policy_distance"


def _distributions(_: PolicyDistanceConfig) -> Similarity:
    from marless.learning.similarity.distributions import PolicyDistances

    return PolicyDistances()


policy_distance = SimilarityKind(
    config_type=PolicyDistanceConfig, make=_distributions, package="scipy", install="marless[sharing]"
)
