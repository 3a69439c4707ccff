"""Policy and critic as one net: a second implementation by autograd, gradients, exports, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.errors import CorruptError, SpecError
from marless.core.group import Group
from marless.core.settings import CurvatureSpec, InvalidSettingsError, Measure
from marless.core.state import PolicyState
from marless.learning.aggregation.applying import applied
from marless.learning.algos import registry
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets.acting import ActingPolicies
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.ppo import test_oracle as oracle
from tests.unit.learning.algos.ppo.test_gradients import ONE_STEP, PAIRS

SHARED = {"torso": "shared", "value_weight": 0.7}
SPACES = pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])


class _Both(oracle._Net):
    """The outputs of actions and, last, the value."""

    def both(self, x: Tensor) -> Tensor:
        return super().__call__(x, x)

    def __call__(self, x: Tensor, first: Tensor) -> Tensor:
        return self.both(x)[:, :-1]


@SPACES
def test_an_update_is_the_oracles(spaces: EnvSpaces) -> None:
    learner = rounds.learner("ippo", spaces, PAIRS, **oracle.SETTINGS, **SHARED)
    before = {group.policy: learner.state(group.policy) for group in PAIRS}
    trajectories = oracle._trajectories(spaces)
    output = learner.update(rounds.inputs(PAIRS, trajectories))
    assert {run.function for run in output.runs} == {"post_process", "policy"}
    config = IPPOConfig.model_validate({**oracle.SETTINGS, **SHARED})
    second = oracle._oracle(config, spaces, trajectories)
    for group in PAIRS:
        members = [rounds.AGENTS.index(agent) for agent in group.agents]
        net = _trained(_Both("policy", before[group.policy]), second, members)
        learned = learner.state(group.policy)
        assert not any(name.startswith("critic") for name in (*learned.acting, *learned.learning))
        for key, parameter in net.parameters.items():
            np.testing.assert_allclose(learned.acting[key], parameter.detach(), rtol=1e-4, atol=2e-5, err_msg=key)


def _trained(net: _Both, second: oracle._Oracle, members: list[int]) -> _Both:
    """One epoch's minibatch after the other, by autograd: the policy's loss and 0.7 of the critic's."""
    steps, batch = second.data["cut"].shape
    values, corrections, advantages = [], [], []
    for i in members:
        with torch.no_grad():
            values.append(net.both(second.data["obs"][:, i].flatten(0, 1))[:, -1].view(steps, batch))
            boot_values = net.both(second.data["boot_obs"][i])[:, -1]
        correction, _ = second.advantages(i, values[-1], boot_values)
        corrections.append(correction.flatten())
        advantages.append(correction.flatten())
    old, returns = torch.cat([v.flatten() for v in values]), torch.cat(corrections)
    returns = returns + old
    advantage, log_prob_old = torch.cat(advantages), second.of("log_prob", members)
    alive = second.of("alive", members).float() if second.spaces.deaths else torch.ones_like(advantage)
    mean = (advantage * alive).sum() / alive.sum()
    advantage = (advantage - mean) / ((((advantage - mean) ** 2 * alive).sum() / alive.sum()).sqrt() + 1e-8)
    obs = second.of("obs", members)
    for rows in second.batches(len(advantage), remembers=False):
        log_prob, entropy = second.law(net, members, rows)
        ratio = (log_prob - log_prob_old[rows]).exp()
        gain = torch.minimum(ratio * advantage[rows], ratio.clamp(0.8, 1.2) * advantage[rows]) + 0.02 * entropy
        value, low = net.both(obs[rows])[:, -1], old[rows]
        clipped = low + (value - low).clamp(-0.2, 0.2)
        error = 0.5 * torch.maximum((value - returns[rows]) ** 2, (clipped - returns[rows]) ** 2)
        net.step(((0.7 * error - gain) * alive[rows]).sum() / alive[rows].sum())
    return net


@SPACES
@pytest.mark.parametrize("popart", [False, True])
def test_an_update_of_one_step_is_gradients_applied(spaces: EnvSpaces, popart: bool) -> None:
    settings = {**ONE_STEP, **SHARED, "popart": popart, "value_decay": 0.5}
    updated, gave, held = (rounds.learner("ippo", spaces, PAIRS, **settings) for _ in range(3))
    config = IPPOConfig.model_validate(settings)
    for number in range(3):
        given = rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7 + number)], number)
        output = updated.update(given)
        for group in PAIRS:
            gave.load(group.policy, held.state(group.policy))
        found = gave.gradients(given)
        assert found.metrics == output.metrics
        for group in PAIRS:
            name, before = group.policy, held.state(group.policy)
            held.apply(name, found.gradients[name], given.env_steps)
            assert rounds.flat(held.state(name)) == rounds.flat(updated.state(name)), (number, name)
            # the store, which has no torch, takes the same step
            stored = applied(before, [found.gradients[name]], [1.0], config.net_steps(given.env_steps))
            for key, array in held.state(name).acting.items():
                np.testing.assert_allclose(stored.acting[key], array, rtol=1e-4, atol=1e-6, err_msg=key)


