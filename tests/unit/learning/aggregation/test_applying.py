"""Gradients applied in NumPy: by hand, as learners apply them, and so that Adam does not cancel their weights."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.core.group import Group
from marless.core.state import NetStep, PolicyState
from marless.learning.aggregation import applying as adam
from marless.learning.aggregation.applying import Matrices, applied, check, combine
from marless.learning.algos import registry
from marless.learning.algos.algorithm import AlgorithmConfig
from marless.learning.envs.base import EnvSpaces
from marless.learning.nets import adam as torch_adam
from marless.learning.nets import serial
from marless.learning.nets.layout import layout
from marless.learning.nets.model import ModelSpec
from tests.unit.learning.algos import rounds

STEP = NetStep(lr=0.1, eps=1e-30, max_grad_norm=1e9)
PAIRS = (Group("x", ("a", "c")), Group("y", ("b",)), Group("z", ("d",)))


def state(*weights: float) -> PolicyState:
    """A net of one output with these weights, the last of them the bias, that has not been trained."""
    flat_D = np.array(weights, np.float32)
    acting = {"policy.0.weight": flat_D[None, :-1], "policy.0.bias": flat_D[-1:]}
    zeros_D = np.zeros_like(flat_D)
    learning = {"policy.first": zeros_D, "policy.second": zeros_D, "policy.count": np.array(0)}
    return PolicyState(acting, learning, {})


def flat(made: PolicyState) -> list[float]:
    return [float(x) for x in Matrices.of("policy", made.acting).flat(made.acting)]


def gradient(*numbers: float) -> dict[str, np.ndarray]:
    return {"policy": np.array(numbers, np.float32)}


def test_combined_gradients_by_hand():
    # w = 1, 1/2: ĝ = (1·3 + ½·0) / 1.5 = 2 and (1·0 + ½·6) / 1.5 = 2; the scale is 1.5 / 2
    found = combine([gradient(3, 0), gradient(0, 6)], [1.0, 0.5])
    assert found.gradient["policy"].tolist() == [2, 2]
    assert found.scale == 0.75
    # so that scale · ĝ = (1/H) Σ w g = ½ · (3, 3): gradient descent along it is the formula of the paper
    assert (found.scale * found.gradient["policy"]).tolist() == [1.5, 1.5]


def test_a_step_of_adam_by_hand():
    # The first step of Adam is −lr · g/|g|: its moments are (1 − β₁)g and (1 − β₂)g², corrected to g and g².
    made = applied(state(1.0, 1.0), [gradient(4.0, -2.0)], [1.0], {"policy": STEP})
    assert flat(made) == pytest.approx([0.9, 1.1])
    assert made.learning["policy.first"].tolist() == pytest.approx([0.4, -0.2])
    assert made.learning["policy.second"].tolist() == pytest.approx([0.016, 0.004])
    assert made.learning["policy.count"] == 1
    # The second: m = 0.9·0.4 + 0.1·0 = 0.36, c₁ = 0.19; v = 0.999·0.016 = 0.015984, c₂ = 0.001999
    again = applied(made, [gradient(0.0, 0.0)], [1.0], {"policy": STEP})
    assert flat(again)[0] == pytest.approx(0.9 - 0.1 * (0.36 / 0.19) / math.sqrt(0.015984 / 0.001999))


def test_adam_does_not_cancel_the_weights():
    # All gradients have staleness 8, v = 3: weights of ½. The step is half as long, which it would not be if the
    # gradient were halved: Adam's first step has length lr whatever the gradient's size.
    whole = applied(state(1.0, 1.0), [gradient(4.0, -2.0)] * 2, [1.0, 1.0], {"policy": STEP})
    half = applied(state(1.0, 1.0), [gradient(4.0, -2.0)] * 2, [0.5, 0.5], {"policy": STEP})
    halved = applied(state(1.0, 1.0), [gradient(2.0, -1.0)] * 2, [1.0, 1.0], {"policy": STEP})
    assert flat(whole) == pytest.approx([0.9, 1.1])
    assert flat(halved) == pytest.approx([0.9, 1.1])
    assert flat(half) == pytest.approx([0.95, 1.05])
    # The moments are those of whole gradients, so that a weight has no effect on later steps.
    for name in ("policy.first", "policy.second"):
        np.testing.assert_array_equal(half.learning[name], whole.learning[name])


def test_a_stale_gradient_counts_less_in_the_direction():
    # ĝ = (1·1 + ¼·(−2)) / 1.25 = 0.4 > 0: the fresh one decides, and the step has length 1.25/2 · lr
    made = applied(state(0.0, 0.0), [gradient(1.0, 0.0), gradient(-2.0, 0.0)], [1.0, 0.25], {"policy": STEP})
    assert flat(made)[0] == pytest.approx(-0.1 * 0.625)
    even = applied(state(0.0, 0.0), [gradient(1.0, 0.0), gradient(-2.0, 0.0)], [1.0, 1.0], {"policy": STEP})
    assert flat(even)[0] == pytest.approx(0.1)


def test_separate_steps_as_in_the_authors_code():
    # Two first steps by hand: −0.1 · 1, then m = 0.9·0.4 + 0.1·2 = 0.56 of c₁ = 0.19, v = 0.999·0.016 + 0.001·4
    made = applied(
        state(1.0, 1.0), [gradient(4.0, 4.0), gradient(2.0, 2.0)], [1.0, 0.5], {"policy": STEP}, separate=True
    )
    second = 0.5 * 0.1 * (0.56 / 0.19) / math.sqrt((0.999 * 0.016 + 0.004) / 0.001999)
    assert flat(made) == pytest.approx([0.9 - second] * 2)
    assert made.learning["policy.count"] == 2


def test_the_norm_of_the_mean_is_limited():
    # ĝ = (3, 4), norm 5, limited to 1: the moments are those of (0.6, 0.8)
    step = NetStep(lr=0.1, eps=0.0, max_grad_norm=1.0)
    made = applied(state(0.0, 0.0), [gradient(6.0, 8.0), gradient(0.0, 0.0)], [1.0, 1.0], {"policy": step})
    assert made.learning["policy.first"].tolist() == pytest.approx([0.06, 0.08])


def test_the_constants_are_those_of_the_learners():
    assert (adam.BETA1, adam.BETA2) == (torch_adam.BETA1, torch_adam.BETA2)


@pytest.mark.parametrize(
    "kind", [{}, {"recurrent": "gru"}, {"recurrent": "lstm"}, {"hidden": (6,), "recurrent": "gru"}, {"hidden": (3,)}]
)
@pytest.mark.parametrize("free", [0, 2])
def test_flat_vectors_are_those_of_the_layout(kind, free):
    shape = layout(5, ModelSpec.model_validate({"hidden": (8, 4), **kind}), 3, free)
    flat_D = np.arange(shape.size, dtype=np.float32)
    arrays = shape.to_arrays("policy", flat_D)
    matrices = Matrices.of("policy", dict(sorted(arrays.items(), reverse=True)))
    assert matrices.size == shape.size
    np.testing.assert_array_equal(matrices.flat(arrays), flat_D)
    found = matrices.named(flat_D)
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in arrays.items()}
    np.testing.assert_array_equal(matrices.output_layer(flat_D), flat_D[shape.spans[-1]].reshape(shape.shapes[-1]))


def config_of(name: str, settings: dict[str, object]) -> AlgorithmConfig:
    return registry.algorithm(name).config_type.model_validate({"name": name, **settings})


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ippo", {}),
        ("ippo", {"value_normalisation": False, "critic_lr": 1e-3}),
        ("ippo", {"popart": True, "value_decay": 0.5}),
        ("mappo", {"popart": True}),
        ("mappo", {"critic": "per_agent"}),
        ("impact", {"epochs": 1, "batches": 1, "minibatches": 2, "target_frequency": 1.0}),
    ],
)
@pytest.mark.parametrize("recurrent", ["none", "gru"])
@pytest.mark.parametrize("spaces", [rounds.DISCRETE, rounds.CONTINUOUS], ids=["discrete", "continuous"])
def test_a_fresh_gradient_is_applied_as_its_learner_applies_it(name, settings, recurrent, spaces: EnvSpaces):
    settings = {"lr": {"start": 1e-2, "end": 0.0, "env_steps": 5000}, **settings}
    model = ModelSpec.model_validate({"hidden": (16, 8), "recurrent": recurrent})
    learner = rounds.learner(name, spaces, PAIRS, model=model, **settings)
    steps = config_of(name, settings)
    for number in range(3):
        given = rounds.inputs(PAIRS, [rounds.trajectory(spaces, 7 + number)], number)
        found = learner.gradients(given).gradients
        for each in found:
            sent = serial.decode(*serial.encode(learner.state(each)))
            mine = applied(sent, [found[each]], [1.0], steps.net_steps(given.env_steps))
            learner.apply(each, found[each], given.env_steps)
            theirs = learner.state(each)
            assert (mine.acting.keys(), mine.learning.keys()) == (theirs.acting.keys(), theirs.learning.keys())
            assert mine.metadata == theirs.metadata
            for got, expected in ((mine.acting, theirs.acting), (mine.learning, theirs.learning)):
                for key, array in expected.items():
                    assert (got[key].dtype, got[key].shape) == (array.dtype, array.shape)
                    np.testing.assert_allclose(got[key], array, rtol=2e-5, atol=2e-7, err_msg=f"{each}.{key}")
            learner.load(each, mine)


def test_what_does_not_fit_is_refused_with_its_shapes():
    steps = {"policy": STEP}
    for odd in (gradient(1.0), {"critic": np.zeros(2, np.float32)}, {"policy": np.zeros(2)}):
        with pytest.raises(CorruptError, match="and its policy needs"):
            check(state(1.0, 1.0), [odd], steps)
    with pytest.raises(CorruptError, match="NaN or infinite"):
        check(state(1.0, 1.0), [gradient(1.0, 1.0), gradient(1.0, math.nan)], steps)
    with pytest.raises(CorruptError, match="no optimizer of any"):
        check(state(1.0, 1.0), [gradient(1.0, 1.0)], {"critic": STEP})
    for weights in ([], [1.0, 1.0], [0.0]):
        with pytest.raises(ValueError, match="weights above 0"):
            combine([gradient(1.0)], weights)
    with pytest.raises(CorruptError, match="cannot be averaged"):
        combine([gradient(1.0), gradient(1.0, 2.0)], [1.0, 1.0])


def test_off_policy_learners_take_their_steps_themselves():
    assert config_of("iql", {}).net_steps(0) == {}


def test_it_needs_no_torch():
    modules = "marless.learning.aggregation.applying, marless.learning.aggregation.queue"
    program = f"import sys; sys.modules['torch'] = None; import {modules}"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
