"""Agents that are absent say nothing: neither about what is urgent in the replay, nor in metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.core.group import Group
from marless.core.state import PolicyState
from marless.learning.algos.learner import RoundInput
from marless.learning.algos.off_policy.batches import Batch
from marless.learning.algos.off_policy.learner import OffPolicyLearner, Training
from marless.learning.algos.training.passes import PRESENT, PassTimer, step_means
from marless.learning.data.trajectory import Trajectory, TrajectorySchema
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces
from tests.unit.learning.algos import rounds

SPACES = EnvSpaces((AgentClass("walker", rounds.AGENTS, 5, Discrete(4)),), 6, None, deaths=True)
REWARD_TN = np.array([[2.0, 2, 2, 2], [2, 5, 9, 9], [2, 9, 9, 9]])
"""Of the third and the fourth agent from the second step on, and of the second in the third, nothing counts."""
ALIVE_TN = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], np.bool_)
VALUE = 3.0
EVERYONE = (Group("a", rounds.AGENTS),)
DRAW = {"warmup": 0, "gamma": 0.0, "reward_normalisation": False, "batch": 32, "updates": 1}


def _round() -> Trajectory:
    """Two copies of an episode of three steps."""
    rng, schema = np.random.default_rng(3), TrajectorySchema(SPACES, 3, 2, with_state=True)
    arrays = {name: np.zeros(shape, dtype) for name, (dtype, shape) in schema.shapes(0).items()}
    arrays["obs/0"][:] = rng.normal(size=arrays["obs/0"].shape)
    arrays["action/0"][:] = rng.integers(4, size=arrays["action/0"].shape)
    arrays["cut"][-1] = True
    reward = np.repeat(REWARD_TN[..., None], 2, axis=2).astype(np.float32)
    alive = np.repeat(ALIVE_TN[..., None], 2, axis=2)
    over = alive & ~np.concatenate([alive[1:], np.zeros_like(alive[:1])])
    return Trajectory(arrays | {"reward/0": reward, "alive/0": alive, "terminated/0": over})


def _constant(state: PolicyState, prefix: str) -> PolicyState:
    """The state with nets, and target nets, whose outputs are `VALUE`."""
    parts = []
    for arrays in (state.acting, state.learning):
        zero = {name: np.zeros_like(array) if name.startswith(prefix) else array for name, array in arrays.items()}
        biases = sorted(name for name in zero if name.startswith(prefix) and name.endswith(".bias"))
        parts.append(zero | {name: np.full_like(zero[name], VALUE) for name in biases[-1:]})
    return PolicyState(parts[0], parts[1], state.metadata)


def _learner(name: str, groups: tuple[Group, ...], **settings: object) -> tuple[OffPolicyLearner, RoundInput]:
    made = rounds.learner(name, SPACES, groups, **(DRAW | {"replay": {"draw": "prioritised"}} | settings))
    assert isinstance(made, OffPolicyLearner)
    prefix = "critic" if name.endswith("ddpg") else "policy"
    for state in made.names(groups):
        if not state.startswith("replay"):
            made.load(state, _constant(made.state(state), prefix))
    given = rounds.inputs(groups, [_round()])
    made._remember(given)
    seen = made._replay.draw(np.random.default_rng(0), 40).row
    made._replay.reprioritise(seen, np.random.default_rng(1).exponential(size=40))
    return made, given


def _priorities(made: OffPolicyLearner, given: RoundInput) -> tuple[Batch, Training, dict[int, float]]:
    """A batch with its training, and the priorities of its env steps by time step."""
    [batch] = rounds.draws(made, given, 32)
    training = made._training(given, copies=True)
    _, found = training.gradients(batch, PassTimer())
    assert found is not None
    assert batch.importance is not None
    assert batch.importance.min() < 0.9
    first, step, row = made._replay.take("first", batch.row), {}, batch.row
    for at, begins, priority in zip(row.tolist(), first, found.tolist(), strict=True):
        step.setdefault(_time(made, at, begins), []).append(priority)
    return batch, training, {t: float(np.unique(np.round(each, 5)).item()) for t, each in step.items()}


def _time(made: OffPolicyLearner, row: int, begins: np.bool_) -> int:
    """The step of an episode at a row: that of as many agents as are left."""
    return 0 if begins else {2: 1, 1: 2}[int(made._replay.take("alive/0", np.array([row])).sum())]


@pytest.mark.parametrize("groups", [rounds.INDEPENDENT, EVERYONE], ids=["independent", "shared"])
@pytest.mark.parametrize("name", ["iql", "iddpg", "maddpg"])
def test_what_is_urgent_is_the_mean_error_of_those_who_are_there(name, groups):
    """Errors V − r = 1, 1, 1, 1; then 1, −2 and two that are absent; then 1 of the last one."""
    _, _, found = _priorities(*_learner(name, groups))
    assert found == pytest.approx({0: 1.0, 1: 1.5, 2: 1.0}, abs=1e-4)


def test_an_episode_is_as_urgent_as_its_mean_sample():
    """The seven samples that count have errors 1, six times, and 2."""
    made, given = _learner("iql", rounds.INDEPENDENT, replay={"draw": "prioritised", "unit": "episodes"}, batch=2)
    [batch] = rounds.draws(made, given, 2)
    _, found = made._training(given, copies=True).gradients(batch, PassTimer())
    assert found is not None
    assert found.tolist() == pytest.approx([8 / 7, 8 / 7])


@pytest.mark.parametrize("name", ["iql", "iddpg", "maddpg"])
def test_values_are_means_whatever_was_drawn_more_often(name):
    made, given = _learner(name, rounds.INDEPENDENT)
    _, training, _ = _priorities(made, given)
    values = [found["value"] for found in training.metrics().values() if "value" in found]
    assert values == pytest.approx([VALUE] * 4)


def test_errors_in_metrics_are_those_of_uniform_draws_and_losses_are_what_is_minimised():
    made, given = _learner("iql", rounds.INDEPENDENT)
    batch, training, _ = _priorities(made, given)
    found = training.metrics()["a"]  # whose error is 1 in each sample
    assert batch.importance is not None
    assert found["td_error"] == pytest.approx(1.0)
    assert found["td_loss"] == pytest.approx(0.5 * float(batch.importance.mean()))


@pytest.mark.parametrize("name", ["iql", "iddpg", "maddpg"])
def test_a_step_without_samples_of_an_agent_is_no_value_of_it(name):
    """Of two gradient steps one has drawn only the last step of episodes, in which three agents are absent."""
    made, given = _learner(name, rounds.INDEPENDENT)
    training = made._training(given, copies=True)
    rows = [row for row in range(8) if int(made._replay.take("alive/0", np.array([row])).sum()) == 1]
    last = [row for row in rows if bool(made._replay.take("terminated/0", np.array([row])).any())]
    for wanted in ([last[0]] * 32, [0] * 32):
        made._replay.reprioritise(np.arange(8), np.zeros(8))
        made._replay.reprioritise(np.array(wanted), np.full(32, 1e6))
        [batch] = rounds.draws(made, given, 32)
        assert set(batch.row.tolist()) == set(wanted)
        training.gradients(batch, PassTimer())
    values = [found["value"] for found in training.metrics().values() if "value" in found]
    assert values == pytest.approx([VALUE] * 4)


def test_members_of_a_shared_policy_leave_the_rest_of_a_batch_as_urgent_as_it_was():
    """Four members train on a quarter of 30 env steps each, 28 in all: the last two have no error."""
    made, given = _learner("iddpg", EVERYONE, batch=30)
    given = RoundInput(given.round, given.env_steps, given.seed, EVERYONE, given.trajectories, "drawn")
    [batch] = rounds.draws(made, given, 30)
    _, found = made._training(given, copies=True).gradients(batch, PassTimer())
    assert found is not None
    assert found[-2:].isnan().all()
    assert not found[:-2].isnan().any()


def test_means_over_steps_are_of_nets_that_had_samples():
    here, gone = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    steps = [
        {"value": torch.tensor([4.0, 1.0, 0.0]), PRESENT: here},
        {"norm": torch.tensor([2.0, 2.0, 0.0])},
        {"value": torch.tensor([0.0, 3.0, 0.0]), PRESENT: gone},
    ]
    found = {key: mean_P.tolist() for key, mean_P in step_means(steps).items()}
    assert found == {"value": [4.0, 2.0, 0.0], "norm": [2.0, 2.0, 0.0]}
