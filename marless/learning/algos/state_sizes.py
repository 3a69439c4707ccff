"""What the states of policies, critics and mixers weigh, known before a job starts. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence

from marless.core.group import Group
from marless.learning.algos.algorithm import Algorithm, AlgorithmConfig
from marless.learning.algos.ddpg.config import DDPGConfig
from marless.learning.algos.learner import Scope
from marless.learning.algos.off_policy.config import OffPolicyConfig
from marless.learning.algos.q.config import QConfig, QMIXConfig
from marless.learning.envs.base import AgentClass, EnvSpaces
from marless.learning.nets import actions
from marless.learning.nets.inputs import Inputs
from marless.learning.nets.layout import layout
from marless.learning.nets.mixing import MixingLayout
from marless.learning.nets.model import ModelSpec

_BYTES = 4
"""Of a float32."""
_OF_ADAM = 3
"""Numbers per weight of a published state: the weight, and two moments of its gradient."""
_WITH_TARGET = 4
"""Likewise, where a target net follows the net: in off-policy algorithms."""


def published_bytes(
    algorithm: Algorithm,
    config: AlgorithmConfig,
    scope: Scope,
    groups: Sequence[Group],
    spaces: EnvSpaces,
    model: ModelSpec,
) -> dict[str, int]:
    """Bytes of each state that a scope's learner publishes every round for these groups, by name.

    It follows from the nodes of the algorithm's function graph and the nets of the families of marless: exact but for
    counters and names, and an estimate for other packages' algorithms whose nets differ.
    """
    weigh = _Nets(algorithm, config, scope, spaces, model)
    classes = {group.policy: spaces.class_of(group.agents[0]) for group in groups}
    found: dict[str, int] = {}
    for node in algorithm.functions(config, scope, groups, spaces):
        if node.function == "policy":
            weights = weigh.policy(classes[node.name])
        elif node.function == "critic":
            weights = weigh.critic(classes.get(node.name))
        else:
            weights = weigh.mixer() if node.function == "mixer" else 0
        if weights:
            found[node.name] = found.get(node.name, 0) + weights * _BYTES * weigh.numbers
    return found


class _Nets:
    """Numbers of weights of the nets of one scope."""

    def __init__(
        self, algorithm: Algorithm, config: AlgorithmConfig, scope: Scope, spaces: EnvSpaces, model: ModelSpec
    ) -> None:
        self.numbers = _WITH_TARGET if isinstance(config, OffPolicyConfig) else _OF_ADAM
        self._config, self._model = config, model
        self._classes = scope.agent_classes(spaces)
        self._state = spaces.state_size if algorithm.needs_state(config) else None

    def policy(self, agents: AgentClass) -> int:
        """The bytes of a policy of this class."""
        if not isinstance(self._config, QConfig):
            free = 0 if isinstance(self._config, DDPGConfig) else actions.free_parameters(agents.action)
            return layout(self._seen(agents), self._model, agents.action.n, free).size
        inputs = Inputs.of(agents, self._model, last_action=self._config.last_action).size(agents)
        return layout(inputs, self._model, agents.action.n + self._config.dueling).size

    def critic(self, agents: AgentClass | None) -> int:
        """The bytes of a critic of a policy of this class, or of one that several policies share (None)."""
        if isinstance(self._config, DDPGConfig):
            everyone = sum(len(each.agents) * (each.obs_size + each.action.n) for each in self._classes)
            inputs = self._seen(agents) + agents.action.n if agents else everyone
            return layout(inputs, self._config.critic_model(self._model), 1).size * (1 + self._config.twin)
        outputs = 1 if agents else sum(len(each.agents) for each in self._classes)
        ids = self._seen(agents) - agents.obs_size if agents else 0
        observed = agents.obs_size if agents else sum(each.obs_size for each in self._classes)
        return layout((observed if self._state is None else self._state) + ids, self._model, outputs).size

    def _seen(self, agents: AgentClass) -> int:
        """Numbers that an agent of this class observes, with its id."""
        return Inputs.of(agents, self._model).size(agents)

    def mixer(self) -> int:
        """The bytes of the mixer; 0 for one that is not QMIX's."""
        if not isinstance(self._config, QMIXConfig):
            return 0
        team = sum(len(each.agents) for each in self._classes)
        return MixingLayout(self._state or 0, team, self._config.embed, self._config.hypernet).size
