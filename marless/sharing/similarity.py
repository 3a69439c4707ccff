"""The protocol of similarities, which measure how differently agents behave, and their registry.

Ours, and those of other packages: entry points of the group "marless.similarity". Importing this module, or any
similarity's config, imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from marless.algos.base import SimilarityConfig
from marless.errors import SpecError
from marless.interruption import Stopped, never
from marless.named import named
from marless.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FloatArray: TypeAlias = "NDArray[np.float32]"
BoolArray: TypeAlias = "NDArray[np.bool_]"

LEAST_SAMPLES = 8
"""Fewer samples per agent say nothing; then no similarity is measured."""


@dataclass(frozen=True)
class Choices:
    """What each policy does with discrete actions."""

    probability: FloatArray
    """float32 [N, M, A]."""


@dataclass(frozen=True)
class Normals:
    """What each policy does with continuous actions, in the units of the net: independent normal components."""

    mean: FloatArray
    """float32 [N, M, A]."""
    std: FloatArray
    """float32 [N, A]."""


@dataclass(frozen=True)
class Behaviour:
    """What the N agents of a class saw and did in a round: as many samples S of each, drawn without replacement."""

    obs: FloatArray
    """float32 [N, S, O]."""
    action: FloatArray
    """float32 [N, S, A]: 1 for the discrete action taken and 0 for others; or the components of a continuous one."""
    legal: BoolArray | None
    """[N, S, A], True = legal; None if every action always is."""
    policies: Callable[[FloatArray, BoolArray | None], Choices | Normals]
    """How the policy of each agent, as it was before the update, acts on any observations [M, O], legal [M, A]."""
    stopped: Stopped = field(default=never, compare=False)
    """True once nobody wants the distances any more; similarities whose work grows with the agents ask now and then."""


class Similarity(Protocol):
    """Runs in a thread of its own beside the update: it should take a small part of its time."""

    def distances(self, behaviour: Behaviour, rng: np.random.Generator) -> NDArray[np.float64]:
        """[N, N]: finite, at least 0, symmetric, 0 on the diagonal; the farther, the less alike.

        Equal inputs and an equal `rng` give equal results, bit for bit.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class SimilarityKind:
    """A similarity as the registry knows it."""

    config_type: type[SimilarityConfig]
    make: Callable[[Any], Similarity]  # Any: takes an instance of `config_type`
    """Also imports whatever it needs, so that no measurement waits for it."""
    package: str = ""
    """Top-level module that must be importable where learners run, if any."""
    install: str = ""
    """What to install to have that, as pip takes it."""


SIMILARITIES: Registry[SimilarityKind] = Registry(
    "similarity",
    "marless.similarity",
    "SIMILARITY",
    {name: f"marless.sharing.{name}" for name in ("kde", "policy_distance")},
)

similarity = SIMILARITIES.find
"""Look a similarity up; raises SpecError with the nearest match for a name that is not registered."""


def similarity_type(name: str) -> type[SimilarityConfig]:
    """The config of a similarity; raises SpecError as `similarity` does."""
    return similarity(name).config_type


def read_similarity(value: object) -> SimilarityConfig:
    """Read the section of a job that chooses a similarity; raises ValueError."""
    return named(value, SimilarityConfig, similarity_type, "similarity: {name: kde}", default="kde")


def check_similarity(config: SimilarityConfig) -> None:
    """Refuse a similarity whose package is missing here; raises SpecError, saying what to install."""
    kind = similarity(config.name)
    needs(f"sharing.similarity: {config.name}", kind.package, kind.install)


def make_similarity(config: SimilarityConfig) -> Similarity:
    """What measures as `config` says; the first time, it imports what it needs."""
    return similarity(config.name).make(config)


def needs(what: str, package: str, install: str) -> None:
    """Raise SpecError if `package` is named and cannot be imported."""
    if package and find_spec(package) is None:
        raise SpecError(f"{what} needs the package {package!r}: pip install '{install}'")
