"""What MADDPG and IDDPG promise beside right gradients: who has a critic, who learns when, what outlives changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError, SpecError
from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos import registry
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.ddpg.heads import Relaxed
from marless.learning.algos.ddpg.inputs import views
from marless.learning.algos.ddpg.learner import ActorCriticLearner
from marless.learning.algos.learner import LearnerContext, Scope
from marless.learning.algos.off_policy.batches import Batch, ClassBatch, Gains
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import row_stacks
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Box, Discrete, EnvSpaces
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.algos import rounds

WALKERS = AgentClass("walker", rounds.AGENTS, 5, Discrete(4))
TEAM = (Group("s", ("s",)), *rounds.INDEPENDENT)
SETTINGS = {"batch": 8, "warmup": 20, "updates": 4, "n_step": 2}
BOTH = pytest.mark.parametrize("name", ["maddpg", "iddpg"])


def _groups(name: str, spaces: EnvSpaces, groups: Sequence[Group] = rounds.INDEPENDENT) -> tuple[Group, ...]:
    """MADDPG serves both classes of a team."""
    return (TEAM[0], *groups) if name == "maddpg" and len(spaces.classes) == 2 else tuple(groups)


def _learner(
    name: str, spaces: EnvSpaces, groups: Sequence[Group], path: Path | None = None, **settings: object
) -> ActorCriticLearner:
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name} | SETTINGS | settings)
    scope = Scope(0, tuple(range(len(spaces.classes))), "team") if name == "maddpg" else Scope(1, (1,), "walker")
    if len(spaces.classes) == 1:
        scope = Scope(0, (0,), "walker")
    made = algorithm.learner(config, LearnerContext(rounds.MODEL, spaces, scope, "cpu", path))
    assert isinstance(made, ActorCriticLearner)
    for state in made.names(groups):
        made.load(state, made.initial(state, 0))
    return made


def _round(spaces: EnvSpaces, seed: int) -> Trajectory:
    """Actions as deterministic policies explore: within the box."""
    made = rounds.trajectory(spaces, seed)
    for k, each in enumerate(spaces.classes):
        if isinstance(each.action, Box):
            np.tanh(made.arrays[f"action/{k}"], out=made.arrays[f"action/{k}"])
    return made


def _train(
    made: ActorCriticLearner, groups: Sequence[Group], spaces: EnvSpaces, numbers: Sequence[int] = (0, 1)
) -> None:
    for number in numbers:
        made.update(rounds.inputs(groups, [_round(spaces, 7 + number)], number))


@BOTH
@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("more", [{}, {"twin": True, "replay": {"draw": "prioritised"}}], ids=["plain", "td3"])
def test_a_restarted_learner_goes_on_bit_for_bit(
    name: str, spaces: EnvSpaces, more: dict[str, object], tmp_path: Path
) -> None:
    groups = _groups(name, spaces)
    first = _learner(name, spaces, groups, tmp_path / "replay", **more)
    _train(first, groups, spaces)
    states = {state: first.state(state) for state in first.names(groups)}
    second = _learner(name, spaces, groups, tmp_path / "replay", **more)
    for state, held in states.items():
        second.load(state, held)
    _train(second, groups, spaces, [2])
    for state, held in states.items():  # the file is the second's now: the first one reads it again
        first.load(state, held)
    _train(first, groups, spaces, [2])
    for state, held in states.items():
        assert rounds.flat(first.state(state)) == rounds.flat(second.state(state))
        assert rounds.flat(first.state(state)) != rounds.flat(held)


def _priorities(
    made: ActorCriticLearner, groups: Sequence[Group], spaces: EnvSpaces
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Of a batch, and the critics' errors that they come from."""
    given = rounds.inputs(groups, [_round(spaces, 9)], 2)
    [batch] = rounds.draws(made, given, 8)
    training = made._training(given, copies=True)
    everyone = training._views(batch, PassTimer())
    errors = [training._gradients(each, everyone, PassTimer())[2] for each in training._ensembles]
    return made._training(given, copies=True).gradients(batch, PassTimer())[1], errors


