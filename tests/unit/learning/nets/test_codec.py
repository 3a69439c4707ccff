"""Rows of what learners remember, as arrays and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from marless.core.errors import CorruptError
from marless.learning.nets.layout import GRULayout, Layout, generator
from marless.learning.nets.learner_states import StateCodec

LAYOUTS = [Layout(3, (4,), 2), GRULayout(3, (4,), 2)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("acts", [True, False])
@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("moments", [True, False])
def test_rows_round_trip(layout: Layout | GRULayout, acts: bool, target: bool, moments: bool) -> None:
    codec = StateCodec("critic", layout, 1.0, acts, moments=moments, target=target)
    fresh = codec.fresh(generator(1, "x"))
    assert set(fresh) == {"flat", "first", "second", "count", *["moments"] * moments, *["target"] * target}
    row = {key: torch.rand_like(tensor) for key, tensor in fresh.items()} | {"count": torch.tensor(7.0).double()}
    acting, learning = codec.write(row)
    assert any(name.endswith("weight") for name in acting) == acts
    assert ("critic.target" in learning) == target
    found = codec.read(acting, learning)
    assert found.keys() == row.keys()
    for key, tensor in row.items():
        assert found[key].dtype == fresh[key].dtype
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=0)


def test_a_target_net_begins_as_the_net_and_in_memory_of_its_own() -> None:
    row = StateCodec("policy", LAYOUTS[0], 1.0, acts=True, target=True).fresh(generator(1, "x"))
    assert torch.equal(row["target"], row["flat"])
    row["flat"].add_(1.0)
    assert not torch.equal(row["target"], row["flat"])


def test_a_target_that_is_missing_or_does_not_fit_is_named() -> None:
    codec = StateCodec("policy", LAYOUTS[0], 1.0, acts=True, target=True)
    acting, learning = codec.write(codec.fresh(generator(1, "x")))
    without = {name: array for name, array in learning.items() if name != "policy.target"}
    with pytest.raises(CorruptError, match="target is missing"):
        codec.read(acting, without)
    with pytest.raises(CorruptError, match=r"target is float32\[3\], expected float32\[26\]"):
        codec.read(acting, {**without, "policy.target": np.zeros(3, np.float32)})
