"""Rounds whose episodes go on: learners see in two short rounds what they see in a long one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.core.state import PolicyState
from marless.learning.algos.ppo.learner import PPOLearner
from marless.learning.algos.ppo.post_process import critic_passes, estimate
from marless.learning.algos.q.learner import QLearner
from marless.learning.algos.training.round_tensors import upload
from marless.learning.algos.training.segments import Segments
from marless.learning.algos.training.table import tabulate
from marless.learning.data.rollout import Lane
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import ActionArray, BoolArray, FloatArray
from marless.learning.envs.synthetic import SyntheticEnv
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.coming import ComeAndGo

SPACES = replace(rounds.DISCRETE, classes=rounds.DISCRETE.classes[1:], max_steps=30)
STEPS, COPIES = 25, 16
GAMMA, LAMBDA = 0.95, 0.9


class Certain(ActingPolicies):
    """Samples without random numbers, so that actions do not depend on where a round ends."""

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        return self.greedy(obs_NBO, mask_NBA), np.zeros(obs_NBO.shape[:2], np.float32)


def _rounds(learner: PPOLearner, *steps: int) -> list[Trajectory]:
    """Rounds of one lane of as many steps each."""
    env = SyntheticEnv(SPACES, COPIES)
    lane = Lane(env)
    lane.begin(3)
    walkers = env.spaces.classes[0]
    policies = [Certain.from_states(walkers, [learner.state(agent) for agent in walkers.agents])]
    return [lane.roll(policies, steps=n, seed=i, with_state=True, index=0)[0] for i, n in enumerate(steps)]


def _learner(**settings: object) -> PPOLearner:
    made = rounds.learner("ippo", SPACES, rounds.INDEPENDENT, gamma=GAMMA, seed=4, **settings)
    assert isinstance(made, PPOLearner)
    return made


def _advantages(learner: PPOLearner, trajectory: Trajectory) -> np.ndarray:
    """[T, N, B]."""
    tensors = upload(tabulate([trajectory], 0, False), torch.device("cpu"))
    segments = Segments.of(tensors) if learner._remembers else None
    stacked = learner._stacks(rounds.inputs(rounds.INDEPENDENT, [trajectory]), parts=1)
    served = learner._policies.copies([(stack.names, stack.starts) for stack in stacked])
    judges = learner._judges(list(zip(stacked, served, strict=True)), learner._critics.copies)
    passes = critic_passes(judges, learner._seen(tensors), segments)
    advantage_N1S = estimate(passes, tensors, segments, learner._config).advantage
    return advantage_N1S.view(len(rounds.AGENTS), trajectory.steps, -1).transpose(0, 1).numpy()


def test_two_rounds_have_the_observations_and_actions_of_one() -> None:
    learner = _learner()
    (whole,) = _rounds(learner, 2 * STEPS)
    parts = _rounds(learner, STEPS, STEPS)
    assert parts[1]["resumed"].any()
    for name in ("obs/0", "action/0", "reward/0", "terminated/0", "alive/0", "mask/0", "state"):
        assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name]), name
    cut = np.concatenate([part["cut"] for part in parts])
    assert cut[STEPS - 1].all()
    assert np.array_equal(np.delete(cut, STEPS - 1, axis=0), np.delete(whole["cut"], STEPS - 1, axis=0))


def test_advantages_differ_by_what_comes_after_the_cut() -> None:
    """At step t of the first round by (γλ)^(T − t) times the advantage at T, unless the episode ends before; else by
    nothing, in particular for λ = 0 (Schulman et al. 2016, eq. 16).
    """
    learner = _learner(gae_lambda=LAMBDA)
    (whole,) = _rounds(learner, 2 * STEPS)
    long_TNB = _advantages(learner, whole)
    first_TNB, second_TNB = (_advantages(learner, part) for part in _rounds(learner, STEPS, STEPS))
    np.testing.assert_allclose(second_TNB, long_TNB[STEPS:], atol=1e-5)
    over_TNB = whole["terminated/0"] | whole["cut"][:, None]
    later_TNB = np.zeros_like(first_TNB)
    ahead_NB = long_TNB[STEPS]
    for t in reversed(range(STEPS)):
        ahead_NB = np.where(over_TNB[t], 0.0, GAMMA * LAMBDA * ahead_NB)
        later_TNB[t] = ahead_NB
    assert np.abs(later_TNB[-1]).max() > 0.1
    assert (later_TNB == 0).any()
    np.testing.assert_allclose(first_TNB + later_TNB, long_TNB[:STEPS], atol=1e-5)


def test_advantages_of_one_step_do_not_depend_on_where_rounds_end() -> None:
    learner = _learner(gae_lambda=0.0)
    (whole,) = _rounds(learner, 2 * STEPS)
    found = np.concatenate([_advantages(learner, part) for part in _rounds(learner, STEPS, STEPS)])
    np.testing.assert_allclose(found, _advantages(learner, whole), atol=1e-5)


@pytest.mark.parametrize("groups", [rounds.INDEPENDENT, (Group("a", ("a", "c")), Group("b", ("b", "d")))])
def test_policies_start_from_their_memory_and_critics_from_none(groups: tuple[Group, ...]) -> None:
    """So a critic's values in a round do not depend on the rounds before, only on what it has seen in this one."""
    model = rounds.MODEL.model_copy(update={"recurrent": "gru"})
    learner = rounds.learner("ippo", SPACES, groups, model=model, minibatches=2, seed=4)
    assert isinstance(learner, PPOLearner)
    trajectory = rounds.trajectory(SPACES, 1, steps=6, batch=5)
    rng = np.random.default_rng(0)
    memory = rng.normal(size=(4, 5, 8)).astype(np.float32)
    states = []
    for carried in ({}, {"memory/0": 0 * memory}, {"memory/0": memory}):
        for name in learner.names(groups):
            learner.load(name, learner.initial(name, 4))
        learner.update(rounds.inputs(groups, [Trajectory({**trajectory.arrays, **carried})]))
        states.append({name: learner.state(name) for name in learner.names(groups)})
    plain, empty, remembered = states
    for name, state in plain.items():
        assert rounds.flat(state) == rounds.flat(empty[name])
        same = {key for key, array in rounds.flat(state).items() if rounds.flat(remembered[name])[key] == array}
        assert {key for key in state.learning if key.startswith("critic")} <= same
        assert not any(key.startswith("policy") and key.endswith("weight") for key in same & state.acting.keys())