@BOTH
def test_an_env_step_is_as_urgent_as_all_critics_errors_in_it(name: str) -> None:
    made = _learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT, replay={"draw": "prioritised"})
    _train(made, rounds.INDEPENDENT, rounds.CONTINUOUS)
    found, [error_N1E] = _priorities(made, rounds.INDEPENDENT, rounds.CONTINUOUS)
    assert found is not None
    assert float(found.min()) > 0
    assert len(error_N1E) == len(rounds.AGENTS)
    torch.testing.assert_close(found, error_N1E[:, 0].abs().mean(dim=0))


def test_sharing_a_critic_makes_no_env_step_more_urgent() -> None:
    """Of agents whose nets are alike anyway."""
    shared = (Group("a", ("a", "b")), *rounds.INDEPENDENT[2:])
    found = []
    for groups in (rounds.INDEPENDENT, shared):
        made = _learner("iddpg", rounds.CONTINUOUS, groups, replay={"draw": "prioritised"}, lr=0.0, critic_lr=0.0)
        for group in groups:
            made.load(group.policy, made.initial("a", 0))
        _train(made, groups, rounds.CONTINUOUS, [0])
        found.append(_priorities(made, groups, rounds.CONTINUOUS)[0])
    torch.testing.assert_close(*found)


@BOTH
def test_uniform_draws_have_no_priorities(name: str) -> None:
    made = _learner(name, rounds.CONTINUOUS, rounds.INDEPENDENT)
    _train(made, rounds.INDEPENDENT, rounds.CONTINUOUS)
    assert _priorities(made, rounds.INDEPENDENT, rounds.CONTINUOUS)[0] is None


def test_critics_of_maddpg_are_agents_own_whoever_shares_a_policy() -> None:
    shared = (TEAM[0], Group("a", ("a", "b")), Group("c", ("c", "d")))
    made = _learner("maddpg", rounds.DISCRETE, TEAM)
    _train(made, TEAM, rounds.DISCRETE)
    critics = [f"critic.{agent}" for agent in ("s", *rounds.AGENTS)]
    assert made.names(shared) == ("s", "a", "c", *critics, "replay.team")
    before = {critic: made.state(critic).learning["critic.count"] for critic in critics}
    output = made.update(rounds.inputs(shared, [_round(rounds.DISCRETE, 9)], 2))
    assert all(made.state(critic).learning["critic.count"] == before[critic] + 4 for critic in critics)
    assert {run.name for run in output.runs if run.function == "critic"} == set(critics)
    assert {run.name for run in output.runs if run.function == "policy"} == {"s", "a", "c"}
    weights = made.state("critic.a").learning["critic.0.weight"]
    assert weights.shape == (16, 1 * (3 + 2) + 4 * (5 + 4))  # all observations, and one-hot actions


@BOTH
def test_merged_and_split_policies_take_their_targets_and_moments_along(name: str) -> None:
    groups, frozen = _groups(name, rounds.CONTINUOUS), {"lr": 0.0, "critic_lr": 0.0, "target_tau": 1e-9}
    made = _learner(name, rounds.CONTINUOUS, groups, twin=True)
    _train(made, groups, rounds.CONTINUOUS)
    before = {agent: made.state(agent) for agent in rounds.AGENTS}
    made = _learner(name, rounds.CONTINUOUS, groups, twin=True, **frozen)
    for agent in rounds.AGENTS:
        made.load(agent, before[agent])
    merged = (Group("a", ("a", "b"), "b"), Group("c", ("c",), "d"), Group("d", ("d",), "c"))
    _train(made, merged, rounds.CONTINUOUS)
    split = (Group("a", ("a",)), Group("b", ("b",), "a"), *merged[1:])
    for group in split[2:]:
        made.load(group.policy, before[group.policy])
    _train(made, split, rounds.CONTINUOUS, [2])
    nets = ["policy", "critic", "twin"] if name == "iddpg" else ["policy"]
    for agent, source in (("a", "b"), ("b", "b"), ("c", "d"), ("d", "c")):
        now, then = made.state(agent), before[source]
        np.testing.assert_array_equal(now.acting["policy.0.weight"], then.acting["policy.0.weight"])
        for net in nets:
            np.testing.assert_allclose(now.learning[f"{net}.target"], then.learning[f"{net}.target"], atol=1e-6)
            assert now.learning[f"{net}.count"] > then.learning[f"{net}.count"]


