"""The sum tree against running sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.learning.data.priorities import SumTree


@pytest.mark.parametrize("size", [1, 2, 3, 8, 9])
def test_the_sample_at_which_the_running_sum_passes_a_mass(size):
    tree = SumTree(size)
    tree.set(np.arange(size), np.arange(1.0, size + 1))
    masses = np.arange(0.0, tree.total, 0.5)
    assert tree.total == size * (size + 1) / 2
    assert tree.find(masses).tolist() == [
        int(s) for s in np.searchsorted(np.arange(1, size + 1).cumsum(), masses, "right")
    ]


def test_of_a_sample_named_twice_the_last_priority_counts():
    tree = SumTree(5)
    tree.set(np.array([1, 4, 1]), np.array([2.0, 1.0, 3.0]))
    assert (tree.total, tree[np.array([1, 4, 0])].tolist()) == (4.0, [3.0, 1.0, 0.0])


@given(st.data())
@settings(max_examples=60)
def test_any_changes_come_to_what_a_tree_built_anew_holds(data):
    size = data.draw(st.integers(1, 40))
    tree, leaves = SumTree(size), np.zeros(size)
    for _ in range(data.draw(st.integers(1, 6))):
        samples = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
        values = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=len(samples), max_size=len(samples))))
        tree.set(samples, values)
        for sample, value in zip(samples, values, strict=True):
            leaves[sample] = value
    anew = SumTree(size)
    anew.set(np.arange(size), leaves)
    assert tree.total == anew.total == pytest.approx(leaves.sum())
    if tree.total > 0:
        masses = np.linspace(0.0, tree.total, 50)  # the last one is just outside: rounding may lead there
        found = tree.find(masses)
        assert np.array_equal(found, anew.find(masses))
        assert (leaves[found] > 0).all()
        assert (leaves.cumsum()[found] >= masses - 1e-9 * tree.total).all()
