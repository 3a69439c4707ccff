"""Gradients in bfloat16: close to those in float32, of every family, checked before work, and said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from marless.core.errors import SpecError
from marless.jobs.spec import JobSpec
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.algos.learner import Scope
from marless.learning.algos.ppo.algorithms import IPPOConfig
from marless.learning.algos.training import precision
from marless.learning.algos.training.devices import GradientLoad, computed_by
from marless.learning.algos.training.precision import LIMIT, check_precision, found_device, gradient_error
from marless.learning.envs.base import AgentClass, Box, Discrete, Entities, EnvSpaces
from marless.learning.nets import stacked
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

SEEN = (Entities(2, 3, 2), Entities(9, 2, 3))
DISCRETE = EnvSpaces(
    (AgentClass("walker", rounds.AGENTS, 15, Discrete(4), entities=SEEN),), state_size=6, max_steps=None, masks=True
)
CONTINUOUS = replace(
    DISCRETE, classes=(AgentClass("walker", rounds.AGENTS, 15, Box((-1.0,), (1.0,)), entities=SEEN),), masks=False
)
PIXELS = EnvSpaces(
    (AgentClass("walker", ("a",), 3 * 36 * 36, Discrete(4), image=(3, 36, 36)),), state_size=6, max_steps=None
)
PPO = {"epochs": 1, "minibatches": 1}
DRAWN = {"warmup": 8, "updates": 1, "batch": 16, "replay": {"capacity": 200}}
FAMILIES = [
    ("ippo", PPO, DISCRETE),
    ("ippo", PPO | {"torso": "shared"}, DISCRETE),
    ("mappo", PPO, DISCRETE),
    ("impact", PPO, DISCRETE),
    ("iql", DRAWN, DISCRETE),
    ("qmix", DRAWN, DISCRETE),
    ("pqn", PPO, DISCRETE),
    ("iddpg", DRAWN, CONTINUOUS),
    ("sac", DRAWN | {"random_steps": 0}, CONTINUOUS),
]
NETS = ModelSpec.model_validate({"net": "entities", "hidden": (32, 32)})


def load(spaces=DISCRETE, lower="bfloat16", **changes):
    return GradientLoad(NETS.model_copy(update=changes), spaces, Scope(0, (0,), "walker"), 64, lower)


@pytest.mark.parametrize(("name", "settings", "spaces"), FAMILIES)
def test_gradients_are_close_to_those_in_float32(name, settings, spaces):
    seen = [rounds.trajectory(spaces, actor, steps=20) for actor in range(3)]
    exact, lower = (
        rounds.learner(name, spaces, rounds.INDEPENDENT, model=NETS, precision=each, **settings)
        .gradients(rounds.inputs(rounds.INDEPENDENT, seen))
        .gradients["a"]["policy"]
        for each in ("float32", "bfloat16")
    )
    error = np.linalg.norm(lower - exact) / np.linalg.norm(exact)
    assert lower.dtype == np.float32
    assert 1e-5 < error < LIMIT  # they are others, and close


@pytest.mark.parametrize(("spaces", "changes"), [(DISCRETE, {}), (PIXELS, {"net": "nature", "hidden": (16,)})])
def test_error_of_a_minibatch_is_measured_before_work(spaces, changes):
    error = gradient_error(load(spaces, **changes), "cpu")
    assert 1e-5 < error < LIMIT
    assert error == gradient_error(load(spaces, **changes), "cpu")
    assert gradient_error(load(spaces, "float32", **changes), "cpu") == 0


def test_what_is_only_evaluated_stays_exact():
    given = load()
    flat_PD = given.weights(("a",))
    x_1IM = torch.rand(1, given.inputs + 1, 50, generator=torch.Generator().manual_seed(0))
    exact, lower = (given.nets(flat_PD, each) for each in ("float32", "bfloat16"))
    assert torch.equal(exact.evaluate(x_1IM), lower.evaluate(x_1IM))
    assert not torch.equal(exact.forward(x_1IM), lower.forward(x_1IM))
    assert lower.forward(x_1IM).dtype is torch.float32


def test_nets_by_hand_stay_exact():
    layout = rounds.learner("ippo", rounds.DISCRETE, rounds.INDEPENDENT)._policy_codec.layout
    flat_PD = torch.tensor(layout.initial(np.random.default_rng(0), 1.0))[None]
    x_1IM = torch.ones(1, layout.inputs + 1, 5)
    found = [stacked.net(layout, flat_PD, "tanh", each).forward(x_1IM).clone() for each in ("float32", "bfloat16")]
    assert torch.equal(*found)


@pytest.mark.parametrize("error", [0.3, float("nan")])
def test_gradients_that_are_too_far_off_are_refused(monkeypatch, error):
    monkeypatch.setattr(precision, "gradient_error", lambda load, device: error)
    with pytest.raises(SpecError, match=rf"bfloat16 changes the gradient of a minibatch by {error:.2g} of its norm"):
        check_precision(load(), "cpu")
    assert check_precision(load(lower="float32"), "cpu") == "float32"  # is not compared


def test_gpu_without_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "An old GPU")
    with pytest.raises(SpecError, match="An old GPU has no bfloat16; set float32"):
        check_precision(load(), "cuda:0")


def test_log_and_records_say_it():
    facts = found_device("cpu", load())
    assert (facts["device"], facts["why"]) == ("cpu", "as configured")
    assert facts["precision"].startswith("bfloat16: the gradient of a minibatch differs by 0.0")
    assert ", bfloat16, kernels" in facts["computed_by"]
    assert "float" not in computed_by("cpu")


def spec(net, lower):
    return JobSpec.model_validate(
        {
            "env": "mpe/simple_spread",
            "algorithm": "ippo",
            "model": {"net": net},
            "learner": {"precision": lower},
            "stop": {"rounds": 1},
        }
    )


def test_algorithm_that_computes_in_float32_is_refused(monkeypatch):
    """As those of other packages are, unless they say otherwise: records would name a precision that is not theirs."""
    assert not AlgorithmConfig.lowers_precision
    monkeypatch.setattr(IPPOConfig, "lowers_precision", False)
    with pytest.raises(ValueError, match=r"learner\.precision: learners of ippo compute in float32 only; leave it out"):
        spec("entities", "bfloat16")


def test_job_with_nets_by_hand_is_refused():
    assert spec("entities", "bfloat16").learner.precision == "bfloat16"
    assert spec("mlp", "float32").learner.precision == "float32"
    with pytest.raises(ValueError, match=r"is for nets that torch differentiates.* those of mlp are computed by hand"):
        spec("mlp", "bfloat16")


def test_samples_of_a_gradient_step_follow_from_the_job():
    job = spec("entities", "float32")
    assert job.minibatch_samples == (job.actors.count * job.actors.envs * job.actors.steps // job.algorithm.minibatches)
