"""The PettingZoo adapter against a small game whose agents come, die, are cut off and leave."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence
from pettingzoo import ParallelEnv
from pettingzoo.butterfly.pistonball.pistonball import raw_env

from marless.core.errors import SpecError
from marless.core.process_environment import ENV_MODULES
from marless.learning.envs import base, registry
from marless.learning.envs.contract import check_env
from marless.learning.envs.pettingzoo.adapter import PettingZooEnv


@pytest.fixture(autouse=True)
def _allowed(monkeypatch):
    monkeypatch.setenv(ENV_MODULES, "aviary,no_such_zoo,tests")


class Aviary(ParallelEnv):
    """hawk_1 joins after the first step; `script` holds, step by step, who terminates and who is truncated."""

    metadata = {"name": "aviary"}
    possible_agents = ["hawk_0", "wren_0", "hawk_1"]

    def __init__(self, script, lingering=False):
        self.script, self.lingering, self.received = script, lingering, []

    def observation_space(self, agent):
        if agent.startswith("hawk"):
            return Box(-9, 9, (2, 2))
        return Dict(observation=MultiDiscrete([2, 3]), action_mask=Box(0, 1, (3,), np.int8))

    def action_space(self, agent):
        return Box(np.array([[0.0, -1.0]]), np.array([[1.0, 2.0]])) if agent[0] == "h" else Discrete(3, start=5)

    def reset(self, seed=None, options=None):
        self.t, self.seed = 0, seed
        self.agents = ["hawk_0", "wren_0"]
        return self._seen(), {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.received.append(actions)
        acted = list(self.agents)
        dead, cut = self.script[self.t]
        self.t += 1
        if self.t == 1:
            self.agents.append("hawk_1")
        observations = self._seen()
        if not self.lingering:
            self.agents = [a for a in self.agents if a not in dead | cut]
        flags = [{a: a in who for a in acted} for who in (dead, cut)]
        return observations, dict.fromkeys(acted, 1.0 + self.t), *flags, {}

    def _seen(self):
        hawk = np.array([[1, 2], [3, self.t]])
        mask = np.array([1, 0, 1] if self.t % 2 == 0 else [0, 0, 0], np.int8)
        return {a: hawk if a[0] == "h" else {"observation": np.array([1, 2]), "action_mask": mask} for a in self.agents}

    def state(self):
        return np.array([[self.t, len(self.agents)]])


def make(monkeypatch, *script, batch=1, **options):
    built = []

    def parallel_env(**given):
        built.append(Aviary([(set(dead), set(cut)) for dead, cut in script], **given))
        return built[-1]

    monkeypatch.setitem(sys.modules, "aviary", SimpleNamespace(parallel_env=parallel_env))
    return registry.make("pettingzoo/aviary", options, batch), built


def act(env, first=0.5, wren=0):
    hawks = np.full((2, env.batch, 2), first, np.float32)
    return env.step((hawks, np.full((1, env.batch), wren, np.int32)))


def test_spaces_are_grouped_and_flattened(monkeypatch):
    env, _ = make(monkeypatch, ("", ""))
    hawks, wrens = env.spaces.classes
    assert (hawks.name, hawks.agents, hawks.obs_size) == ("hawk", ("hawk_0", "hawk_1"), 4)
    assert hawks.action == base.Box(low=(0.0, -1.0), high=(1.0, 2.0))
    assert (wrens.name, wrens.agents, wrens.obs_size, wrens.action) == ("wren", ("wren_0",), 5, base.Discrete(3))
    assert (env.spaces.state_size, env.spaces.masks, env.spaces.deaths) == (2, True, True)


def test_views_actions_and_a_joining_agent(monkeypatch):
    env, built = make(monkeypatch, ("", ""), ("", ""))
    frame = env.reset(3)
    assert frame.obs[0][:, 0].tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]
    assert frame.obs[1][0, 0].tolist() == [0, 1, 0, 0, 1]
    assert frame.alive[0][:, 0].tolist() == [True, False]
    assert frame.masks[1][0, 0].tolist() == [True, False, True]
    assert frame.state.tolist() == [[0, 2]]
    step = act(env, wren=2)
    assert built[0].received[0]["wren_0"] == 7
    assert built[0].received[0]["hawk_0"].tolist() == [[0.5, 0.5]]
    assert step.frame.alive[0][:, 0].tolist() == [True, True]
    assert step.rewards[0][:, 0].tolist() == [2.0, 0.0]
    assert step.frame.masks[1][0, 0].tolist() == [True, False, False]  # nothing is legal: only action 0 is left
    assert not step.ended.any()


def test_a_death_is_terminal_and_leaves_zeros(monkeypatch):
    env, _ = make(monkeypatch, (["hawk_0"], ""), ("", ""))
    env.reset(0)
    step = act(env)
    assert step.terminated[0][:, 0].tolist() == [True, False]
    assert step.rewards[0][:, 0].tolist() == [2.0, 0.0]
    assert step.frame.alive[0][:, 0].tolist() == [False, True]
    assert not step.frame.obs[0][0].any()
    assert not step.ended.any()
    assert not act(env).terminated[0][0].any()


def test_the_episode_is_truncated_when_the_last_are_cut_off(monkeypatch):
    env, _ = make(monkeypatch, (["wren_0"], ""), ("", ["hawk_0", "hawk_1"]))
    env.reset(0)
    act(env)
    step = act(env)
    assert step.truncated.tolist() == step.ended.tolist() == [True]
    assert not step.terminated[0].any()
    assert step.final.obs[0][:, 0].tolist() == [[1, 2, 3, 2], [1, 2, 3, 2]]
    assert step.final.alive[1].tolist() == [[False]]
    assert step.frame.obs[0][:, 0].tolist() == [[1, 2, 3, 0], [0, 0, 0, 0]]


def test_an_episode_that_all_have_left_by_their_own_end_is_not_truncated(monkeypatch):
    env, _ = make(monkeypatch, (["wren_0", "hawk_0"], ""), (["hawk_1"], ""))
    env.reset(0)
    act(env)
    step = act(env)
    assert step.ended.tolist() == [True]
    assert step.truncated.tolist() == [False]
    assert step.terminated[0][:, 0].tolist() == [False, True]


def test_an_agent_truncated_while_others_go_on_shows_its_end_once_and_has_not_terminated(monkeypatch):
    env, _ = make(monkeypatch, ("", ""), ("", ["wren_0"]), ("", ""))
    env.reset(0)
    act(env)
    step = act(env)
    assert step.terminated[1].tolist() == [[False]]
    assert not step.truncated.any()
    assert not step.ended.any()
    assert step.frame.alive[1].tolist() == [[False]]
    assert step.frame.obs[1][0, 0].tolist() == [0, 1, 0, 0, 1]  # from which the learner bootstraps
    assert step.frame.masks[1][0, 0].tolist() == [True, False, True]
    later = act(env).frame
    assert not later.obs[1].any()
    assert later.masks[1][0, 0].tolist() == [True, False, False]  # whoever is absent may only do 0


def test_an_agent_that_vanishes_without_a_flag_or_without_an_end_to_show_has_terminated(monkeypatch):
    env, built = make(monkeypatch, ("", ["wren_0"]), ("", ""))
    env.reset(0)
    honest = built[0]._seen
    monkeypatch.setattr(built[0], "_seen", lambda: {a: o for a, o in honest().items() if a != "wren_0"})
    assert act(env).terminated[1].tolist() == [[True]]


def test_an_agent_nobody_declared_is_refused(monkeypatch):
    env, built = make(monkeypatch, ("", ""))
    env.reset(0)
    honest = built[0].step

    def step(actions):
        answer = honest(actions)
        built[0].agents.append("owl_0")
        answer[0]["owl_0"] = 1
        return answer

    monkeypatch.setattr(built[0], "step", step)
    with pytest.raises(SpecError, match="agent 'owl_0' takes part, which is not among its possible_agents"):
        act(env)


def test_the_state_is_not_asked_for_after_all_have_terminated_nor_where_it_is_not_needed(monkeypatch):
    everyone = ["wren_0", "hawk_0", "hawk_1"]
    env, _ = make(monkeypatch, (everyone, ""))
    env.reset(0)
    asked = []
    monkeypatch.setattr(Aviary, "state", lambda self: asked.append(self.t) or np.zeros(2))
    act(env)
    assert asked == [0]  # of the next episode alone
    env.without_state()
    assert env.reset(0).state is None
    assert act(env).final.state is None
    assert asked == [0]
    assert env.spaces.state_size == 0


def test_where_the_state_fails_at_a_truncation_the_last_one_stays(monkeypatch):
    everyone = ["wren_0", "hawk_0", "hawk_1"]
    env, _ = make(monkeypatch, ("", ""), ("", everyone))
    env.reset(0)
    act(env)

    def state(self):
        if not self.agents:
            raise RuntimeError("over")
        return np.array([self.t, 7])

    monkeypatch.setattr(Aviary, "state", state)
    step = act(env)
    assert step.final.state.tolist() == [[1, 3]]
    assert step.frame.state.tolist() == [[0, 7]]


@pytest.mark.parametrize(
    ("attribute", "broken", "message"),
    [
        (
            "_seen",
            lambda self: {a: np.full((2, 2), np.nan) for a in self.agents if a[0] == "h"},
            "agent 'hawk_0' of cop",
        ),
        ("state", lambda self: np.array([np.inf, 0]), "the state of copy 0 at step 1 of its episode holds NaN or inf"),
    ],
)
def test_numbers_that_are_not_finite_are_found_with_copy_agent_and_step(monkeypatch, attribute, broken, message):
    env, _ = make(monkeypatch, ("", ""), batch=2)
    env.reset(0)
    monkeypatch.setattr(Aviary, attribute, broken)
    with pytest.raises(SpecError, match=message) as caught:
        act(env)
    assert "at step 1 of its episode" in str(caught.value)


def test_a_reward_that_is_not_finite_is_found(monkeypatch):
    env, built = make(monkeypatch, ("", ""), ("", ""), batch=2)
    env.reset(0)
    act(env)
    honest = built[1].step
    monkeypatch.setattr(built[1], "step", lambda actions: (honest(actions)[0], {"hawk_0": np.nan}, {}, {}, {}))
    with pytest.raises(SpecError, match="agent 'hawk_0' of copy 1 at step 2 of its episode has reward nan"):
        act(env)


def test_agents_that_stay_listed_after_their_end_count_as_gone(monkeypatch):
    everyone = ["wren_0", "hawk_0", "hawk_1"]
    env, _ = make(monkeypatch, (["wren_0"], ""), (everyone, ""), lingering=True)
    env.reset(0)
    assert act(env).frame.alive[1].tolist() == [[False]]
    step = act(env)
    assert step.rewards[1].tolist() == [[0.0]]
    assert step.ended.tolist() == [True]


def test_the_contract_holds(monkeypatch):
    script = [(["hawk_0"], ""), ("", ["wren_0"]), ("", ""), ("", ["hawk_1"])]
    check_env(lambda batch: make(monkeypatch, *script, batch=batch)[0])


def test_every_episode_of_every_copy_has_a_seed_of_its_own(monkeypatch):
    everyone = ["wren_0", "hawk_0", "hawk_1"]
    env, built = make(monkeypatch, (everyone, everyone), batch=3)
    env.reset(1)
    first = [copy.seed for copy in built]
    act(env)
    second = [copy.seed for copy in built]
    assert len({*first, *second}) == 6
    env.reset(1)
    assert [copy.seed for copy in built] == first


class Undeclared(Aviary):
    """As found in the wild: spaces only as dictionaries, none for observations, agents named by numbers."""

    possible_agents = [0, 1]
    action_spaces = {0: Discrete(2), 1: Discrete(2)}
    observation_space = ParallelEnv.observation_space

    def action_space(self, agent):
        return self.action_spaces[agent]

    def reset(self, seed=None, options=None):
        self.agents = [0, 1]
        return {0: np.zeros(3), 1: np.zeros(3)}, {}

    def state(self):
        raise NotImplementedError


def test_observation_spaces_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "aviary", SimpleNamespace(build=lambda: Undeclared([])))
    spaces = registry.spaces("pettingzoo/aviary:build", {})
    (only,) = spaces.classes
    assert (only.name, only.agents, only.obs_size) == ("agent", ("agent_0", "agent_1"), 3)
    assert spaces.state_size == 0


class Wrapped(Undeclared):
    def state(self):
        return SimpleNamespace(agents=2).state()


class Broken(Undeclared):
    def state(self):
        return np.array(self.wind)


def test_an_environment_whose_state_is_broken_trains_without_one_and_says_why(monkeypatch):
    module = SimpleNamespace(wrapped=lambda: Wrapped([]), broken=lambda: Broken([]))
    monkeypatch.setitem(sys.modules, "aviary", module)
    assert registry.spaces("pettingzoo/aviary:wrapped", {}).state_size == 0
    broken = registry.spaces("pettingzoo/aviary:broken", {})
    assert broken.state_size == 0
    assert broken.no_state == "its state() is broken: AttributeError: 'Broken' object has no attribute 'wind'"


class Moody(Undeclared):
    """Has a state after the reset, and a different one, or none, after a step."""

    def __init__(self, later):
        super().__init__([])
        self._later, self._now = later, lambda: np.zeros(4)

    def state(self):
        return self._now()

    def step(self, actions):
        self._now, nobody = self._later, dict.fromkeys(actions, False)
        return self.reset()[0], dict.fromkeys(actions, 0.0), nobody, nobody, {}


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (lambda: None.position, "fails: AttributeError: 'NoneType' object has no attribute 'position'; algo"),
        (lambda: np.zeros(3), "has 3 numbers, after the first reset it had 4; algorithms that use no state"),
        (lambda: np.full(4, np.nan), "holds NaN or infinite values; algorithms that use no"),
    ],
)
def test_a_state_that_breaks_in_mid_episode_names_its_copy_and_step(monkeypatch, later, what):
    monkeypatch.setitem(sys.modules, "aviary", SimpleNamespace(build=lambda: Moody(later)))
    env = registry.make("pettingzoo/aviary:build", {}, 2)
    env.reset(0)
    with pytest.raises(SpecError, match=f"the state of copy 0 at step 1 of its episode {what}"):
        env.step((np.zeros((2, 2), np.int32),))


def module_with(space=None, action=None, **attributes):
    class Odd(Aviary):
        possible_agents = ["hawk_0"]

        def observation_space(self, agent):
            return space or Box(0, 1, (4,))

        def action_space(self, agent):
            return action or Discrete(2)

    return SimpleNamespace(parallel_env=lambda lazy=False: Odd([]), **attributes)


@pytest.mark.parametrize(
    ("path", "module", "options", "message"),
    [
        (
            "no_such_zoo.game_v0",
            None,
            {},
            "there is no module 'no_such_zoo' on this machine; install it, or add its folder to PYTHONPATH$",
        ),
        ("mpe2.simple_sprad_v3", None, {}, "did you mean 'mpe2.simple_spread_v3'"),
        ("mpe2.simple_spread_v3", None, {"n": 3}, "unknown option 'n'; did you mean 'N'. known: .*local_ratio"),
        ("mpe2.simple_spread_v3", None, {"local_ratio": 7}, "cannot be built with options .*local_ratio is a prop"),
        ("mpe2.simple_tag_v3", None, {"num_adversaries": -1}, r"its reset\(\) raises ZeroDivisionError"),
        ("aviary", module_with(), {"lasy": True}, "did you mean 'lazy'"),
        ("pettingzoo.butterfly.no_game_v1", None, {}, "did you mean 'pettingzoo.butterfly.[a-z_]+_v"),
        ("pettingzoo.butterfly.piston_v1", None, {}, "known: [a-z_., 0-9]+$"),  # only environments
        ("pettingzoo.sisl.multiwalker_v8", None, {}, "the installed version is 'pettingzoo.sisl.multiwalker_v9'$"),
        ("multiwalker_v8", None, {}, "the installed version is 'pettingzoo.sisl.multiwalker_v9'$"),
        ("sisl.multiwalkr_v9", None, {}, "did you mean 'pettingzoo.sisl.multiwalker_v9'.* known: "),
        ("mpe.simple_spread_v2", None, {}, "the installed version is 'mpe2.simple_spread_v3'$"),
        ("pettingzoo.mpe.simple_tag_v3", None, {}, "the installed version is 'mpe2.simple_tag_v3'$"),
        ("classic.leduc_holdem_v4", None, {}, r"needs 'rlcard', which .* pip install 'pettingzoo\[classic\]'"),
        ("aviary.owls", SimpleNamespace(), {}, "unknown module 'aviary.owls'"),
        ("aviary", SimpleNamespace(), {}, "neither 'parallel_env' nor 'env'"),
        ("aviary:Zoo", SimpleNamespace(), {}, "has no 'Zoo'"),
        ("aviary", module_with(action=MultiDiscrete([99] * 2)), {}, "9,801 combinations, .*; at most 4,096 are supp"),
        ("aviary", module_with(action=Sequence(Discrete(2))), {}, r"action space Sequence\(.* is not supported"),
        ("aviary", module_with(space=Sequence(Discrete(2))), {}, "observation space Sequence.* is not supported"),
    ],
)
def test_what_cannot_be_used_is_named(monkeypatch, path, module, options, message):
    if module:
        monkeypatch.setitem(sys.modules, "aviary", module)
    with pytest.raises(SpecError, match=message) as caught:
        registry.make(f"pettingzoo/{path}", options, 1)
    assert str(caught.value).startswith(f"environment pettingzoo/{path}: ")


@pytest.mark.parametrize(
    "raised", [SystemExit("I give up"), GeneratorExit(), KeyError("layout"), RuntimeError("x" * 10**7)]
)
def test_whatever_an_environment_raises_when_it_is_made_is_a_mistake_in_the_job(monkeypatch, raised):
    """In particular SystemExit, which would end the coordinator."""

    def parallel_env():
        raise raised

    monkeypatch.setitem(sys.modules, "aviary", SimpleNamespace(parallel_env=parallel_env))
    with pytest.raises(SpecError, match=f"cannot be made with these options: {type(raised).__name__}") as caught:
        registry.spaces("pettingzoo/aviary", {})
    assert len(str(caught.value)) < 700


def test_an_environment_that_cannot_be_closed_is_a_mistake_in_the_job(monkeypatch):
    monkeypatch.setattr(Aviary, "close", lambda self: sys.exit(1), raising=False)
    make(monkeypatch)
    with pytest.raises(SpecError, match="SystemExit: 1"):
        registry.spaces("pettingzoo/aviary", {})


def test_whole_numbers_as_continuous_actions_are_rounded(monkeypatch):
    monkeypatch.setattr(Aviary, "action_space", lambda self, agent: Box(0, 5, (2,), np.int64))
    env, built = make(monkeypatch, ((), ()), ((), ()))
    assert env.spaces.classes[0].action.high == (5.0, 5.0)
    env.reset(0)
    env.step((np.full((2, 1, 2), 1.7, np.float32), np.full((1, 1, 2), 0.2, np.float32)))
    assert built[0].received[0]["hawk_0"].tolist() == [2, 2]
    assert built[0].received[0]["wren_0"].dtype == np.int64


def test_turn_based_games_are_converted():
    env = registry.make("pettingzoo/pettingzoo.classic.tictactoe_v3", {}, 1)
    frame = env.reset(0)
    assert [c.agents for c in env.spaces.classes] == [("player_1", "player_2")]
    assert frame.masks[0][:, 0].sum(axis=-1).tolist() == [9, 1]  # player_2 waits
    for field in (0, 3, 1, 4, 2):  # player_1 fills the top row
        step = env.step((np.full((2, 1), field, np.int32),))
    assert step.rewards[0][:, 0].tolist() == [1, -1]
    assert step.terminated[0].all()
    assert step.ended.all()


def test_games_of_turns_that_all_take_are_observed_once_a_step_and_agent(monkeypatch):
    """PettingZoo's conversion observes every agent before its move, too, and drops what it saw."""
    options = {"n_pistons": 3, "continuous": False, "render_mode": "rgb_array"}
    env = registry.make("pettingzoo/pistonball_v6", options, 1, with_state=False)
    env.reset(0)
    observed = []
    drawn = raw_env.observe
    monkeypatch.setattr(raw_env, "observe", lambda game, agent: observed.append(agent) or drawn(game, agent))
    before = env._current_frame().obs[0].copy()
    frame = env.step((np.array([[0], [1], [2]], np.int32),)).frame
    assert observed == ["piston_0", "piston_1", "piston_2"]
    assert (frame.obs[0] != before).any()


