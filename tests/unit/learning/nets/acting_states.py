"""Policy states with random weights, as learners of any family publish them."""

from __future__ import annotations

import numpy as np

from marless.learning.envs.base import AgentClass
from marless.learning.nets import acting, acting_heads
from marless.learning.nets.acting import ActingState
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import GRULayout, Layout, layout
from marless.learning.nets.model import ModelSpec

PLAIN = Inputs()


def shape(agent_class: AgentClass, model: ModelSpec, acts: str, inputs: Inputs) -> Layout | GRULayout:
    """The layout of the acting net."""
    free = acting_heads.free_parameters(agent_class.action, acts)
    return layout(inputs.size(agent_class), model, acting_heads.outputs_of(agent_class.action, acts), free)


def state(
    agent_class: AgentClass,
    seed: int,
    *,
    recurrent: str = "none",
    acts: str = acting_heads.STOCHASTIC,
    inputs: Inputs = PLAIN,
    exploration: float | tuple[float, ...] | None = None,
    scale: float = 1.0,
) -> ActingState:
    """Far from uniform play, unless scaled down; all biases count."""
    model = ModelSpec.model_validate({"hidden": (7, 6), "recurrent": recurrent})
    net = shape(agent_class, model, acts, inputs)
    flat_D = np.random.default_rng(seed).normal(scale=scale, size=net.size).astype(np.float32)
    extra = {} if exploration is None else {acting_heads.EXPLORATION: np.atleast_1d(exploration).astype(np.float32)}
    metadata = acting.description(agent_class, model, acts=acts, inputs=inputs)
    return ActingState({**net.to_arrays("policy", flat_D), **extra}, metadata)
