"""IMPACT: its ratio and its buffer by hand, its target network, and what its learner keeps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos.ppo import losses
from marless.learning.algos.ppo.algorithms import ImpactConfig
from marless.learning.algos.ppo.impact_learner import BatchBuffer
from marless.learning.nets import serial
from tests.unit.learning.algos import rounds

PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))
WALKER = 1
KEPT = "batches.walker"


def test_the_ratio_by_hand():
    # ρ = 2. μ/π_t = 0.5/0.25 = 2: R = 2 · π/μ = π/π_t. μ/π_t = 0.8/0.2 = 4 → 2: R = 2 · π/0.8. π = 0.5 throughout.
    target, old = torch.tensor([0.25, 0.2, 0.9]).log(), torch.tensor([0.5, 0.8, 0.3]).log()
    ratio = (math.log(0.5) - losses.impact_reference(target, old, 2.0)).exp()
    assert ratio.tolist() == pytest.approx([0.5 / 0.25, 2 * 0.5 / 0.8, 0.5 / 0.9])
    with pytest.raises(ValueError, match="shapes must be equal"):
        losses.impact_reference(target, old[:2], 2.0)


def used(batches: int, uses: int, number: int = 7) -> list[list[int]]:
    """Rounds whose batches are used in each of `number` rounds."""
    buffer = BatchBuffer(rounds.DISCRETE, WALKER, batches=batches, uses=uses)
    found = []
    for i in range(number):
        trajectory = rounds.trajectory(rounds.DISCRETE, i)
        trajectory.arrays["reward/1"][:] = i
        buffer.add(i, [trajectory])
        assert len(buffer) <= batches
        found.append([int(batch[0]["reward/1"][0, 0, 0]) for batch in buffer.due(i)])
        buffer.used(i)
        assert len(buffer) < batches
    return found


@pytest.mark.parametrize(
    ("batches", "uses", "last"),
    [
        (1, 3, [6, 6, 6]),
        (4, 2, [4, 6]),  # at ages 0 and 2
        (2, 3, [5, 6, 6]),  # at ages 0, 0 and 1
        (3, 3, [4, 5, 6]),
        (4, 1, [6]),
    ],
)
def test_uses_are_spread_over_the_rounds_that_keep_a_batch(batches, uses, last):
    found = used(batches, uses)
    assert found[-1] == last
    for number in range(7 - batches):
        assert sum(each.count(number) for each in found) == uses
    assert all(each[-1] == number for number, each in enumerate(found))
    assert all(number - oldest < batches for number, each in enumerate(found) for oldest in each)


def test_kept_batches_are_copies_of_what_is_needed():
    buffer = BatchBuffer(rounds.DISCRETE, WALKER, batches=2, uses=2)
    trajectory = rounds.trajectory(rounds.DISCRETE, 1)
    buffer.add(0, [trajectory])
    before = buffer.arrays()["0/0/obs/1"].copy()
    trajectory.arrays["obs/1"][:] = 0
    np.testing.assert_array_equal(buffer.arrays()["0/0/obs/1"], before)
    assert not any(name.endswith("/0") or "state" in name or "boot_mask" in name for name in buffer.arrays())


def test_batches_of_another_run_are_dropped():
    buffer = BatchBuffer(rounds.DISCRETE, WALKER, batches=4, uses=2)
    for number in (40, 41, 0):
        buffer.add(number, [rounds.trajectory(rounds.DISCRETE, number)])
    assert buffer.arrays()["rounds"].tolist() == [0]


def test_a_buffer_takes_only_what_it_could_have_written():
    buffer = BatchBuffer(rounds.DISCRETE, WALKER, batches=2, uses=2)
    buffer.add(3, [rounds.trajectory(rounds.DISCRETE, 1)])
    good = dict(buffer.arrays())
    for damaged, message in (
        ({**good, "3/0/obs/1": good["3/0/obs/1"][:, :2]}, "do not fit this job"),
        ({name: array for name, array in good.items() if name != "3/0/cut"}, "do not fit this job"),
        ({**good, "strange": good["rounds"]}, "'strange', which is of no round"),
        ({**good, "rounds": np.array([4])}, "and should be of"),
    ):
        with pytest.raises(CorruptError, match=message):
            buffer.restore(damaged)


def states(learner) -> dict[str, PolicyState]:
    return {name: serial.decode(*serial.encode(learner.state(name))) for name in learner.names(PAIRS)}


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_learner_that_is_started_again_in_any_round_goes_on_bit_for_bit(recurrent):
    model = rounds.MODEL.model_copy(update={"recurrent": recurrent})
    memory = (0, model.memory) if recurrent == "gru" else ()
    settings = {"epochs": 3, "batches": 2, "minibatches": 2, "target_frequency": 0.5}
    made = {"model": model, "carried": recurrent == "gru"}
    learner = rounds.learner("impact", rounds.DISCRETE, PAIRS, **made, **settings)
    other = learner
    for number in range(4):
        given = rounds.inputs(PAIRS, [rounds.trajectory(rounds.DISCRETE, number, memory=memory)], number)
        before = states(other)
        learner.update(given)
        other = rounds.learner("impact", rounds.DISCRETE, PAIRS, seed=9, **made, **settings)
        for name, state in before.items():
            other.load(name, state)
        other.update(given)
        for name in learner.names(PAIRS):
            assert rounds.flat(learner.state(name)) == rounds.flat(other.state(name)), (number, name)
    assert states(learner)[KEPT].learning["rounds"].tolist() == [3]


def test_targets_follow_after_the_configured_uses():
    # freq · N · K = 1 · 2 · 2 = 4 uses of batches; rounds use 1, 2, 2, 2 …: 4 are over within the third round
    settings = {"epochs": 2, "batches": 2, "minibatches": 3, "target_frequency": 1.0}
    learner = rounds.learner("impact", rounds.DISCRETE, PAIRS, **settings)
    first = learner.state("x").learning["policy.target"]
    moved = []
    for number in range(4):
        learner.update(rounds.inputs(PAIRS, [rounds.trajectory(rounds.DISCRETE, number)], number))
        target = learner.state("x").learning["policy.target"]
        moved.append(not np.array_equal(target, first))
        first = target
    assert moved == [False, False, True, False]
    assert learner.state("x").learning["policy.count"] == 7 * 3


def test_policies_of_the_family_can_be_gone_on_with():
    theirs = rounds.learner("ippo", rounds.DISCRETE, PAIRS).state("x")
    learner = rounds.learner("impact", rounds.DISCRETE, PAIRS)
    learner.load("x", theirs)
    mine = learner.state("x")
    np.testing.assert_array_equal(mine.acting["policy.0.weight"], theirs.acting["policy.0.weight"])
    rounds.learner("ippo", rounds.DISCRETE, PAIRS).load("x", mine)


def test_settings_without_meaning_are_refused():
    with pytest.raises(ValueError, match="does not correct"):
        ImpactConfig.model_validate({"advantage": "gae"})
    with pytest.raises(ValueError, match="critic_epochs has no meaning"):
        ImpactConfig.model_validate({"critic_epochs": 2})
    assert ImpactConfig.model_validate({}).target_steps() == 2 * 4 * 2 * 4
