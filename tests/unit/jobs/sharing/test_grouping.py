"""How many groups, among which classes, of which agents, and whose weights: against hand-made cases."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.jobs.sharing.marless import divided, groups_wanted, highest_curvature, labels

METHODS = pytest.mark.parametrize("method", ["kmeans", "kmedoids"])


@pytest.mark.parametrize(
    ("agents", "schedule", "counts"),
    [
        (6, "printed", [2, 4, 6, 6]),  # 2^(2 + 1) = 8, clamped to 6
        (6, "figure", [2, 4, 4, 4]),
        (8, "printed", [2, 4, 8, 8]),  # 2^(3 + 1) = 16, clamped
        (8, "figure", [2, 4, 8, 8]),
        (3, "printed", [2, 3, 3, 3]),
        (3, "figure", [2, 2, 2, 2]),
        (20, "printed", [2, 4, 8, 16, 20, 20]),
        (1, "printed", [1, 1]),
    ],
)
def test_the_schedule_of_group_counts(agents, schedule, counts):
    assert [groups_wanted(j, agents, schedule) for j in range(1, len(counts) + 1)] == counts
    assert groups_wanted(10**6, agents, schedule) == counts[-1]


@pytest.mark.parametrize(
    ("groups", "sizes", "counts"),
    [
        (2, [6], [2]),
        (2, [2, 4], [1, 1]),
        (4, [2, 4], [2, 2]),  # 4/1 is most; then 2/1 and 4/2 tie, and the first class gets it
        (3, [4, 2], [2, 1]),
        (4, [3, 5], [2, 2]),  # 5/1, then 3/1
        (2, [1, 1, 4], [1, 1, 1]),  # a class has at least one
        (6, [2, 4], [2, 4]),
        (99, [2, 4], [2, 4]),
    ],
)
def test_groups_are_divided_where_agents_per_group_are_most(groups, sizes, counts):
    assert divided(groups, sizes) == tuple(counts)


@given(st.integers(1, 40), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_no_class_goes_without_or_gets_more_groups_than_agents(groups, sizes):
    counts = divided(groups, sizes)
    assert all(1 <= count <= size for count, size in zip(counts, sizes, strict=True))
    assert sum(counts) == max(len(sizes), min(groups, sum(sizes)))


def between(points):
    far = np.abs(np.subtract.outer(points, points))
    return far.tolist()


@METHODS
def test_agents_that_are_near_are_together(method):
    assert labels(between([0.0, 10.0, 0.1, 10.2, 0.3, 30.0]), 3, method) == (0, 1, 0, 1, 0, 2)
    assert labels(between([0.0, 10.0, 0.1, 10.2, 0.3, 30.0]), 2, method) == (0, 0, 0, 0, 0, 1)


@METHODS
def test_one_group_or_one_each_needs_no_distances(method):
    unknown = [[float("nan")] * 3] * 3
    assert labels(unknown, 1, method) == (0, 0, 0)
    assert labels(unknown, 3, method) == labels(unknown, 4, method) == (0, 1, 2)


@METHODS
@pytest.mark.filterwarnings("error")
def test_agents_that_do_not_differ_share_however_many_groups_are_wanted(method):
    assert labels(between([1.0] * 4), 2, method)[0] == 0
    assert len(set(labels(between([0.0, 0.0, 0.0, 5.0]), 3, method))) == 2
    assert labels(between([0.0, 1e-200, 0.0, 5.0]), 3, "kmeans") == (0, 0, 0, 1)
    assert labels(between([1e-200, 0.0, 0.0]), 2, "kmeans") == (0, 1, 1), "distances have no unit"


@METHODS
@settings(max_examples=25)
@given(
    st.lists(st.floats(0, 1e4), min_size=2, max_size=7).flatmap(
        lambda points: st.tuples(st.just(points), st.integers(1, len(points)))
    )
)
def test_labels_are_numbered_by_appearance_and_repeat(method, drawn):
    points, groups = drawn
    found = labels(between(points), groups, method)
    assert found == labels(between(points), groups, method)
    assert list(dict.fromkeys(found)) == list(range(len(set(found))))
    assert len(found) == len(points)
    assert len(set(found)) <= groups


def test_medoids_of_many_agents_are_improved_until_no_exchange_helps(monkeypatch):
    points = [0.0, 1.0, 2.0, 50.0, 51.0, 52.0, 90.0, 91.0]
    exact = labels(between(points), 3, "kmedoids")
    monkeypatch.setattr("marless.jobs.sharing.clustering.MOST_CHOICES", 0)
    # The greedy choice begins with the medoid of all, 50, and must exchange it.
    assert labels(between(points), 3, "kmedoids") == exact == (0, 0, 0, 1, 1, 1, 2, 2)


def test_a_group_starts_from_its_member_with_the_highest_curvature():
    assert highest_curvature("abc", {"a": 1.0, "b": 3.0, "c": 2.0}) == "b"
    assert highest_curvature("abc", {"a": 3.0, "b": 3.0}) == "a"
    assert highest_curvature("abc", {"a": None, "b": -5.0, "c": None}) == "b"
    assert highest_curvature("cab", {}) == highest_curvature("cab", dict.fromkeys("abc")) == "c"


def test_another_process_finds_the_same_groups():
    rng = np.random.default_rng(0)
    far = rng.random((12, 12))
    matrix = ((far + far.T) * (1 - np.eye(12))).tolist()
    program = f"from marless.jobs.sharing.marless import labels; print(labels({matrix}, 4, 'kmeans'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(labels(matrix, 4, "kmeans"))