class Choiceless(ParallelEnv):
    """Agent a has no legal action in the second step; in the last frame of each episode nobody has one."""

    metadata = {"name": "choiceless"}
    possible_agents = ["a", "b"]

    def observation_space(self, _):
        mask = Box(0, 1, (2,), np.int8)
        return Dict({"observation": Box(0, 1, (1,), np.float32), "action_mask": mask})

    def action_space(self, _):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self._t = list(self.possible_agents), 0
        return {each: self._seen(each) for each in self.agents}, {each: {} for each in self.agents}

    def step(self, actions):
        self._t += 1
        acted, over = self.agents, self._t == 3
        self.agents = [] if over else acted
        ends = dict.fromkeys(acted, over)
        return (
            {each: self._seen(each) for each in acted},
            dict.fromkeys(acted, 0.0),
            dict.fromkeys(acted, False),
            ends,
            {},
        )

    def _seen(self, agent):
        allowed = self._t != 3 and (agent, self._t) != ("a", 1)
        return {"observation": np.zeros(1, np.float32), "action_mask": np.full(2, allowed, np.int8)}


def test_agents_that_may_do_nothing_are_named_and_have_their_first_action():
    env = PettingZooEnv([Choiceless(), Choiceless()])
    frame = env.reset(0)
    assert env.without_choice == set()
    frame = env.step((np.zeros((2, 2), np.int32),)).frame
    assert frame.masks[0][:, 0].tolist() == [[True, False], [True, True]]
    assert env.without_choice == {"a"}
    for _ in range(5):
        env.step((np.zeros((2, 2), np.int32),))
    assert env.without_choice == {"a"}  # not those at the end of an episode
