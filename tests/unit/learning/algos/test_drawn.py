"""Shared policies that train on as many samples as one agent has; and what merges and splits start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.core.group import Group
from marless.learning.algos.learner import Learner
from marless.learning.algos.training.policy_batching import Stack, drawn_stacks
from marless.learning.data.trajectory import Trajectory
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learning.algos import rounds

WALKERS = EnvSpaces((AgentClass("walker", rounds.AGENTS, 5, Discrete(4)),), state_size=6, max_steps=None)
MIXED = (Group("c", ("b", "c", "d")), Group("a", ("a",)))
SHARED = (Group("all", rounds.AGENTS),)
ALGORITHMS = pytest.mark.parametrize(
    ("name", "settings"), [("ippo", {}), ("mappo", {}), ("mappo", {"critic": "per_agent"})]
)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _drawn(groups: Sequence[Group] = MIXED, *, seed: int = 5, number: int = 2, parts: int = 1) -> list[Stack]:
    return drawn_stacks(groups, WALKERS.classes[0], samples=30, seed=(seed, number), parts=parts, device=CPU)


def _origin(stack: Stack) -> np.ndarray:
    """[P, S]: agent · 100 + sample, of every sample that a policy trains on."""
    numbers = 100 * torch.arange(4).view(4, 1, 1) + torch.arange(30).view(1, 1, 30)
    return stack.pool(numbers.float()).squeeze(1).int().numpy()


def test_each_policy_gets_as_many_samples_as_an_agent_from_all_its_members_once() -> None:
    (stack,) = _drawn()
    shared, alone = _origin(stack)
    assert len(set(shared.tolist())) == 30
    assert set((shared // 100).tolist()) == {1, 2, 3}
    assert alone.tolist() == list(range(30))


def test_draws_are_fair() -> None:
    counts = np.zeros(400)
    for number in range(300):
        shared = _origin(_drawn(number=number)[0])[0]
        counts[shared] += 1
    members = counts.reshape(4, 100)[1:, :30]
    assert members.sum(axis=1) == pytest.approx([3000] * 3, rel=0.05)
    assert members.min() > 60  # each sample is expected 100 times, with a deviation of 8
    assert members.max() < 140


def test_draws_follow_from_seed_round_and_policy_alone() -> None:
    first = _origin(_drawn()[0])
    assert (first == _origin(_drawn()[0])).all()
    assert (first[0] == _origin(_drawn(MIXED[::-1])[0])[1]).all()
    assert [_origin(stack)[0].tolist() for stack in _drawn(parts=2)] == first.tolist()
    others = [_drawn(seed=6), _drawn(number=3), _drawn((Group("b", MIXED[0].agents), MIXED[1]))]
    assert all((_origin(other[0])[0] != first[0]).any() for other in others)


def test_everything_is_judged_not_only_what_is_drawn() -> None:
    (stack,) = _drawn()
    x = torch.randn(4, 3, 30, generator=torch.Generator().manual_seed(0))
    assert stack.owner.tolist() == [0, 0, 0, 1]
    torch.testing.assert_close(stack.seen(x), x[[1, 2, 3, 0]])
    out = torch.zeros(4, 30)
    stack.spread(stack.seen(x)[:, :1], out)
    torch.testing.assert_close(out, x[:, 0])


def test_every_agent_must_be_in_one_group() -> None:
    with pytest.raises(SpecError, match="exactly once"):
        _drawn(MIXED[:1])


def _learned(
    learner: Learner,
    groups: Sequence[Group],
    spaces: EnvSpaces = WALKERS,
    pooling: Literal["pooled", "drawn"] = "drawn",
    rounds_: Sequence[int] = (0, 1),
) -> dict[str, dict[str, bytes]]:
    for number in rounds_:
        given = rounds.inputs(groups, [rounds.trajectory(spaces, 7 + number)], number)
        learner.update(replace(given, pooling=pooling))
    return {name: rounds.flat(learner.state(name)) for name in learner.names(groups)}


@ALGORITHMS
@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS])
def test_an_agent_by_itself_trains_as_if_nothing_were_drawn(
    name: str, settings: dict[str, object], spaces: EnvSpaces
) -> None:
    for groups, agents in ((rounds.INDEPENDENT, rounds.AGENTS), (MIXED, ("a",))):
        pooled, drawn = (
            _learned(rounds.learner(name, spaces, groups, **settings), groups, spaces, pooling, (0,))
            for pooling in ("pooled", "drawn")
        )
        for agent in agents:
            assert _close(pooled[agent], drawn[agent])
        if groups is rounds.INDEPENDENT:
            assert pooled == drawn
        else:
            assert not _close(pooled["c"], drawn["c"])


def _close(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """Equal but for the order in which products of differently sized stacks add up."""
    kept = [key for key in one if not key.endswith(("count", "moments"))]
    arrays = [[np.frombuffer(state[key], np.float32) for key in kept] for state in (one, other)]
    return all(np.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in zip(*arrays, strict=True))


@ALGORITHMS
def test_the_number_of_threads_changes_nothing(
    name: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = (Group("x", ("a", "d")), Group("b", ("b",)), Group("c", ("c",)))
    outcomes = []
    for threads in (1, 4, 8):
        monkeypatch.setattr(torch, "get_num_interop_threads", lambda threads=threads: threads)
        learner = rounds.learner(name, rounds.DISCRETE, groups, **settings)
        outcomes.append(_learned(learner, groups, rounds.DISCRETE))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_a_shared_policy_learns_what_one_agent_would_from_the_samples_drawn() -> None:
    """With γ = 0 an advantage is of its sample alone: the samples drawn can be made up into one agent's trajectory."""
    trajectory = rounds.trajectory(WALKERS, 7)
    settings: dict[str, object] = {"gamma": 0.0}
    shared = rounds.learner("ippo", WALKERS, SHARED, **settings)
    shared.update(replace(rounds.inputs(SHARED, [trajectory]), pooling="drawn"))

    stack = drawn_stacks(SHARED, WALKERS.classes[0], samples=30, seed=(11, 0), parts=1, device=CPU)[0]
    arrays = dict(trajectory.arrays)
    for name in ("obs/0", "action/0", "log_prob/0", "reward/0", "terminated/0"):
        by_agent = np.moveaxis(arrays[name], 1, 0).reshape(4, 30, -1)
        picked = np.concatenate([by_agent[i][column] for i, column in enumerate(stack.columns)])
        arrays[name] = picked.reshape(6, 1, 5, *arrays[name].shape[3:])
    arrays["boot_obs/0"] = arrays["boot_obs/0"][:1]
    one = EnvSpaces((AgentClass("walker", ("a",), 5, Discrete(4)),), state_size=6, max_steps=None)
    alone = rounds.learner("ippo", one, (Group("all", ("a",)),), **settings)
    alone.update(rounds.inputs((Group("all", ("a",)),), [Trajectory(arrays)]))
    assert _close(rounds.flat(alone.state("all")), rounds.flat(shared.state("all")))