def test_new_policies_are_almost_uniform_and_values_are_not_small() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, PAIRS, **SHARED)
    last = learner.state("y").acting["policy.2.weight"]
    assert last.shape == (5, 8)
    np.testing.assert_allclose(np.linalg.norm(last, axis=1), [0.01] * 4 + [1.0], rtol=1e-5)


def test_actors_do_not_see_the_value() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, PAIRS, **SHARED)
    agents, states = rounds.DISCRETE.class_of("a"), [learner.state(name) for name in ("x", "y", "x", "z")]
    policies = ActingPolicies.from_states(agents, states)
    obs = np.random.default_rng(0).normal(size=(4, 3, 5)).astype(np.float32)
    logits, _ = policies.outputs(obs, None)
    assert logits.shape == (4, 3, 4)
    net = _Both("policy", states[1])
    np.testing.assert_allclose(logits[1], net.both(torch.from_numpy(obs[1])).detach()[:, :-1], rtol=1e-4, atol=1e-6)
    odd = PolicyState(states[0].acting, states[0].learning, {**states[0].metadata, "values": "2"})
    with pytest.raises(CorruptError, match="values is '2', expected 1, or nothing"):
        ActingPolicies.from_states(agents, [odd] * 4)
    without = {key: text for key, text in states[0].metadata.items() if key != "values"}
    with pytest.raises(CorruptError):
        ActingPolicies.from_states(agents, [PolicyState(states[0].acting, {}, without)] * 4)


@SPACES
def test_curvature_is_of_the_policy_alone(spaces: EnvSpaces) -> None:
    """Products with the Hessian are differences of gradients of E[log π·A], which does not depend on the value."""
    learner = rounds.learner("ippo", spaces, PAIRS, epochs=1, minibatches=1, lr=0.0, **SHARED)
    asked = Measure(curvature=CurvatureSpec(samples=30, steps=4, probes=1), noise=True)
    given = replace(rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7)]), measure=asked)
    found = learner.update(given).metrics["y"]
    assert found["lambda_max"] > 0 > found["lambda_min"]
    (function,) = learner._policies.arrange([(("y",), ("y",))])  # type: ignore[attr-defined]
    rng = torch.Generator().manual_seed(0)
    action = spaces.class_of("a").action
    batch = {"features": torch.randn(1, 6, 30, generator=rng), "advantage": torch.randn(1, 1, 30, generator=rng)}
    batch["features"][:, -1] = 1
    batch["action"] = (
        torch.zeros(1, 1, 30) if spaces is rounds.DISCRETE else torch.randn(1, action.n, 30, generator=rng)
    )
    flat = function.tensors["flat"]
    direction, start, step = torch.randn(flat.shape, generator=rng), flat.clone(), 1e-3
    product = function.hessian(batch)(direction).clone()
    ends = []
    for sign in (1, -1):
        flat.copy_(start + sign * step * direction)
        ends.append(function.score_gradient(batch).clone())
    np.testing.assert_allclose(product, (ends[0] - ends[1]) / (2 * step), rtol=0.05, atol=2e-3)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InvalidSettingsError, match="critic_lr is of critics that are nets of their own"):
        IPPOConfig.model_validate({"torso": "shared", "critic_lr": 1e-3})
    with pytest.raises(InvalidSettingsError, match="value_weight belongs to torso: shared"):
        IPPOConfig.model_validate({"value_weight": 0.4})
    with pytest.raises(InvalidSettingsError, match="torso"):
        registry.algorithm("mappo").config_type.model_validate({"name": "mappo", "torso": "shared"})
    remembers = rounds.MODEL.model_copy(update={"recurrent": "gru"})
    setting = Setting(spaces=rounds.DISCRETE, model=remembers, samples=1000, steps=25, memory_bytes=10**9)
    ippo = registry.algorithm("ippo")
    with pytest.raises(SpecError, match="torso: shared needs a net without memory"):
        ippo.check(ippo.config_type.model_validate(SHARED), setting)


def test_groups_that_share_a_policy_train_one_net() -> None:
    learner = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT, **SHARED)
    merged = (Group("a", ("a", "b"), "b"), Group("c", ("c",)), Group("d", ("d",)))
    before = {agent: rounds.flat(learner.state(agent)) for agent in rounds.AGENTS}
    learner.update(rounds.inputs(merged, [rounds.trajectory(rounds.DISCRETE, 7)]))
    after = {agent: rounds.flat(learner.state(agent)) for agent in rounds.AGENTS}
    assert before["b"] == after["b"]
    assert all(before[agent] != after[agent] for agent in ("a", "c", "d"))
