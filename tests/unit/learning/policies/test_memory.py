"""Teams that remember act call by call as they act in whole episodes, and forget where they are told to."""

from __future__ import annotations

import numpy as np
import pytest

import marless
from marless.core.errors import SpecError
from marless.learning.data.rollout import play
from marless.learning.envs.base import ActionArray, AgentClass, BoolArray, Box, FloatArray
from marless.learning.nets.inputs import Inputs
from marless.learning.policies.policy import Origin, Policy
from marless.learning.policies.team import Team
from tests.scripted_env import ScriptedEnv
from tests.unit.learning.nets.acting_states import state

(WALKER,) = ScriptedEnv().spaces.classes
ARM = AgentClass("arm", ("a", "b"), 3, Box((-9.0, -9.0), (9.0, 9.0)))
"""What is done continuously shows all that the net says."""
BOTH = Inputs(last_action=True, known=("a", "b"))
OBS = {"a": [0.5, -1.0, 1.0], "b": [0.25, 0.0, -0.5]}


def _team(
    *groups: tuple[str, ...], recurrent: str = "gru", inputs: Inputs = BOTH, agent_class: AgentClass = ARM
) -> Team:
    states = [
        state(agent_class, i, recurrent=recurrent, inputs=inputs, scale=1.0 if agent_class is WALKER else 0.3)
        for i, _ in enumerate(groups)
    ]
    named = zip(groups, states, strict=True)
    policies = [Policy(name=f"p{i}", agents=agents, version=1, state=each) for i, (agents, each) in enumerate(named)]
    return Team.of(policies, Origin())


def _steps(team: Team, steps: int, obs: dict = OBS) -> list[dict[str, list]]:
    """What is done in so many steps."""
    return [{agent: did.tolist() for agent, did in team.act(obs).items()} for _ in range(steps)]


class Called:
    """A team behind the protocol of rollouts, through nothing but `begin` and `act`."""

    def __init__(self, team: Team, agents: AgentClass) -> None:
        self._team, self._agents = team, agents.agents

    def begin(self, batch: int) -> None:
        self._team.begin()

    def reset_memory(self, anew_NB: BoolArray) -> None:
        for agent, anew_B in zip(self._agents, anew_NB, strict=True):
            self._team.begin(anew_B, agents=[agent])

    def greedy(self, obs_NBO: FloatArray, mask_NBA: BoolArray) -> ActionArray:
        masks = dict(zip(self._agents, mask_NBA, strict=True))
        did = self._team.act(dict(zip(self._agents, obs_NBO, strict=True)), masks=masks)
        return np.stack([did[agent] for agent in self._agents])

    def to_env(self, action: ActionArray) -> ActionArray:
        return action


@pytest.mark.parametrize("groups", [[("a",), ("b",)], [("a", "b")]])
@pytest.mark.parametrize("inputs", [Inputs(), BOTH])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_call_by_call_is_as_in_whole_episodes(recurrent, inputs, groups):
    team = _team(*groups, recurrent=recurrent, inputs=inputs, agent_class=WALKER)
    together, called = ScriptedEnv(5), ScriptedEnv(5)
    for seed in (1, 2):
        play(together, team.acting(together.spaces), episodes=23, seed=seed)
        play(called, [Called(team, WALKER)], episodes=23, seed=seed)
    np.testing.assert_array_equal(np.stack(called.received), np.stack(together.received))
    assert len(np.unique(np.stack(called.received))) > 1


def test_begin_forgets_and_acting_remembers():
    team = _team(("a",), ("b",))
    first, goes_on = _steps(team, 3), _steps(team, 3)
    team.begin()
    assert _steps(team, 3) == first
    assert all(step != later for step, later in zip(first, goes_on, strict=True))


def test_some_copies_may_begin_anew():
    team, copies = _team(("a", "b")), {agent: np.tile(seen, (3, 1)) for agent, seen in OBS.items()}
    first, _, third = _steps(team, 3, copies)
    team.begin()
    _steps(team, 2, copies)
    team.begin([1, 0, 0])
    (found,) = _steps(team, 1, copies)
    assert found == {agent: [first[agent][0], *third[agent][1:]] for agent in OBS}
    assert found["a"][0] != found["a"][1]


def test_an_agent_that_comes_back_may_begin_anew_alone():
    team = _team(("a",), ("b",))
    first, _, third = _steps(team, 3)
    team.begin()
    _steps(team, 2)
    team.begin(agents=["a"])
    (found,) = _steps(team, 1)
    assert found == {"a": first["a"], "b": third["b"]}


def test_agents_of_one_policy_remember_each_for_itself():
    team = _team(("a", "b"), inputs=Inputs())
    alone = [step["a"] for step in _steps(team, 3, {"a": OBS["a"]})]
    team.begin()
    assert [step["a"] for step in _steps(team, 3)] == alone
    assert alone[0] != alone[1]


def test_the_number_of_copies_may_not_change_before_new_episodes_begin():
    team = _team(("a",), ("b",))
    team.act({"a": OBS["a"]})
    with pytest.raises(SpecError, match=r"^a remembers 1 episodes and observes 2 copies; call begin\(\) to start new"):
        team.act({"a": [OBS["a"]] * 2})
    with pytest.raises(SpecError, match=r"^copies that begin anew must be of shape \[1\], as a acts .* got \[2\]$"):
        team.begin([True, False])
    team.act({"b": [OBS["b"]] * 2})  # who has not acted yet may
    team.begin()
    team.act({"a": [OBS["a"]] * 2})
    forgetful = _team(("a",), recurrent="none", inputs=Inputs())
    for batch in (3, 1, 2):
        forgetful.act({"a": [OBS["a"]] * batch})


def test_an_exported_policy_knows_its_agents_ids(tmp_path):
    team = _team(("a",), ("b",))
    team.export("p1", tmp_path / "b.safetensors")
    loaded = marless.load_policy(tmp_path / "b.safetensors")
    assert loaded.policies["p1"].obs_size == 3
    assert [step["b"] for step in _steps(team, 3)] == [step["b"] for step in _steps(loaded, 3, {"b": OBS["b"]})]


def test_an_agent_without_an_id_cannot_act():
    stranger = Policy(name="p", agents=("z",), version=1, state=state(WALKER, 1, inputs=BOTH))
    with pytest.raises(marless.core.errors.CorruptError, match=r"class p: the policy tells a, b apart .* knows no z"):
        Team.of([stranger], Origin())


@pytest.mark.parametrize("groups", [[("a",), ("b",)], [("a", "b")]])
def test_a_team_from_a_file_remembers_as_the_team_does(tmp_path, groups):
    team = _team(*groups)
    team.save(tmp_path / "team")
    held = marless.load_policy(tmp_path / "team")
    did = _steps(held, 5)
    assert did == _steps(team, 5)
    assert did[0] != did[1]  # it remembers: the observations are the same