@BOTH
def test_policies_learn_in_every_second_step_if_delayed(name: str) -> None:
    groups = _groups(name, rounds.DISCRETE)
    made = _learner(name, rounds.DISCRETE, groups, policy_every=2, twin=True)
    _train(made, groups, rounds.DISCRETE)
    judge = made.state("critic.a" if name == "maddpg" else "a").learning
    assert (made.state("a").learning["policy.count"], judge["critic.count"], judge["twin.count"]) == (4, 8, 8)


@BOTH
def test_a_group_that_draws_learns_from_a_part_of_each_member(name: str) -> None:
    shared = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
    groups = _groups(name, rounds.DISCRETE, shared)
    outcomes = {}
    for pooling in ("pooled", "drawn"):
        made = _learner(name, rounds.DISCRETE, groups)
        inputs = rounds.inputs(groups, [_round(rounds.DISCRETE, 7)])
        made.update(type(inputs)(**{**vars(inputs), "pooling": pooling}))
        outcomes[pooling] = {policy: rounds.flat(made.state(policy)) for policy in "xyz"}
    assert outcomes["pooled"]["x"] != outcomes["drawn"]["x"]
    if name == "iddpg":  # who is alone is not concerned
        np.testing.assert_allclose(
            np.frombuffer(outcomes["pooled"]["y"]["policy.0.weight"], np.float32),
            np.frombuffer(outcomes["drawn"]["y"]["policy.0.weight"], np.float32),
            atol=1e-5,
        )


def test_rows_take_and_put_their_parts() -> None:
    groups = (Group("x", ("d", "a")), Group("y", ("b",)), Group("z", ("c",)))
    pair, single = row_stacks(groups, WALKERS, pooling="drawn", samples=5, device=torch.device("cpu"))
    x_NFM = torch.arange(20.0).view(4, 1, 5)
    assert pair.take(x_NFM).squeeze(1).tolist() == [[15.0, 16.0], [2.0, 3.0]]  # of d the first part, of a the second
    assert single.take(x_NFM).squeeze(1).tolist() == [[5.0, 6.0, 7.0, 8.0, 9.0], [10.0, 11.0, 12.0, 13.0, 14.0]]
    out_NFM = torch.zeros(4, 1, 5)
    pair.put(pair.take(x_NFM) + 1, out_NFM)
    assert out_NFM.squeeze(1).tolist() == [[0, 0, 3, 4, 0], [0] * 5, [0] * 5, [16, 17, 0, 0, 0]]
    few_NFM = x_NFM[:, :, :1]  # too few to be parted: each row has all
    pair, _ = row_stacks(groups, WALKERS, pooling="drawn", samples=1, device=torch.device("cpu"))
    assert pair.take(few_NFM).flatten().tolist() == [15.0, 0.0]
    out_NFM.zero_()
    pair.put(pair.take(few_NFM), out_NFM[:, :, :1])
    assert out_NFM[:, 0, 0].tolist() == [0, 0, 0, 15]
    (together,) = row_stacks(groups, WALKERS, pooling="pooled", samples=5, device=torch.device("cpu"))
    assert together.owners == (0, 0, 1, 2)
    assert together.take(x_NFM)[:, 0, 0].tolist() == [15.0, 0.0, 5.0, 10.0]


