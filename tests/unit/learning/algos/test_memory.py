"""Policies that remember: actors and learners agree on what, and what only they can do is learned.

Sampling, inference and learning are the real ones: rollouts in NumPy, weights carried over as policy states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos.learner import Learner, RoundInput
from marless.learning.algos.ppo.functions import PolicyFunction
from marless.learning.data.rollout import Lane, play, rollout
from marless.learning.envs.base import ActionArray, AgentClass, Box, Discrete, EnvSpaces, Frame, Transition
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.coming import ComeAndGo

AGENTS = ("a", "b")
INDEPENDENT = tuple(Group(agent, (agent,)) for agent in AGENTS)
SHARED = (Group("both", AGENTS),)


class _Recall:
    """Each agent sees a cue of its own, then nothing for 1 to 3 steps, then a signal to repeat it, which ends the
    episode. Copies go their own ways: those that end in a step start anew while others wait.

    Whoever does not remember knows nothing at the signal but that it is there: the best return is 0.5.
    """

    def __init__(self, batch: int, action: Discrete | Box) -> None:
        self.batch = batch
        self.spaces = EnvSpaces((AgentClass("player", AGENTS, 3, action),), state_size=6, max_steps=5)

    def reset(self, seed: int) -> Frame:
        self._rng = np.random.default_rng(seed)
        self._cue_NB = np.zeros((2, self.batch), np.int64)
        self._left_B = np.zeros(self.batch, np.int64)
        self._begin(np.ones(self.batch, np.bool_))
        return self._frame()

    def step(self, actions: tuple[ActionArray, ...]) -> Transition:
        ended_B = self._left_B == 0
        answer_NB = actions[0] if actions[0].ndim == 2 else actions[0][..., 0] > 0
        reward_NB = ((answer_NB == self._cue_NB) & ended_B).astype(np.float32)
        self._left_B -= 1
        self._shown_B = np.zeros(self.batch, np.bool_)
        final = self._frame()
        self._begin(ended_B)
        over_NB = np.broadcast_to(ended_B, (2, self.batch)).copy()
        return Transition(self._frame(), final, (reward_NB,), (over_NB,), np.zeros(self.batch, np.bool_), ended_B)

    def close(self) -> None: ...

    def _begin(self, ended_B: np.ndarray) -> None:
        self._cue_NB = np.where(ended_B, self._rng.integers(2, size=(2, self.batch)), self._cue_NB)
        self._left_B = np.where(ended_B, self._rng.integers(2, 5, size=self.batch), self._left_B)
        self._shown_B = ended_B.copy()

    def _frame(self) -> Frame:
        obs_NBO = np.zeros((2, self.batch, 3), np.float32)
        obs_NBO[..., :2] = np.eye(2, dtype=np.float32)[self._cue_NB] * self._shown_B[:, None]
        obs_NBO[..., 2] = self._left_B == 0
        return Frame((obs_NBO,), state=np.concatenate(obs_NBO, axis=1))


def _model(recurrent: str) -> ModelSpec:
    return ModelSpec.model_validate({"hidden": (16, 16), "recurrent": recurrent})


def _policies(learner: Learner, groups: Sequence[Group], agents: AgentClass) -> list[ActingPolicies]:
    states = {agent: state for g in groups for state in [learner.state(g.policy)] for agent in g.agents}
    return [ActingPolicies.from_states(agents, [states[agent] for agent in agents.agents])]


def _wild(state: PolicyState, seed: int) -> PolicyState:
    """The state with weights that make policies do very different things at different times."""
    rng = np.random.default_rng(seed)
    acting = {name: rng.normal(size=array.shape).astype(np.float32) for name, array in state.acting.items()}
    return PolicyState(acting, state.learning, state.metadata)


@pytest.mark.parametrize("action", [Discrete(3), Box((-1.0, 0.0), (1.0, 2.0))], ids=["discrete", "continuous"])
@pytest.mark.parametrize("groups", [INDEPENDENT, SHARED], ids=["independent", "shared"])
@pytest.mark.parametrize("pooling", ["pooled", "drawn"])
@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("coming", [False, True], ids=["present", "coming-and-going"])
def test_learners_find_the_probabilities_that_actors_acted_with(
    action: Discrete | Box,
    groups: tuple[Group, ...],
    pooling: str,
    resumed: bool,
    coming: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the round's first step continues an episode, so that actors had a memory there; and where agents come
    back, so that they had none.
    """
    recall = _Recall(10, action)
    env = ComeAndGo(recall) if coming else recall
    learner = rounds.learner("ippo", env.spaces, groups, model=_model("gru"), epochs=1, minibatches=3)
    for seed, name in enumerate(learner.names(groups)):
        learner.load(name, _wild(learner.initial(name, 0), seed))
    policies = _policies(learner, groups, env.spaces.classes[0])
    lane = Lane(env)
    lane.begin(1)
    if resumed:
        lane.roll(policies, steps=3, seed=2, with_state=False)
    sampled, stats = lane.roll(policies, steps=12, seed=1, with_state=False, index=0 if resumed else None)
    assert not resumed or (sampled["resumed"].any() and not sampled["resumed"].all())
    assert stats.episodes > 20
    ratios = []
    surrogate = PolicyFunction.surrogate

    def seen(log_prob_PM: torch.Tensor, old_PM: torch.Tensor, *rest: object) -> torch.Tensor:
        ratios.append((log_prob_PM - old_PM).exp())
        return surrogate.gradient(log_prob_PM, old_PM, *rest)

    monkeypatch.setattr(PolicyFunction, "surrogate", replace(surrogate, gradient=seen))
    learner.update(RoundInput(0, 0, 1, groups, [sampled], pooling=pooling))
    first = ratios[0]
    assert first.shape[1] >= 12 * 3
    torch.testing.assert_close(first, torch.ones_like(first), rtol=0, atol=1e-4)
    assert (ratios[-1] - 1).abs().max() > 1e-3  # later ones are of policies that have moved


def _trained_return(name: str, groups: tuple[Group, ...], recurrent: str, **settings: object) -> float:
    """Greedy return per agent and episode."""
    env = _Recall(48, Discrete(2))
    agents = env.spaces.classes[0]
    learner = rounds.learner(
        name, env.spaces, groups, model=_model(recurrent), seed=1, lr=2e-2, gamma=0.95, minibatches=2, **settings
    )
    for i in range(20):
        sampled, _ = rollout(env, _policies(learner, groups, agents), steps=10, seed=i, with_state=name == "mappo")
        learner.update(RoundInput(i, 0, 1, groups, [sampled]))
    stats = play(env, _policies(learner, groups, agents), episodes=300, seed=999)
    return sum(stats.return_sum.values()) / len(AGENTS) / stats.episodes


@pytest.mark.parametrize(
    ("name", "groups", "settings"),
    [
        pytest.param("ippo", INDEPENDENT, {}, id="ippo", marks=pytest.mark.slow),
        pytest.param("mappo", INDEPENDENT, {}, id="mappo"),
        pytest.param("mappo", SHARED, {"critic": "per_agent"}, id="mappo-per-agent-shared"),
    ],
)
def test_cues_are_recalled(name: str, groups: tuple[Group, ...], settings: dict[str, object]) -> None:
    assert _trained_return(name, groups, "gru", **settings) > 0.95


def test_an_lstm_recalls_them_too() -> None:
    assert _trained_return("ippo", INDEPENDENT, "lstm") > 0.95


def test_nobody_recalls_cues_without_memory() -> None:
    assert _trained_return("ippo", INDEPENDENT, "none") == pytest.approx(0.5, abs=0.1)