@ALGORITHMS
def test_a_split_hands_every_member_all_that_was_shared(name: str, settings: dict[str, object]) -> None:
    """As if each had been given the shared state under its own name: weights, moments, critic, normaliser."""
    learner = rounds.learner(name, WALKERS, MIXED, **settings)
    _learned(learner, MIXED)
    by_hand = rounds.learner(name, WALKERS, rounds.INDEPENDENT, seed=9, **settings)
    for held in learner.names(MIXED):
        by_hand.load(held, learner.state(held))
    for agent in ("b", "d"):
        by_hand.load(agent, learner.state("c"))
    split = (Group("a", ("a",)), Group("b", ("b",), "c"), Group("c", ("c",)), Group("d", ("d",), "c"))
    after = _learned(learner, split, rounds_=(2,))
    assert after == _learned(by_hand, rounds.INDEPENDENT, rounds_=(2,))
    assert {"policy.first", "policy.second", "policy.count"} <= after["d"].keys()
    assert ("critic.moments" in after["d"]) == (name == "ippo" or bool(settings))


@ALGORITHMS
@pytest.mark.parametrize("pooling", ["pooled", "drawn"])
def test_a_merge_starts_from_the_policy_it_is_named_after(
    name: str, settings: dict[str, object], pooling: Literal["pooled", "drawn"]
) -> None:
    learner = rounds.learner(name, WALKERS, rounds.INDEPENDENT, **settings)
    _learned(learner, rounds.INDEPENDENT)
    by_hand = rounds.learner(name, WALKERS, MIXED, seed=9, **settings)
    for held in by_hand.names(MIXED):
        by_hand.load(held, learner.state(held))
    assert _learned(learner, MIXED, pooling=pooling, rounds_=(2,)) == _learned(
        by_hand, MIXED, pooling=pooling, rounds_=(2,)
    )