@BOTH
def test_nothing_is_learned_from_the_dead(name: str) -> None:
    groups, outcomes = _groups(name, rounds.DISCRETE), []
    for noise in (0.0, 1.0):
        made = _learner(name, rounds.DISCRETE, groups, reward_normalisation=False, n_step=1)
        trajectory = _round(rounds.DISCRETE, 1)
        dead = ~trajectory.arrays["alive/1"].copy()
        trajectory.arrays["terminated/1"][:] |= dead | np.roll(dead, -1, axis=0)
        trajectory.arrays["reward/1"][dead] += np.float32(noise)
        trajectory.arrays["action/1"][dead] = int(noise)
        trajectory.arrays["mask/1"][dead] = True
        made.update(rounds.inputs(groups, [trajectory]))
        outcomes.append({state: rounds.flat(made.state(state)) for state in ("a", "b", "c", "d")})
    assert outcomes[0] == outcomes[1]


@BOTH
def test_actors_explore_as_scheduled_in_env_steps(name: str) -> None:
    groups = _groups(name, rounds.CONTINUOUS)
    made = _learner(name, rounds.CONTINUOUS, groups, noise={"start": 0.6, "end": 0.0, "env_steps": 60})
    assert made.state("a").acting["exploration"].tolist() == pytest.approx([0.6])
    _train(made, groups, rounds.CONTINUOUS, [0])  # 30 env steps
    assert made.state("a").acting["exploration"].tolist() == pytest.approx([0.3])
    states = [made.state(agent) for agent in rounds.AGENTS]
    assert states[0].metadata["acts"] == "deterministic"
    acting = ActingPolicies.from_states(rounds.CONTINUOUS.classes[0], states)
    acting.begin(50)
    obs_NBO = np.zeros((4, 50, 5), np.float32)
    greedy = acting.greedy(obs_NBO, None)
    assert np.abs(greedy).max() < 1
    assert np.std(acting.sample(obs_NBO, None, np.random.default_rng(0))[0] - greedy) == pytest.approx(0.3, abs=0.03)


@BOTH
def test_policies_and_critics_have_rates_of_their_own(name: str) -> None:
    groups = _groups(name, rounds.DISCRETE)
    made = _learner(name, rounds.DISCRETE, groups, lr=0.0)
    judge = "critic.a" if name == "maddpg" else "a"
    before = made.state("a").acting["policy.0.weight"], made.state(judge).learning["critic.0.weight"]
    _train(made, groups, rounds.DISCRETE)
    np.testing.assert_array_equal(made.state("a").acting["policy.0.weight"], before[0])
    assert not np.array_equal(made.state(judge).learning["critic.0.weight"], before[1])


def test_policies_of_maddpg_listen_to_the_critics_of_their_own_agents() -> None:
    shared = (TEAM[0], Group("a", ("a", "c")), Group("b", ("b",)), Group("d", ("d",)))
    for silent, unmoved in ((("critic.b",), {"b"}), (("critic.s",), {"s"}), (("critic.a", "critic.c"), {"a"})):
        made = _learner("maddpg", rounds.DISCRETE, shared, updates=1, regularisation=0.0)
        for critic in silent:
            state = made.state(critic)
            zeros = {key: np.zeros_like(array) for key, array in state.learning.items()}
            made.load(critic, PolicyState(state.acting, zeros, state.metadata))
        found = made.gradients(rounds.inputs(shared, [_round(rounds.DISCRETE, 7)])).gradients
        assert {policy for policy in "sabd" if not found[policy]["policy"].any()} == unmoved


