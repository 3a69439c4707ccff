"""Made-up rounds of trajectories with everything that can happen in them, and learners to train on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import Learner, LearnerContext, RoundInput
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.off_policy.learner import OffPolicyLearner, draw_generator
from marless.learning.algos.training.passes import PassTimer
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.learning.nets.kinds import Precision
from marless.learning.nets.model import ModelSpec

AGENTS = ("a", "b", "c", "d")
DISCRETE = EnvSpaces(
    (AgentClass("scout", ("s",), 3, Discrete(2)), AgentClass("walker", AGENTS, 5, Discrete(4))),
    state_size=6,
    max_steps=None,
    masks=True,
    deaths=True,
)
CONTINUOUS = EnvSpaces((AgentClass("walker", AGENTS, 5, Box((-1.0, 0.0), (1.0, 2.0))),), state_size=6, max_steps=None)
MODEL = ModelSpec.model_validate({"hidden": (16, 8)})
INDEPENDENT = tuple(Group(agent, (agent,)) for agent in AGENTS)


def trajectory(
    spaces: EnvSpaces, seed: int, *, steps: int = 6, batch: int = 5, memory: tuple[int, ...] = ()
) -> Trajectory:
    """Random arrays of the declared shapes: cuts and deaths in mid-rollout, a bootstrap row for most cuts.

    With a `memory`, of so many numbers per class, episodes are carried.
    """
    rng = np.random.default_rng(seed)
    cut = rng.random((steps, batch)) < 0.2
    cut[-1] = True
    boot_index = np.flatnonzero(cut & (rng.random(cut.shape) < 0.8)).astype(np.int32)
    arrays: dict[str, np.ndarray] = {}
    schema = TrajectorySchema(spaces, steps, batch, True, carried=bool(memory), memory=memory)
    for name, (dtype, shape) in schema.shapes(len(boot_index)).items():
        kind, _, k = name.partition("/")
        if dtype == "float32":
            arrays[name] = rng.normal(size=shape).astype(np.float32)
        elif dtype == "uint8":
            arrays[name] = rng.integers(256, size=shape, dtype=np.uint8)
        elif kind == "action":
            arrays[name] = rng.integers(spaces.classes[int(k)].action.n, size=shape, dtype=np.int32)
        else:
            arrays[name] = rng.random(shape) < {"terminated": 0.1, "alive": 0.8, "mask": 0.7}.get(kind, 0.5)
        if kind == "log_prob":
            arrays[name] = arrays[name] * np.float32(0.2) - np.float32(1.2)
    arrays |= {"cut": cut, "boot_index": boot_index}
    for k in range(len(spaces.classes)):
        if f"mask/{k}" in arrays:  # what was done was legal
            np.put_along_axis(arrays[f"mask/{k}"], arrays[f"action/{k}"][..., None], True, axis=-1)
    return Trajectory(arrays)


def draws(made: OffPolicyLearner, given: RoundInput, count: int, times: int = 1) -> list[Batch]:
    """What the first gradient steps of a round draw."""
    return list(made._draws(given, draw_generator(given), count, times, PassTimer()))


def learner(
    name: str,
    spaces: EnvSpaces,
    groups: Sequence[Group],
    *,
    model: ModelSpec = MODEL,
    seed: int = 0,
    carried: bool = False,
    precision: Precision = "float32",
    **settings: object,
) -> Learner:
    """A learner of the class "walker" that holds fresh states for `groups`."""
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name, **settings})
    scope = next(
        each for each in scopes(algorithm, config, spaces) if spaces.class_of("a") in each.agent_classes(spaces)
    )
    made = algorithm.learner(config, LearnerContext(model, spaces, scope, "cpu", carried=carried, precision=precision))
    for state in made.names(groups):
        made.load(state, made.initial(state, seed))
    return made


def inputs(groups: Sequence[Group], trajectories: Sequence[Trajectory], number: int = 0) -> RoundInput:
    """Round `number` of a job with seed 11."""
    return RoundInput(number, 1000 * number, 11, tuple(groups), trajectories)


def flat(state: PolicyState) -> dict[str, bytes]:
    """Everything in a state, comparable bit for bit."""
    arrays = {**state.acting, **state.learning}
    return {name: array.tobytes() for name, array in arrays.items()}
