"""Statistics of observations by hand, and policies that act on what is normalised by them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import CorruptError
from marless.learning.envs.base import AgentClass, Box
from marless.learning.nets import normalising
from marless.learning.nets.acting import ActingPolicies, ActingState, description
from marless.learning.nets.layout import generator, layout
from marless.learning.nets.model import ModelSpec
from marless.learning.nets.normalising import added, centre_and_scale

HAND = np.array([[3.0, 6.0, 14.0], [3.0, -3.0, 3.0]])
"""Sums of (1, −1), (2, −1), (3, −1)."""


def test_sums_by_hand():
    samples = np.array([[1, -1], [2, -1], [3, -1]], np.float32)
    np.testing.assert_array_equal(added([(samples, None)]), HAND)
    np.testing.assert_array_equal(added([(samples[:1], None), (samples[1:], None)]), HAND)
    absent = np.array([[[9.0, 9.0]]], np.float32)
    np.testing.assert_array_equal(added([(samples, None), (absent, np.zeros((1, 1), bool))]), HAND)


def test_centre_and_scale_by_hand():
    """The first input has mean 2 and variance 2/3; the second never changes."""
    centre, scale = centre_and_scale(HAND)
    assert centre.dtype == scale.dtype == np.float32
    np.testing.assert_allclose(centre, [2, -1])
    np.testing.assert_allclose(scale, [np.sqrt(1.5), 1e4], rtol=1e-6)


def test_before_anything_was_seen_inputs_stay_as_they_are():
    centre, scale = centre_and_scale(np.zeros((2, 3)))
    assert centre.tolist() == [0, 0] and scale.tolist() == [1, 1]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.integers(0, 2**31))
def test_it_does_not_matter_how_samples_are_divided(sizes, seed):
    samples = np.random.default_rng(seed).normal(100, 3, (sum(sizes), 2)).astype(np.float32)
    parts = np.split(samples, np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(added([(part, None) for part in parts]), added([(samples, None)]), rtol=1e-12)


AGENTS = AgentClass("agent", ("a", "b"), 2, Box((-1.0,), (1.0,)))
MODEL = ModelSpec(hidden=(4,), normalise_observations=True, observation_clip=1.5)


def state(seed, seen, model=MODEL):
    shape = layout(2, model, 1, 1)
    arrays = shape.to_arrays("policy", shape.initial(generator(seed, "a"), 1.0))
    return ActingState({**arrays, "policy.seen": seen}, description(AGENTS, model))


def plain(of):
    metadata = {key: value for key, value in of.metadata.items() if key != normalising.METADATA}
    return ActingState({name: each for name, each in of.acting.items() if name != "policy.seen"}, metadata)


def test_each_agent_acts_on_what_its_policy_normalises():
    """As the same net acts on numbers that were normalised and clipped by hand."""
    first, second = state(0, HAND), state(1, np.array([[1.0, 0.0, 4.0], [1.0, 0.0, 0.25]]))
    obs_NBO = np.array([[[2, -1], [12, -1]], [[2, 1], [0, -0.25]]], np.float32)
    by_hand = np.array([[[0, 0], [1.5, 0]], [[1, 1.5], [0, -0.5]]], np.float32)
    found, _ = ActingPolicies.from_states(AGENTS, [first, second]).outputs(obs_NBO, None)
    expected, _ = ActingPolicies.from_states(AGENTS, [plain(first), plain(second)]).outputs(by_hand, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    raw, _ = ActingPolicies.from_states(AGENTS, [plain(first), plain(second)]).outputs(obs_NBO, None)
    assert np.abs(found - raw).max() > 0.01


def test_without_a_clip_there_is_no_limit():
    of = state(0, HAND, ModelSpec(hidden=(4,), normalise_observations=True, observation_clip=None))
    obs_NBO = np.array([[[12, -1]], [[12, -1]]], np.float32)
    found, _ = ActingPolicies.from_states(AGENTS, [of, of]).outputs(obs_NBO, None)
    by_hand = np.array([[[10 * np.sqrt(1.5), 0]]] * 2, np.float32)
    expected, _ = ActingPolicies.from_states(AGENTS, [plain(of), plain(of)]).outputs(by_hand, None)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda of: ActingState({**of.acting, "policy.seen": HAND[:1]}, of.metadata), "policy.seen is missing or not"),
        (lambda of: ActingState(plain(of).acting, of.metadata), "policy.seen is missing or not"),
        (lambda of: ActingState({**of.acting, "policy.seen": -HAND}, of.metadata), "policy.seen holds no sums"),
        (
            lambda of: ActingState({**of.acting, "policy.seen": HAND * [[1e-300, 1e300, 1]]}, of.metadata),
            "policy.seen holds no sums",
        ),
        (lambda of: ActingState(of.acting, {**of.metadata, "normalise": "-1"}), "normalise is '-1'"),
        (lambda of: ActingState(of.acting, {**of.metadata, "normalise": "nan"}), "normalise is 'nan'"),
        (lambda of: ActingState(of.acting, {**of.metadata, "normalise": "ten"}), "normalise is 'ten'"),
    ],
)
def test_damaged_states_are_refused(change, said):
    broken = change(state(0, HAND))
    with pytest.raises(CorruptError, match=said):
        ActingPolicies.from_states(AGENTS, [broken, broken])


def test_policies_of_one_class_normalise_in_one_way():
    with pytest.raises(CorruptError, match="do not act in one way"):
        ActingPolicies.from_states(AGENTS, [state(0, HAND), plain(state(0, HAND))])
