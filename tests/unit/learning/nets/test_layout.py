"""Where parameters stand, and how they start."""

from __future__ import annotations

import numpy as np
import pytest

from marless.core.errors import CorruptError
from marless.learning.nets.layout import Layout, generator

LAYOUT = Layout(4, (8, 3), 2, free=2)


def test_sizes() -> None:
    assert LAYOUT.shapes == ((8, 5), (3, 9), (2, 4))
    assert LAYOUT.size == 8 * 5 + 3 * 9 + 2 * 4 + 2


def test_arrays_round_trip_and_are_copies() -> None:
    flat_D = np.arange(LAYOUT.size, dtype=np.float32)
    arrays = LAYOUT.to_arrays("policy", flat_D)
    assert arrays["policy.0.weight"][1].tolist() == [5, 6, 7, 8]
    assert arrays["policy.0.bias"][:2].tolist() == [4, 9]
    assert arrays["policy.free"].tolist() == [75, 76]
    np.testing.assert_array_equal(LAYOUT.from_arrays("policy", arrays), flat_D)
    arrays["policy.0.bias"][0] = -1
    assert flat_D[4] == 4


@pytest.mark.parametrize("name", ["policy.1.weight", "policy.2.bias", "policy.free"])
def test_an_array_that_is_missing_or_does_not_fit_is_named(name: str) -> None:
    arrays = dict(LAYOUT.to_arrays("policy", np.zeros(LAYOUT.size, np.float32)))
    with pytest.raises(CorruptError, match=f"{name} is float64"):
        LAYOUT.from_arrays("policy", {**arrays, name: arrays[name].astype(np.float64)})
    del arrays[name]
    with pytest.raises(CorruptError, match=f"{name} is missing"):
        LAYOUT.from_arrays("policy", arrays)


def test_initial_weights_are_orthogonal_with_their_gain() -> None:
    flat_D = LAYOUT.initial(generator(1, "a"), output_gain=0.01)
    first, second, last = (flat_D[s].reshape(h) for s, h in zip(LAYOUT.spans, LAYOUT.shapes, strict=True))
    np.testing.assert_allclose(first[:, :-1].T @ first[:, :-1], 2 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(second[:, :-1] @ second[:, :-1].T, 2 * np.eye(3), atol=1e-5)
    np.testing.assert_allclose(last[:, :-1] @ last[:, :-1].T, 1e-4 * np.eye(2), atol=1e-9)
    assert not any(layer[:, -1].any() for layer in (first, second, last))
    assert not flat_D[-2:].any()


def test_random_biases_are_those_of_hidden_layers() -> None:
    flat_D = LAYOUT.initial(generator(1, "a"), output_gain=0.01, biased=True)
    *hidden, last = (flat_D[s].reshape(h) for s, h in zip(LAYOUT.spans, LAYOUT.shapes, strict=True))
    for layer in hidden:
        bound = 1 / np.sqrt(layer.shape[1] - 1)
        assert 0 < np.abs(layer[:, -1]).max() <= bound
        assert len(set(layer[:, -1].tolist())) == len(layer)
    assert not last[:, -1].any()
    first = hidden[0][:, :-1]
    np.testing.assert_allclose(first.T @ first, 2 * np.eye(4), atol=1e-5)


def test_randomness_depends_on_seed_and_name() -> None:
    draws = {(s, n): generator(s, n).random() for s in (1, 2) for n in ("a", "b")}
    assert len(set(draws.values())) == 4
    assert generator(1, "a").random() == draws[1, "a"]
    assert draws[1, "a"] == 0.9100457731080284  # in every process, on every machine
