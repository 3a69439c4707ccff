"""Policies that stop within an update once they are too far from the ones that acted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.jobs.schedules.stellaris import StellarisConfig, StellarisKind
from marless.learning.algos import registry
from marless.learning.algos.learner import LearnerContext, Scope
from marless.learning.algos.ppo.algorithms import ImpactConfig, IPPOConfig
from marless.learning.algos.training.passes import PRESENT, EarlyStop
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learning.algos import rounds
from tests.unit.learning.algos.ppo.test_learner import _alone
from tests.unit.learning.algos.ppo.test_variants import trained

WALKERS = EnvSpaces((AgentClass("walker", rounds.AGENTS, 5, Discrete(4)),), state_size=6, max_steps=None)


def _rows() -> dict[str, torch.Tensor]:
    return {
        "flat": torch.zeros(3, 2),
        "first": torch.zeros(3, 2),
        "second": torch.zeros(3, 2),
        "count": torch.zeros(3, dtype=torch.float64),
    }


def test_each_policy_stops_by_itself_and_stays_as_it_was() -> None:
    """At a target of 0.1 the limit is 0.15: the third policy stops at its first minibatch, the second at its third."""
    tensors = _rows()
    policies = EarlyStop(tensors, 0.1)
    for kl in ([0.0, 0.0, 0.2], [0.1, 0.1, 9.0], [0.14, 0.16, 9.0], [0.15, 9.0, 9.0]):
        policies.look({"approx_kl": torch.tensor(kl)})
        assert not policies.over
        for tensor in tensors.values():
            tensor.add_(1)  # the step, which the stack takes for all
        if kl[1] == 0.1:
            policies.end_epoch()
    policies.end_epoch()
    found = policies.end()
    assert found["gradient_steps"].tolist() == [4, 2, 0]
    for tensor in tensors.values():
        assert tensor.reshape(3, -1)[:, 0].tolist() == [4, 2, 0]
    # Means over the last epoch that a policy began, up to where it stopped.
    np.testing.assert_allclose(found["approx_kl"], [0.145, 0.16, 0.2], rtol=1e-6)


def test_minibatches_without_an_agent_do_not_count() -> None:
    policies = EarlyStop(_rows(), 0.1)
    policies.look({"approx_kl": torch.tensor([0.02, 0.0, 0.2]), PRESENT: torch.tensor([1.0, 0.0, 1.0])})
    policies.look({"approx_kl": torch.tensor([0.04, 0.1, 0.2]), PRESENT: torch.tensor([1.0, 1.0, 1.0])})
    policies.end_epoch()
    np.testing.assert_allclose(policies.end()["approx_kl"], [0.03, 0.1, 0.2], rtol=1e-6)


def _learner(spaces: EnvSpaces, names: tuple[str, ...], target_kl: float | None):
    config = IPPOConfig(name="ippo", target_kl=target_kl, lr=3e-3)
    context = LearnerContext(rounds.MODEL, spaces, Scope(0, (0,), "walker"), "cpu")
    made = registry.algorithm("ippo").learner(config, context)
    for name in names:
        made.load(name, made.initial(name, 0))
    return made


def test_stacked_policies_stop_where_they_stop_alone() -> None:
    stacked = _learner(WALKERS, rounds.AGENTS, 0.02)
    given = [rounds.trajectory(WALKERS, 7 + number) for number in range(2)]
    reports = [stacked.update(rounds.inputs(rounds.INDEPENDENT, [each], i)).metrics for i, each in enumerate(given)]
    steps = {name: [report[name]["gradient_steps"] for report in reports] for name in rounds.AGENTS}
    assert len({tuple(each) for each in steps.values()}) > 1, "the policies must stop at different steps"
    for i, agent in enumerate(rounds.AGENTS):
        spaces = EnvSpaces((AgentClass("walker", (agent,), 5, Discrete(4)),), state_size=6, max_steps=None)
        alone = _learner(spaces, (agent,), 0.02)
        for number, each in enumerate(given):
            inputs = rounds.inputs((Group(agent, (agent,)),), [_alone(each, i)], number)
            metrics = alone.update(inputs).metrics[agent]
            assert metrics == pytest.approx(reports[number][agent], rel=1e-3, abs=1e-5)
        one, other = alone.state(agent), stacked.state(agent)
        assert other.learning["policy.count"] == sum(steps[agent])
        assert other.learning["critic.count"] == 32, "critics take all steps"
        for name, array in one.acting.items():
            np.testing.assert_allclose(other.acting[name], array, rtol=1e-5, atol=1e-6)


def test_a_policy_that_never_stops_takes_every_step_bit_for_bit() -> None:
    plain, limited = (trained(IPPOConfig(name="ippo", target_kl=target)) for target in (None, 1e9))
    for agent in rounds.AGENTS:
        assert rounds.flat(plain.state(agent)) == rounds.flat(limited.state(agent))


def test_asynchronous_learners_refuse_it() -> None:
    with pytest.raises(SpecError, match=r"stellaris: algorithm.target_kl ends .*; leave it out, or use synchronous"):
        StellarisKind().check(StellarisConfig(), IPPOConfig(name="ippo", target_kl=0.02))
    StellarisKind().check(StellarisConfig(), IPPOConfig(name="ippo"))
    assert "target_kl" not in ImpactConfig.__dataclass_fields__, "impact's ratio is to a target net"
