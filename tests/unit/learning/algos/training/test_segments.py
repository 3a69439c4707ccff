"""Segments, worked out by hand: what stands where, what is forgotten when, and how they are pooled, drawn and cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.learning.algos import registry
from marless.learning.algos.algorithm import Setting
from marless.learning.algos.training.policy_batching import Samples, drawn_stacks, stacks
from marless.learning.algos.training.segments import Segments
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

WALKERS = EnvSpaces((AgentClass("walker", rounds.AGENTS, 5, Discrete(4)),), state_size=6, max_steps=None)
GRU = ModelSpec.model_validate({"hidden": (16, 8), "recurrent": "gru"})
CPU = torch.device("cpu")
# Three steps of two copies. Copy 0 is cut after steps 0 and 2, both times with a bootstrap row; copy 1 after step 1,
# where its episode ended by itself, and after step 2, with a bootstrap row.
CUT = torch.tensor([[True, False], [False, True], [True, True]])
BOOT_INDEX = torch.tensor([0, 4, 5])


def test_bootstrap_rows_stand_right_after_the_step_at_which_an_episode_was_cut() -> None:
    segments = Segments.of({"cut": CUT, "boot_index": BOOT_INDEX})
    samples, boots = torch.arange(6.0).view(1, 1, -1), torch.tensor([[[100.0, 104.0, 105.0]]])
    frames = segments.frames(samples, boots).view(5, 2)
    assert frames[:, 0].tolist() == [0, 100, 2, 4, 104]
    assert frames[:4, 1].tolist() == [1, 3, 5, 105]  # and nothing after it
    assert frames.flatten()[segments.at_sample].tolist() == [0, 1, 2, 3, 4, 5]
    assert frames.flatten()[segments.at_boot].tolist() == [100, 104, 105]


def test_memory_is_empty_where_episodes_start_and_never_before_a_bootstrap_row() -> None:
    segments = Segments.of({"cut": CUT, "boot_index": BOOT_INDEX})
    assert segments.first.view(3, 2).tolist() == [[1, 1], [1, 0], [0, 1]]
    resets = segments.resets(None, agents=4)[0]
    assert resets[:, 0].tolist() == [True, False, True, False, False]
    assert resets[:4, 1].tolist() == [True, False, True, False]


def test_memory_is_empty_where_an_agent_comes_back_except_that_of_a_joint_critic() -> None:
    """The second of two agents comes back before the last step of copy 0, and before the second one of copy 1."""
    returned = torch.zeros(2, 3, 2, dtype=torch.bool)
    returned[1, 2, 0] = returned[1, 1, 1] = True
    segments = Segments.of({"cut": CUT, "boot_index": BOOT_INDEX, "returned": returned})
    assert segments.own_first.view(2, 3, 2).tolist() == [[[1, 1], [1, 0], [0, 1]], [[1, 1], [1, 1], [1, 1]]]
    (both,) = stacks(
        (Group("a", ("a",)), Group("b", ("b",))),
        AgentClass("two", ("a", "b"), 1, Discrete(2)),
        parts=1,
        device=CPU,
        copies=2,
    )
    resets = segments.resets(both, agents=2)
    assert resets[:, :, 0].tolist() == [[True, False, True, False, False], [True, False, True, True, False]]
    assert resets[:, :4, 1].tolist() == [[True, False, True, False], [True, True, True, False]]
    assert segments.resets(None, agents=2)[0, :, 0].tolist() == [True, False, True, False, False]


@given(st.data(), st.integers(1, 6), st.integers(1, 4))
def test_frames_keep_the_order_of_time(data: st.DataObject, steps: int, copies: int) -> None:
    """Of any cuts, a part of them with bootstrap rows."""
    cut = torch.tensor(data.draw(st.lists(st.booleans(), min_size=steps * copies, max_size=steps * copies)))
    boots = cut & torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(cut), max_size=len(cut))))
    index = boots.nonzero().squeeze(1)
    segments = Segments.of({"cut": cut.view(steps, copies), "boot_index": index})
    samples, rows = torch.arange(float(len(cut))), 0.5 + index.float()
    frames = segments.frames(samples.view(1, 1, -1), rows.view(1, 1, -1)).view(-1, copies)
    assert frames.flatten()[segments.at_sample].tolist() == samples.tolist()
    assert frames.flatten()[segments.at_boot].tolist() == rows.tolist()
    resets = segments.resets(None, agents=1)[0]
    for b in range(copies):
        expected = sorted([n for n in samples.tolist() + rows.tolist() if int(n) % copies == b])
        assert frames[: len(expected), b].tolist() == expected
        starts = [n in range(copies) or (n.is_integer() and bool(cut[int(n) - copies])) for n in expected]
        assert resets[: len(expected), b].tolist() == starts


def _numbers() -> torch.Tensor:
    """[4, 2, 6]: 1000 · row + 100 · agent + sample, three steps of two copies."""
    rows = 1000 * torch.arange(2).view(1, -1, 1)
    return (rows + 100 * torch.arange(4).view(-1, 1, 1) + torch.arange(6)).float()


def test_members_segments_stand_side_by_side_at_each_step() -> None:
    groups = (Group("x", ("a", "c")), Group("y", ("b", "d")))
    (stack,) = stacks(groups, WALKERS.classes[0], parts=1, device=CPU, copies=2)
    pooled = stack.pool(_numbers())
    assert pooled[0, 0].tolist() == [0, 1, 200, 201, 2, 3, 202, 203, 4, 5, 204, 205]
    assert pooled[1, 1].tolist() == [x + 1100 for x in pooled[0, 0].tolist()]
    back = torch.zeros(4, 6)
    stack.spread(stack.seen(_numbers())[:, :1], back)
    torch.testing.assert_close(back, _numbers()[:, 0])


def test_groups_draw_whole_segments_as_many_as_one_agent_has() -> None:
    groups = (Group("x", ("a", "b", "c")), Group("d", ("d",)))
    whole = {100 * agent + copy for agent in range(3) for copy in range(2)}
    seen = set()
    for number in range(20):
        (stack,) = drawn_stacks(groups, WALKERS.classes[0], samples=6, seed=(5, number), parts=1, device=CPU, copies=2)
        pooled = stack.pool(_numbers())
        drawn = pooled[0, 0].view(3, 2)
        assert len(set(drawn[0].tolist())) == 2
        assert drawn[1].tolist() == [x + 2 for x in drawn[0].tolist()]
        assert drawn[2].tolist() == [x + 4 for x in drawn[0].tolist()]
        torch.testing.assert_close(pooled[0, 1], pooled[0, 0] + 1000)
        torch.testing.assert_close(pooled[1], _numbers()[3])
        seen |= set(drawn[0].int().tolist())
    assert seen == whole


def test_minibatches_hold_whole_segments_in_time_order() -> None:
    """Two policies, four segments of three steps, that forget at different steps."""
    numbers = torch.arange(12.0).expand(2, 1, -1) + torch.tensor([0.0, 100.0]).view(-1, 1, 1)
    first = torch.zeros(2, 1, 12)
    first[1, 0, 6] = 1  # step 1 of segment 2
    memory = torch.arange(4.0) + torch.tensor([[[0.0]], [[10.0]]])
    samples = Samples({"features": numbers, "first": first}, steps=3, memory_PHB=memory)
    assert (samples.count, samples.unit) == (4, 3)
    samples.shuffle(torch.tensor([2, 0, 3, 1]))
    one, two, three = samples.minibatches(3)
    assert one["features"][0, 0].tolist() == [2, 6, 10]
    assert two["features"][1, 0].tolist() == [100, 104, 108]
    assert three["features"][0, 0].tolist() == [3, 1, 7, 5, 11, 9]
    assert one["resets"].tolist() == [[[False]] * 3, [[False], [True], [False]]]
    assert two["resets"].shape == (2, 3, 1)
    assert [each["memory"].tolist() for each in (one, three)] == [[[[2]], [[12]]], [[[3, 1]], [[13, 11]]]]
    some = samples.subset(torch.tensor([3, 2]))
    assert some["features"][0, 0].tolist() == [3, 2, 7, 6, 11, 10]
    assert some["memory"].tolist() == [[[3, 2]], [[13, 12]]]
    assert some["resets"][1].tolist() == [[False, False], [False, True], [False, False]]


@pytest.mark.parametrize("name", ["ippo", "mappo"])
def test_more_minibatches_than_segments_are_refused_before_anything_starts(name: str) -> None:
    algorithm = registry.algorithm(name)

    def check(model: ModelSpec, minibatches: int) -> None:
        config = algorithm.config_type.model_validate({"name": name, "minibatches": minibatches})
        setting = Setting(spaces=WALKERS, model=model, samples=30, steps=10, memory_bytes=2**30)
        algorithm.check(config, setting)

    check(GRU, 3)
    check(rounds.MODEL, 30)
    with pytest.raises(SpecError, match=r"minibatches is 4, .* only 3 segments a round .* set at most 3"):
        check(GRU, 4)
    with pytest.raises(SpecError, match="only 30 samples"):
        check(rounds.MODEL, 31)
    learner = rounds.learner(name, WALKERS, rounds.INDEPENDENT, model=GRU, minibatches=6)
    with pytest.raises(SpecError, match="only 5 segments"):
        learner.update(rounds.inputs(rounds.INDEPENDENT, [rounds.trajectory(WALKERS, 1)]))
