"""Nets of entities: the contract, a net by hand, no order among others, and those that are not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.learning.envs import registry
from marless.learning.envs.base import Entities
from marless.learning.nets import stacked
from marless.learning.nets.acting import ActingPolicies
from marless.learning.nets.contract import check_net
from marless.learning.nets.kinds import ENTITIES
from marless.learning.nets.layout import generator, layout_of
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.net_kind import InputShape
from tests.unit.learning.algos import rounds

SEEN = InputShape(15, entities=(Entities(2, 3, 2), Entities(9, 2, 3)))
"""Two numbers of its own, three marks, one number, two others."""


@pytest.mark.parametrize(
    ("inputs", "hidden"), [(SEEN, (4, 5)), (SEEN, (4,)), (InputShape(6, entities=(Entities(0, 1, 6),)), (3, 3))]
)
def test_they_keep_the_contract(inputs, hidden):
    check_net(ENTITIES, hidden=hidden, inputs=(inputs, inputs))


def test_a_net_by_hand():
    """One number of its own, two others of one; the layer of points is 2 x + 1, the output own + 10 · maximum."""
    shape = layout_of(ENTITIES, InputShape(3, entities=(Entities(1, 2, 1),)), (1,), 1)
    flat_1D = torch.tensor([[2.0, 1.0, 1.0, 10.0, 0.5]])
    x_MI = torch.tensor([[7.0, 3, 4, 1], [7, 4, 3, 1], [7, 0, 3, 1], [7, -4, 0, 1], [7, 0, 0, 1]])
    found_1KM = stacked.net(shape, flat_1D, "relu").evaluate(x_MI.T[None])
    # 2 · 4 + 1 = 9; alone 7; one of −4 is 0 after the ReLU; if nobody is there, so is the maximum.
    assert found_1KM.flatten().tolist() == [97.5, 97.5, 77.5, 7.5, 7.5]
    np.testing.assert_array_equal(found_1KM[0, 0, 3:], [7.5, 7.5])


def test_the_order_of_others_does_not_matter_and_what_they_are_does():
    shape = layout_of(ENTITIES, SEEN, (8, 8), 4)
    flat_1D = torch.tensor(shape.initial(generator(1, "net"), 1.0))[None]
    net = stacked.net(shape, flat_1D, "tanh")
    x = torch.randn(1, 16, 50, generator=torch.Generator().manual_seed(1))
    x[:, -1] = 1

    def moved(start: int, end: int, size: int) -> torch.Tensor:
        other = x.clone()
        other[:, start:end] = x[:, start:end].reshape(1, -1, size, 50).flip(1).reshape(1, end - start, 50)
        return net.evaluate(other)

    for each in SEEN.entities:
        torch.testing.assert_close(moved(each.start, each.end, each.size), net.evaluate(x))
        assert (moved(each.start, each.end, 1) - net.evaluate(x)).abs().max() > 0.1


def test_environments_tell_where_they_describe_others():
    env = registry.make("mpe/simple_spread", {"agents": 4, "landmarks": 3}, 1)
    assert env.spaces.classes[0].entities == (Entities(4, 3, 2), Entities(10, 3, 2))


def test_where_nothing_is_told_they_are_refused():
    with pytest.raises(
        SpecError, match="net entities reads which numbers describe others, and the environment does not"
    ):
        layout_of(ENTITIES, 18, (8,), 2)


@pytest.mark.parametrize("name", ["ippo", "mappo", "iql"])
def test_a_team_learns_with_them(name):
    """States, splits, and critics of the global state, which are perceptrons."""
    seen = (Entities(1, 2, 1),)
    (agents,) = (each for each in rounds.DISCRETE.classes if each.name == "walker")
    spaces = replace(rounds.DISCRETE, classes=tuple(replace(each, entities=seen) for each in rounds.DISCRETE.classes))
    small = {"batch": 8, "warmup": 0, "updates": 2} if name == "iql" else {}
    model = ModelSpec(net=ENTITIES, hidden=(6, 6))
    made = rounds.learner(name, spaces, rounds.INDEPENDENT, model=model, **small)
    made.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(spaces, 7)]))
    states = [made.state(agent) for agent in rounds.AGENTS]
    assert states[0].metadata["entities"] == "1,2,1"
    (described,) = (each for each in spaces.classes if each.name == agents.name)
    acting = ActingPolicies.from_states(described, states)
    assert acting.greedy(np.ones((4, 3, agents.obs_size), np.float32), None).shape[:2] == (4, 3)
