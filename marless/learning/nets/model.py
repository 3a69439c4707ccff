"""The section `model` of a job: the nets of its policies and critics. Imports no NumPy."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from marless.core.errors import SpecError
from marless.core.limits import MAX_FRAMES, MAX_LAYERS, MAX_NAME, MAX_WIDTH
from marless.core.settings import Field, Section, constraint
from marless.learning.nets.kinds import LAYER_NORM, MLP, OF_FORMS, kind_of
from marless.learning.nets.module_kind import MAX_MEMORY, check_declared, is_module

Width: TypeAlias = Annotated[int, Field(gt=0, le=MAX_WIDTH)]
"""Units of a layer."""


_NONE = "none"


def _check_known(net: str) -> None:
    try:
        if is_module(net):
            check_declared(net)
        else:
            kind_of(net)
    except SpecError as error:
        raise ValueError(f"{error}") from None


class ModelSpec(Section):
    """The nets of every policy and critic: perceptrons, or recurrent nets."""

    net: str = Field(
        "mlp",
        max_length=MAX_NAME,
        check=_check_known,
        description="kind of net: mlp; nature or impala, of images; entities; or one of another package",
    )
    hidden: tuple[Width, ...] = Field(
        (64, 64), description="units of each hidden layer", min_length=1, max_length=MAX_LAYERS
    )
    activation: Literal["tanh", "relu"] = Field("tanh", description="non-linearity after each hidden layer")
    recurrent: Literal["none", "gru", "lstm"] = Field(
        "none", description="the last hidden layer has a memory of the episode: gru, gated recurrent units, or lstm"
    )
    module_memory: int = Field(
        0, ge=0, le=MAX_MEMORY, description="numbers that a module of torch remembers of each episode"
    )
    layer_norm: bool = Field(False, description="each hidden layer is normalised before its non-linearity")
    agent_id: bool | None = Field(
        None,
        description="the agent's id in its class is an input; null: where sharing.groups shares policies",
    )

    frames: int = Field(
        1,
        ge=1,
        le=MAX_FRAMES,
        description="last images that nets read at once",
    )

    normalise_observations: bool = Field(
        False,
        description="observations, and the global state of critics, are normalised by their running mean and deviation",
    )
    observation_clip: float | None = Field(
        10.0, gt=0, description="limit of normalised observations, in deviations; null: none"
    )

    @constraint
    def _one_memory(self) -> None:
        if self.recurrent != _NONE and self.net not in (MLP, self.recurrent):
            raise ValueError(
                f"recurrent: {self.recurrent} is for net: mlp; {self.net} brings a memory of its own, or none"
            )

    @constraint
    def _memory_of_modules(self) -> None:
        if self.module_memory and not is_module(self.kind):
            raise ValueError("module_memory is for net: module/…; leave it out")

    @constraint
    def _normalised_perceptrons(self) -> None:
        if self.layer_norm and (self.recurrent != _NONE or self.net not in (MLP, LAYER_NORM)):
            raise ValueError("layer_norm is for net: mlp with recurrent: none; leave it out")

    @property
    def kind(self) -> str:
        """The kind of the nets, see `marless.learning.nets.kinds`."""
        return self.recurrent if self.recurrent != _NONE else LAYER_NORM if self.layer_norm else self.net

    @property
    def of_vectors(self) -> Self:
        """The model of critics of the global state, a vector: perceptrons where policies read images or entities."""
        return self.model_copy(update={"net": MLP}) if self.net in OF_FORMS else self

    @property
    def memory(self) -> int:
        """H, numbers that a net remembers of each episode; 0 if it has no memory."""
        return self.module_memory if is_module(self.kind) else kind_of(self.kind).memory(tuple(self.hidden))

    @property
    def remembers(self) -> bool:
        """True if nets have a memory of the episode."""
        return self.memory > 0
