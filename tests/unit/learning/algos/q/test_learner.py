"""What the Q-learner promises beside right gradients: exploration, targets, states, groups that change, curvature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError, NotFoundError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, Measure
from marless.core.state import PolicyState
from marless.learning.algos import registry
from marless.learning.algos.algorithm import scopes
from marless.learning.algos.learner import LearnerContext, RoundInput
from marless.learning.algos.q.learner import QLearner
from marless.learning.algos.q.training import Policies, counted
from marless.learning.algos.training.passes import PassTimer
from marless.learning.algos.training.policy_batching import weights
from marless.learning.algos.training.td import make_optimizer
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.layout import Layout
from tests.unit.learning.algos import rounds

TEAM = (Group("s", ("s",)), *rounds.INDEPENDENT)
SHARED = (Group("s", ("s",)), Group("x", ("a", "c", "d")), Group("b", ("b",)))
NAMES = pytest.mark.parametrize("name", ["iql", "vdn", "qmix"])
SMALL = {"warmup": 0, "batch": 8, "updates": 3}


def groups_of(name: str, team: tuple[Group, ...] = TEAM) -> tuple[Group, ...]:
    return team[1:] if name == "iql" else team


def learner(name: str, file: Path | None = None, **settings: object) -> QLearner:
    algorithm = registry.algorithm(name)
    config = algorithm.config_type.model_validate({"name": name, **SMALL, **settings})
    scope = scopes(algorithm, config, rounds.DISCRETE)[-1]
    made = algorithm.learner(config, LearnerContext(rounds.MODEL, rounds.DISCRETE, scope, "cpu", file))
    assert isinstance(made, QLearner)
    for state in made.names(groups_of(name)):
        made.load(state, made.initial(state, 0))
    return made


def inputs(groups: tuple[Group, ...], number: int = 0, pooling: str = "pooled") -> RoundInput:
    """30 env steps a round."""
    return RoundInput(number, 30 * number, 11, groups, [rounds.trajectory(rounds.DISCRETE, 20 + number)], pooling)


def states(made: QLearner, groups: tuple[Group, ...]) -> dict[str, PolicyState]:
    return {name: made.state(name) for name in made.names(groups)}


def bits(found: Mapping[str, PolicyState]) -> dict[str, dict[str, bytes]]:
    return {name: rounds.flat(state) for name, state in found.items()}


@NAMES
@pytest.mark.parametrize("settings", [{}, {"replay": {"unit": "episodes", "draw": "prioritised"}, "dueling": True}])
def test_another_learner_goes_on_bit_for_bit(name, settings, tmp_path):
    groups, file = groups_of(name), tmp_path / "replay"
    first = learner(name, file, **settings)
    first.update(inputs(groups))
    held = states(first, groups)
    first.update(inputs(groups, 1))
    expected = bits(states(first, groups))
    second = learner(name, file, **settings)
    for state in second.names(groups):
        second.load(state, held[state])
    second.update(inputs(groups, 1))
    assert bits(states(second, groups)) == expected


@NAMES
def test_actors_read_what_they_explore_with_in_the_next_round(name):
    groups = groups_of(name)
    made = learner(name, epsilon={"start": 1.0, "end": 0.1, "env_steps": 90})
    agent = groups[0].policy
    assert made.state(agent).acting["exploration"].tolist() == [1.0]
    for number, expected in enumerate([0.7, 0.4, 0.1, 0.1]):
        made.update(inputs(groups, number))
        assert made.state(agent).acting["exploration"] == pytest.approx([expected])
    other = learner(name)
    other.load(agent, made.state(agent))
    assert rounds.flat(other.state(agent)) == rounds.flat(made.state(agent))


def test_every_gradient_step_of_every_round_has_a_draw_of_its_own():
    made = learner("iql")
    given = [inputs(groups_of("iql"), number) for number in (0, 1)]
    made._remember(given[0])
    drawn = [batch.row.tolist() for each in given for batch in rounds.draws(made, each, 8, 2)]
    assert len({tuple(rows) for rows in drawn}) == 4
    assert [batch.row.tolist() for batch in rounds.draws(made, given[0], 8, 2)] == drawn[:2]


def test_steps_that_share_priorities_report_theirs_together():
    replay = {"capacity": 200, "draw": "prioritised", "priorities_every": 2}
    made, told = learner("vdn", updates=5, batch=6, replay=replay), []
    made._replay.reprioritise = lambda row, priority: told.append((len(row), len(priority)))
    made.update(inputs(TEAM))
    assert told == [(12, 12), (12, 12), (6, 6)]


def test_longer_rounds_take_more_gradient_steps():
    made, agent = learner("iql", updates=None), "a"
    taken = []
    for number, sampled in enumerate([2, 4]):
        trajectories = [rounds.trajectory(rounds.DISCRETE, seed) for seed in range(sampled)]  # of 30 env steps
        made.update(RoundInput(number, 0, 11, groups_of("iql"), trajectories, "pooled"))
        taken.append(int(made._nets[1].bank.row(agent)["count"]))
    assert taken == [60 // 20, 60 // 20 + 120 // 20]


def test_nothing_is_learned_before_enough_is_remembered():
    made = learner("vdn", warmup=31)
    before = bits(states(made, TEAM))
    for number, trained in enumerate([False, True]):
        output = made.update(inputs(TEAM, number))
        after = bits(states(made, TEAM))
        assert (after["a"]["policy.0.weight"] != before["a"]["policy.0.weight"]) == trained
        assert output.metrics["replay.team"]["size"] == 30.0 * (number + 1)
        assert ("grad_norm" in output.metrics["a"]) == trained


def test_a_dueling_net_acts_by_the_values_that_it_learns():
    made = learner("iql", dueling=True)
    groups = groups_of("iql")
    made.update(inputs(groups))
    walkers = rounds.DISCRETE.classes[1]
    acting = ActingPolicies.from_states(walkers, [made.state(agent) for agent in walkers.agents])
    obs_NMO = np.random.default_rng(0).normal(size=(4, 9, 5)).astype(np.float32)
    values_NMA, _ = acting.outputs(obs_NMO, None)
    features = np.concatenate([obs_NMO.transpose(0, 2, 1), np.ones((4, 1, 9), np.float32)], axis=1)
    (function,) = made._nets[1].bank.arrange([((*"abcd",), (*"abcd",))])
    learned_NAM = function._values(function.net.forward(torch.from_numpy(features)))
    np.testing.assert_allclose(values_NMA.transpose(0, 2, 1), learned_NAM, atol=1e-5)
    assert np.ptp(values_NMA) > 0.001


@pytest.mark.parametrize(("settings", "copied"), [({"target_every": 2}, [1, 1, 3]), ({"target_tau": 0.25}, [])])
def test_target_nets_follow(settings, copied):
    """Of 3 gradient steps the second is followed whole; or each by a quarter of the way."""
    made = learner("iql", **settings)
    groups, row = groups_of("iql"), lambda: made._nets[1].bank.row("a")
    given = inputs(groups)
    made._remember(given)
    training = made._training(given, copies=False)
    expected = row()["target"].clone()
    for step, batch in enumerate(rounds.draws(made, given, 8, 3)):
        training.step(batch, PassTimer())
        flat = row()["flat"]
        expected = (flat.clone() if step == 1 else expected) if copied else expected + 0.25 * (flat - expected)
        torch.testing.assert_close(row()["target"], expected)
        assert not torch.equal(flat, row()["target"]) or (copied and step == 1)


def test_rmsprop_is_that_of_torch():
    weights_PD = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    row = {"flat": weights_PD.clone(), "first": torch.zeros(2, 5), "second": torch.zeros(2, 5), "count": torch.zeros(2)}
    config = learner("iql", optimizer="rmsprop", optimizer_eps=1e-3)._config
    ours = make_optimizer(config, row, lr=0.1, steps=4)
    theirs = weights_PD.clone().requires_grad_()
    torchs = torch.optim.RMSprop([theirs], lr=0.1, alpha=0.99, eps=1e-3)
    for seed in range(4):
        gradient = torch.randn(2, 5, generator=torch.Generator().manual_seed(seed))
        theirs.grad = gradient.clone()
        torchs.step()
        ours.step(gradient)
        torch.testing.assert_close(row["flat"], theirs.detach())
    assert row["count"].tolist() == [4, 4]


@NAMES
def test_merged_and_split_policies_take_targets_and_moments_with_them(name):
    groups = groups_of(name)
    made = learner(name, target_tau=0.3)
    made.update(inputs(groups))
    merged = groups_of(name, (Group("s", ("s",)), Group("c", ("a", "c", "d")), Group("b", ("b",))))
    split = groups_of(name, (Group("s", ("s",)), *(Group(n, (n,), "b" if n == "b" else "c") for n in "abcd")))
    for number, (changed, policies) in enumerate([(merged, "c"), (split, "acd")], start=1):
        started = made.state("c").learning
        made.names(changed)
        made._training(inputs(changed, number), copies=False)
        for policy in policies:
            found = made.state(policy).learning
            assert found.keys() == started.keys() >= {"policy.first", "policy.second", "policy.count", "policy.target"}
            assert all(np.array_equal(found[key], started[key]) for key in started)
        made.update(inputs(changed, number))
        weights_of = {policy: made.state(policy).acting["policy.0.weight"].tobytes() for policy in policies}
        assert len(set(weights_of.values())) == len(policies)


def test_pooled_groups_train_on_all_samples_of_their_members_and_drawn_ones_on_as_many_as_one_agent_has():
    groups = groups_of("iql", SHARED)
    given = {pooling: inputs(groups, pooling=pooling) for pooling in ("pooled", "drawn")}
    made = learner("iql")
    made.names(groups)
    for state in ("x",):
        made.load(state, made.initial(state, 0))
    made._remember(given["pooled"])
    [batch] = rounds.draws(made, given["pooled"], 8)
    obs = batch.classes[0].features

    def seen(pooling: str) -> dict[str, torch.Tensor]:
        training = made._training(given[pooling], copies=True)
        return {n: each.read(batch).features[i] for each in training._policies for i, n in enumerate(each.names)}

    pooled, drawn = seen("pooled"), seen("drawn")
    assert pooled["b"].equal(obs[1]) and drawn["b"].equal(obs[1])
    assert pooled["x"][:, :24].equal(torch.cat([obs[0, :, :8], obs[2, :, :8], obs[3, :, :8]], dim=1))
    parts = [obs[0, :, :3], obs[2, :, 3:6], obs[3, :, 6:8]]
    assert drawn["x"][:, :8].equal(torch.cat(parts, dim=1))


@pytest.mark.parametrize(("pooling", "count"), [("pooled", 8), ("drawn", 5)])
def test_a_team_draws_whole_env_steps_and_fewer_where_policies_are_shared(pooling, count):
    """3 policies of 5 agents: ⌈8 · 3/5⌉ env steps have as many samples of agents as policies alone would draw."""
    made = learner("vdn")
    assert made._count(inputs(SHARED, pooling=pooling)) == count


def test_stacked_policies_learn_what_they_learn_alone():
    """Each in a class of its own, with the same draws."""
    settings = SMALL | {"name": "iql", "reward_normalisation": False}
    stacked = learner("iql", reward_normalisation=False)
    stacked.update(inputs(groups_of("iql")))
    algorithm, recorded = registry.algorithm("iql"), inputs(TEAM).trajectories[0]
    for i, agent in enumerate(rounds.AGENTS):
        spaces = EnvSpaces((AgentClass("walker", (agent,), 5, Discrete(4)),), 6, None, masks=True, deaths=True)
        config, group = algorithm.config_type.model_validate(settings), (Group(agent, (agent,)),)
        (scope,) = scopes(algorithm, config, spaces)
        alone = algorithm.learner(config, LearnerContext(rounds.MODEL, spaces, scope, "cpu"))
        for state in alone.names(group):
            alone.load(state, alone.initial(state, 0))
        alone.update(RoundInput(0, 0, 11, group, [_alone(recorded, i)]))
        for name, array in alone.state(agent).acting.items():
            np.testing.assert_allclose(stacked.state(agent).acting[name], array, atol=1e-6)


def _alone(recorded: Trajectory, agent: int) -> Trajectory:
    """What one walker did."""
    arrays = {}
    for name, array in recorded.arrays.items():
        kind, _, k = name.partition("/")
        if k == "1":
            arrays[f"{kind}/0"] = array.take([agent], axis=0 if kind.startswith("boot_") else 1)
        elif not k:
            arrays[name] = array
    return Trajectory(arrays)


def test_states_that_do_not_fit_are_refused():
    made, dueling = learner("iql"), learner("iql", dueling=True)
    with pytest.raises(CorruptError, match=r"policy\.0\.weight is missing"):
        dueling.load("a", made.state("a"))
    with pytest.raises(CorruptError, match="this job needs"):
        made.load("a", learner("iql", last_action=True).state("a"))
    with pytest.raises(CorruptError, match="no moments of the rewards"):
        made.load("replay.walker", PolicyState({}, {}, {}))
    with pytest.raises(NotFoundError, match="no group of this learner has a policy 'z'"):
        learner("vdn").initial("z", 0)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("name", ["iql", "qmix"])
def test_curvature_is_that_of_the_halved_squared_error(name, dueling):
    """Others and the mixer held, Q_tot moves by its slope: −½ w (δ + share · (Q − Q₀))² bends as we say."""
    made = learner(name, dueling=dueling)
    given = inputs(groups_of(name))
    made._remember(given)
    training = made._training(given, copies=True)
    [batch] = rounds.draws(made, given, 8)
    index = 0 if name == "iql" else 1
    each, (error_PM, share_PM) = training._policies[index], training._errors(batch)[index]
    seen = each.read(batch)
    parts = {
        "features": seen.features[:, :, :8],
        "action": seen.action.float(),
        "error": error_PM.unsqueeze(1),
        "share": share_PM.unsqueeze(1),
        "alive": each.own(counted(batch, batch.classes[each.index])).unsqueeze(1),
    }
    layout = each.function.net.layout
    assert isinstance(layout, Layout)
    objective = _objective(layout, each, parts, dueling)
    flat_D = each.tensors["flat"][0].clone()
    expected = torch.autograd.functional.jacobian(objective, flat_D)
    torch.testing.assert_close(each.function.score_gradient(parts)[0], expected, atol=1e-6, rtol=1e-3)
    direction_PD = torch.randn(each.tensors["flat"].shape, generator=torch.Generator().manual_seed(2))
    _, product_D = torch.autograd.functional.vhp(objective, flat_D, direction_PD[0])
    found_D = each.function.hessian(parts)(direction_PD)[0]
    torch.testing.assert_close(found_D, product_D, atol=1e-5, rtol=1e-3)
    assert found_D.abs().max() > 1e-3


def _objective(layout: Layout, each: Policies, parts: Mapping[str, torch.Tensor], dueling: bool):
    first = {name: part[0] for name, part in parts.items()}
    weight_M = weights({"alive": parts["alive"]}, parts["share"].squeeze(1))[0]

    def chosen(flat_D: torch.Tensor) -> torch.Tensor:
        x = first["features"]
        for i, (span, shape) in enumerate(zip(layout.spans, layout.shapes, strict=True)):
            x = flat_D[span].view(shape) @ x
            if i < len(layout.shapes) - 1:
                x = torch.cat([torch.tanh(x), torch.ones(1, x.shape[1])])
        q = x[:1] + x[1:] - x[1:].mean(0, keepdim=True) if dueling else x
        return q.gather(0, first["action"].long())[0]

    at = chosen(each.tensors["flat"][0]).detach()

    def value(flat_D: torch.Tensor) -> torch.Tensor:
        moved = first["error"][0] + first["share"][0] * (chosen(flat_D) - at)
        return -(weight_M * 0.5 * moved.square()).sum()

    return value


@pytest.mark.parametrize("name", ["iql", "vdn"])
def test_nets_with_memory_are_measured_where_all_episodes_have_a_single_step(name):
    walkers = replace(rounds.DISCRETE, classes=rounds.DISCRETE.classes[1:])
    whole = rounds.trajectory(walkers, 7)
    over = {key: np.ones_like(whole[key]) for key in ("cut", "terminated/0")}
    arrays = whole.arrays | over | {"boot_index": np.zeros(0, np.int32)}
    arrays |= {key: whole[key][:, :0] for key in arrays if key.startswith(("boot_obs", "boot_mask"))}
    arrays |= {"boot_state": whole["boot_state"][:0]}
    remembering = {"updates": 1, "batch": 4, "warmup": 0, "replay": {"capacity": 100, "unit": "episodes"}}
    model = rounds.MODEL.model_copy(update={"recurrent": "gru"})
    made = rounds.learner(name, walkers, rounds.INDEPENDENT, model=model, **remembering)
    asked = Measure(curvature=CurvatureSpec(samples=8, steps=3, probes=1), noise=True)
    found = made.update(replace(rounds.inputs(rounds.INDEPENDENT, [Trajectory(arrays)]), measure=asked)).metrics["a"]
    assert found["lambda_max"] > found["lambda_min"]
    assert found["noise_scale"] > 0