class Valued(Certain):
    """Keeps the values of the actions that it takes."""

    def sample(
        self, obs_NBO: FloatArray, mask_NBA: BoolArray | None, rng: np.random.Generator
    ) -> tuple[ActionArray, FloatArray]:
        action_NB = self.greedy(obs_NBO, mask_NBA)
        self.values.append(np.take_along_axis(self.q_NBA, action_NB[..., None].astype(np.intp), axis=2)[..., 0])
        return action_NB, np.zeros(action_NB.shape, np.float32)

    def _output(self, obs_NBO: FloatArray) -> FloatArray:
        output_NAB = super()._output(obs_NBO)
        self.q_NBA = output_NAB.transpose(0, 2, 1).copy()
        return output_NAB


@pytest.mark.parametrize("credit", [None, False, True], ids=["present", "coming-and-going", "credit"])
@pytest.mark.parametrize("last_action", [False, True])
@pytest.mark.parametrize("groups", [rounds.INDEPENDENT, (Group("a", ("a", "c")), Group("b", ("b", "d")))])
def test_a_replay_finds_the_values_that_actors_acted_by(
    groups: tuple[Group, ...], last_action: bool, credit: bool | None
) -> None:
    synthetic = SyntheticEnv(replace(SPACES, deaths=False, max_steps=None), COPIES)
    env = synthetic if credit is None else ComeAndGo(synthetic)
    spaces, model = env.spaces, rounds.MODEL.model_copy(update={"recurrent": "gru"})
    settings = {"replay": {"unit": "episodes"}, "warmup": 0, "batch": 40, "last_action": last_action}
    if credit:
        settings |= {"team_reward": "sum", "credit_after_death": True}
    learner = rounds.learner("iql", spaces, groups, model=model, carried=True, seed=4, **settings)
    assert isinstance(learner, QLearner)
    for seed, group in enumerate(groups):  # weights of any size, so that memory matters
        state, rng = learner.state(group.policy), np.random.default_rng(seed)
        wild = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in state.acting.items()}
        learner.load(
            group.policy, PolicyState({**wild, "exploration": np.zeros(1, np.float32)}, state.learning, state.metadata)
        )
    states = {agent: learner.state(g.policy) for g in groups for agent in g.agents}
    lane = Lane(env)
    lane.begin(5)
    for number, steps in enumerate((4, 6)):
        policy = Valued.from_states(spaces.classes[0], [states[agent] for agent in rounds.AGENTS])
        policy.values = []
        trajectory, _ = lane.roll([policy], steps=steps, seed=number, with_state=False, index=0)
    assert trajectory["resumed"].any()
    given = rounds.inputs(groups, [trajectory])
    learner._remember(given)
    training = learner._training(given, copies=False)
    (batch,) = rounds.draws(learner, given, training.count)
    acted_TNB, (policies,) = np.stack(policy.values), training._policies
    value_PM, _ = policies.function.values(policies.read(batch), double=learner._config.double)
    found_NM = torch.zeros(len(rounds.AGENTS), batch.steps * batch.width)
    policies.stack.spread(value_PM.unsqueeze(1), found_NM)
    found_NTE = found_NM.view(len(rounds.AGENTS), batch.steps, -1)
    starts = {trajectory["obs/0"][t, 0, b].tobytes(): (t, b) for t in range(6) for b in range(COPIES)}
    for column, row in enumerate(batch.row.tolist()):
        t, b = starts[learner._replay.take("obs/0", np.array([row]))[0, 0].tobytes()]
        length = int(learner._replay._length[row])
        np.testing.assert_allclose(
            found_NTE[:, :length, column].T, acted_TNB[t : t + length, :, b], rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("name", ["iql", "vdn", "qmix"])
@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_learners_with_a_replay_train_on_carried_episodes(name: str, recurrent: str) -> None:
    spaces = replace(SPACES, rewards="cooperative")
    model = rounds.MODEL.model_copy(update={"recurrent": recurrent})
    settings = {"replay": {"unit": "episodes"}, "warmup": 0, "batch": 8, "updates": 3, "last_action": True}
    learner = rounds.learner(name, spaces, rounds.INDEPENDENT, model=model, carried=True, **settings)
    memory = (4,) if recurrent == "none" else (8 + 4,)
    measure = Measure(curvature=CurvatureSpec(), noise=True)
    given = rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(spaces, seed, memory=memory) for seed in (1, 2)])
    metrics = learner.update(replace(given, measure=measure)).metrics
    assert all(np.isfinite(number) for found in metrics.values() for number in found.values())
    assert metrics["a"]["td_loss"] > 0
