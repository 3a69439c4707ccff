"""What a job's states weigh, worked out before it starts, against the states that learners make."""

import pytest

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.jobs.job import prepare
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.learning.nets.model import ModelSpec
from tests.integration.running import spec

DISCRETE = EnvSpaces(
    (AgentClass("scout", ("s",), 300, Discrete(2)), AgentClass("walker", ("a", "b", "c"), 500, Discrete(4))),
    state_size=700,
    max_steps=None,
    rewards="cooperative",
)
BOXED = EnvSpaces((AgentClass("walker", ("a", "b", "c"), 500, Box((-1.0,) * 3, (1.0,) * 3)),), 700, None)
GROUPS = (Group("s", ("s",)), Group("a", ("a", "b")), Group("c", ("c",)))


ANY_NET = [
    ("ippo", {}, DISCRETE),
    ("ippo", {}, BOXED),
    ("impact", {}, DISCRETE),
    ("mappo", {}, DISCRETE),
    ("mappo", {"critic": "per_agent"}, BOXED),
    ("iql", {}, DISCRETE),
    ("vdn", {"dueling": True}, DISCRETE),
    ("qmix", {"last_action": True}, DISCRETE),
    ("pqn", {}, DISCRETE),
    ("pqn_vdn", {"reward_normalisation": False}, DISCRETE),
]
NO_MEMORY = [
    ("iddpg", {}, BOXED),
    ("iddpg", {"twin": True, "critic_hidden": [9]}, DISCRETE),
    ("maddpg", {"twin": True}, DISCRETE),
    ("sac", {}, BOXED),
    ("sac", {"entropy": 0.1, "twin": False}, DISCRETE),
    ("masac", {}, DISCRETE),
    ("td3", {}, BOXED),
    ("maddpg", {}, BOXED),
]


@pytest.mark.parametrize(
    ("name", "settings", "spaces", "recurrent", "ids"),
    [
        *((*case, "none", ids) for case in (*ANY_NET, *NO_MEMORY) for ids in (False, True)),
        *((*case, "gru", True) for case in ANY_NET),
    ],
)
def test_states_weigh_what_their_learners_make_them(name, settings, spaces, recurrent, ids):
    algorithm = registry.algorithm(name)
    model = ModelSpec.model_validate({"hidden": [16, 8], "recurrent": recurrent, "agent_id": ids})
    if recurrent == "gru" and name in ("iql", "vdn", "qmix"):
        settings = settings | {"replay": {"unit": "episodes"}}
    config = algorithm.config_type.model_validate({"name": name} | settings)
    for scope in scopes(algorithm, config, spaces):
        agents = {agent for each in scope.agent_classes(spaces) for agent in each.agents}
        groups = tuple(group for group in GROUPS if group.agents[0] in agents)
        learner = algorithm.learner(config, LearnerContext(model, spaces, scope, "cpu"))
        found = algorithm.net_bytes(config, scope, groups, spaces, model)
        assert found.keys() == {each for each in learner.names(groups) if not each.startswith(("replay.", "batches."))}
        for state, size in found.items():
            made = learner.initial(state, 0)
            weight = sum(array.nbytes for array in {**made.learning, **made.acting}.values())
            assert 0 <= weight - size <= 256, state  # counters, and moments of rewards


def test_a_job_whose_nets_are_too_large_to_publish_is_refused_before_it_starts():
    asked = spec(
        env={"name": "pettingzoo/butterfly.pistonball_v6", "options": {"render_mode": "rgb_array"}},
        model={"hidden": [64, 64]},
        actors={"count": 1, "envs": 1, "steps": 20},
    )
    with pytest.raises(
        SpecError, match=r"nets of piston weigh 4,8.. MiB .* numbers observed: up to 164,520.* may publish 512; "
    ):
        prepare(asked)
