"""Sizes of the nets that learners publish, known before a job starts: what algorithms answer to `Algorithm.net_bytes`.

Each function is for one family; what they return is bytes by state. Imports NumPy, but no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from marless.core.group import Group
from marless.learning.algos.ddpg.algorithms import ReplayActorCriticConfig, SoftConfig
from marless.learning.algos.learner import Scope
from marless.learning.algos.q.algorithms import QConfig, QMIXConfig
from marless.learning.envs.base import Box, EnvSpaces
from marless.learning.nets.acting_heads import SQUASHED, acts_by, free_parameters, outputs_of
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import MixingLayout, layout
from marless.learning.nets.model import ModelSpec

_BYTES = 4
"""Of a float32."""
_WITH_ADAM = 3
"""Numbers per weight of a published net: the weight, and two moments of its gradient."""
_WITH_TARGET = 4
"""Likewise, where a target net follows the net."""


def ppo(
    scope: Scope,
    groups: Sequence[Group],
    spaces: EnvSpaces,
    model: ModelSpec,
    *,
    critic: Literal["own", "state", "joint", "shared"],
    target: bool = False,
    distribution: str = "normal",
) -> dict[str, int]:
    """PPO's family; `critic` as in `PPOLearner`, or "shared" if values are an output of the policy's net.

    `distribution` is as in its settings. `target`: a target net follows each policy.
    """
    nets: list[tuple[str, int]] = []
    for group in groups:
        agents = spaces.class_of(group.agents[0])
        inputs = Inputs.of(agents, model)
        seen = inputs.shape(agents)
        acts = acts_by(agents.action, distribution)
        outputs = outputs_of(agents.action, acts) + (critic == "shared")
        policy = layout(seen, model, outputs, free_parameters(agents.action, acts))
        nets.append((group.policy, policy.size * (_WITH_TARGET if target else _WITH_ADAM)))
        if critic in ("own", "state"):
            of_state = spaces.state_size + inputs.extra(agents.action)
            judging = layout(seen, model, 1) if critic == "own" else layout(of_state, model.of_vectors, 1)
            nets.append((group.policy, judging.size * _WITH_ADAM))
    if critic == "joint":
        team = sum(len(each.agents) for each in scope.agent_classes(spaces))
        nets.append((f"critic.{scope.name}", layout(spaces.state_size, model.of_vectors, team).size * _WITH_ADAM))
    return _by_state(nets)


def q(config: QConfig, scope: Scope, groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec) -> dict[str, int]:
    """The Q-learning family, of which only QMIX has a mixer with weights."""
    nets: list[tuple[str, int]] = []
    for group in groups:
        agents = spaces.class_of(group.agents[0])
        inputs = Inputs.of(agents, model, last_action=config.last_action).shape(agents)
        acting, trained = (
            layout(inputs, model, agents.action.n),
            layout(inputs, model, agents.action.n + config.dueling),
        )
        # actors read the weights that are merged from a state's value and the advantages of its actions
        nets.append((group.policy, acting.size + trained.size * (_WITH_TARGET - 1)))
    if isinstance(config, QMIXConfig):
        team = sum(len(each.agents) for each in scope.agent_classes(spaces))
        mixer = MixingLayout(spaces.state_size, team, config.embed, config.hypernet)
        nets.append(("mixer", mixer.size * _WITH_TARGET))
    return _by_state(nets)


def pqn(groups: Sequence[Group], spaces: EnvSpaces, model: ModelSpec) -> dict[str, int]:
    """Parallel Q-learning, which has neither target nets nor mixers."""
    nets = []
    for group in groups:
        agents = spaces.class_of(group.agents[0])
        net = layout(Inputs.of(agents, model).shape(agents), model, agents.action.n)
        nets.append((group.policy, net.size * _WITH_ADAM))
    return _by_state(nets)


def ddpg(
    config: ReplayActorCriticConfig,
    scope: Scope,
    groups: Sequence[Group],
    spaces: EnvSpaces,
    model: ModelSpec,
    *,
    critic: Literal["own", "joint"],
) -> dict[str, int]:
    """Actor-critics with a replay; `critic` as in `ActorCriticAlgorithm`."""
    soft = config if isinstance(config, SoftConfig) else None
    classes, critics = scope.agent_classes(spaces), (1 + config.twin) * _WITH_TARGET
    nets: list[tuple[str, int]] = []
    for group in groups:
        agents = spaces.class_of(group.agents[0])
        seen = Inputs.of(agents, model).shape(agents)
        outputs = outputs_of(agents.action, SQUASHED) if soft and isinstance(agents.action, Box) else agents.action.n
        nets.append((group.policy, layout(seen, model, outputs).size * (_WITH_ADAM if soft else _WITH_TARGET)))
        if soft and soft.entropy is None:
            nets.append((group.policy, _WITH_ADAM))
        if critic == "own":
            inputs = replace(seen, size=seen.size + agents.action.n)
            nets.append((group.policy, layout(inputs, config.critic_model(model), 1).size * critics))
    if critic == "joint":
        of_all = sum(
            len(each.agents) * (Inputs.of(each, model).stacked(each).obs_size + each.action.n) for each in classes
        )
        size = layout(of_all, config.critic_model(model).of_vectors, 1).size * critics
        nets += [(f"critic.{agent}", size) for each in classes for agent in each.agents]
    return _by_state(nets)


def _by_state(nets: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, numbers in nets:
        found[name] = found.get(name, 0) + numbers * _BYTES
    return found