def test_views_part_a_batch_into_what_was_and_what_came() -> None:
    features = torch.arange(12.0).view(1, 2, 6)  # three env steps, then what came after each
    alive = torch.tensor([[1.0, 0, 1, 1, 1, 0]])
    legal = torch.tensor([[[True, True, False, True, False, True]] * 2])
    gains = Gains(torch.tensor([[1.0, 2, 3]]), torch.tensor([[0.9, 0, 0.9]]))
    each = ClassBatch(features=features, action=torch.tensor([[[1, 0, 0]]]), legal=legal, alive=alive)
    batch = Batch(
        classes=(each,),
        gains=(gains,),
        steps=1,
        width=3,
        importance=torch.tensor([1.0, 1, 0.5]),
        valid=None,
        follows=torch.zeros(1, 3, dtype=torch.bool),
        state=None,
        row=np.arange(3),
    )
    (view,) = views(batch, [Relaxed(2, 1.0, straight_through=True)], np.random.default_rng(0))
    assert view.now.tolist() == [[[0, 1, 2], [6, 7, 8]]]
    assert view.after.tolist() == [[[3, 4, 5], [9, 10, 11]]]
    assert view.action.tolist() == [[[0, 0, 1], [1, 0, 0]]]  # the second was dead
    assert view.legal is not None
    assert view.legal_after is not None
    assert (view.legal[0, 0].tolist(), view.legal_after[0, 0].tolist()) == ([True, True, False], [True, False, True])
    assert view.alive_after is not None
    assert view.alive_after.tolist() == [[[1, 1, 0]]]
    assert view.weights().tolist() == [[0.5, 0, 0.25]]
    assert not torch.equal(view.noise, view.noise_after)


def test_each_gradient_step_has_noise_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    noise = Relaxed.noise

    def seen(self: Relaxed, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        drawn.append(noise(self, rng, shape).tobytes())
        return np.frombuffer(drawn[-1], np.float32).reshape(shape).copy()

    monkeypatch.setattr(Relaxed, "noise", seen)
    made = _learner("iddpg", rounds.DISCRETE, rounds.INDEPENDENT)
    _train(made, rounds.INDEPENDENT, rounds.DISCRETE)
    assert len(drawn) == len(set(drawn)) == 8


@BOTH
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_gradients_applied_are_an_update(name: str, optimizer: str) -> None:
    groups = _groups(name, rounds.DISCRETE)
    made, other = (_learner(name, rounds.DISCRETE, groups, updates=1, twin=True, optimizer=optimizer) for _ in range(2))
    inputs = rounds.inputs(groups, [_round(rounds.DISCRETE, 7)])
    made.update(inputs)
    for state, gradients in other.gradients(inputs).gradients.items():
        other.apply(state, gradients, inputs.env_steps)
    for state in made.names(groups):
        assert rounds.flat(made.state(state)) == rounds.flat(other.state(state)), state
    with pytest.raises(CorruptError, match="its nets are"):
        other.apply("a", {"mixer": np.zeros(3, np.float32)}, 0)


@BOTH
def test_whole_episodes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"set replay\.unit: transitions"):
        registry.algorithm(name).config_type.model_validate(
            {"name": name} | SETTINGS | {"replay": {"unit": "episodes"}}
        )


@BOTH
def test_jobs_that_cannot_work_are_refused(name: str) -> None:
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name} | SETTINGS)
    unbounded = EnvSpaces((AgentClass("walker", ("a",), 5, Box((0.0,), (np.inf,))),), state_size=0, max_steps=None)
    memory = rounds.MODEL.model_copy(update={"recurrent": "gru"})
    for spaces, model, sentence in (
        (
            unbounded,
            rounds.MODEL,
            "needs actions within bounds, and those of class walker have none on one side or both",
        ),
        (rounds.CONTINUOUS, memory, f"{name} trains no nets with memory, .* and model asks for gru nets"),
    ):
        with pytest.raises(SpecError, match=sentence):
            algorithm.check(config, Setting(spaces=spaces, model=model, samples=99, steps=9, memory_bytes=2**30))
