"""Policy states as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import numpy as safetensors

from marless.core.errors import CorruptError
from marless.core.state import PolicyState
from marless.learning.nets import serial

STATE = PolicyState(
    acting={"w": np.arange(6, dtype=np.float32).reshape(2, 3), "strided": np.arange(8, dtype=np.float32)[::2]},
    learning={"count": np.array(3, np.int64), "mean": np.array([[0.1]]), "flag": np.array([True])},
    metadata={"b": "2", "a": "ü"},
)


def test_states_survive_with_dtypes_shapes_and_metadata() -> None:
    found = serial.decode(*serial.encode(STATE))
    assert dict(found.metadata) == dict(STATE.metadata)
    for got, expected in ((found.acting, STATE.acting), (found.learning, STATE.learning)):
        assert got.keys() == expected.keys()
        for name, array in expected.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(got[name], array)


def test_equal_states_give_equal_bytes_whatever_the_order() -> None:
    turned = PolicyState(
        dict(reversed(STATE.acting.items())), dict(reversed(STATE.learning.items())), {"a": "ü", "b": "2"}
    )
    assert serial.encode(turned) == serial.encode(STATE)


def test_a_state_without_weights_survives() -> None:
    empty = serial.decode(*serial.encode(PolicyState({}, {})))
    assert (dict(empty.acting), dict(empty.learning), dict(empty.metadata)) == ({}, {}, {})


def test_an_actor_decodes_the_acting_part_alone() -> None:
    part = serial.decode_acting(serial.encode(STATE)[0])
    np.testing.assert_array_equal(part.acting["w"], STATE.acting["w"])
    assert part.metadata == STATE.metadata


@pytest.mark.parametrize("damage", [b"", b"\x00", b"garbage, not a header", b"\xff" * 40])
def test_garbage_is_refused(damage: bytes) -> None:
    acting, learning = serial.encode(STATE)
    with pytest.raises(CorruptError):
        serial.decode(damage, learning)
    with pytest.raises(CorruptError):
        serial.decode(acting, damage)


def test_truncated_and_foreign_files_are_refused() -> None:
    acting, learning = serial.encode(STATE)
    with pytest.raises(CorruptError):
        serial.decode(acting[:-1], learning)
    with pytest.raises(CorruptError, match="metadata"):
        serial.decode(learning, learning)


@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=3),
        st.tuples(
            st.sampled_from(["float32", "float64", "int64", "uint8", "bool", ">f4"]),
            st.lists(st.integers(0, 3), max_size=3).map(tuple),
        ),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_files_are_those_of_the_safetensors_library(
    described: dict[str, tuple[str, tuple[int, ...]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    learning = {
        name: np.asarray(10 * rng.standard_normal(shape)).astype(dtype).T for name, (dtype, shape) in described.items()
    }
    expected = safetensors.save({name: np.asarray(array, order="C") for name, array in learning.items()})
    for _ in range(2):  # the second time, the header is known
        assert serial.encode(PolicyState({}, learning))[1] == expected
