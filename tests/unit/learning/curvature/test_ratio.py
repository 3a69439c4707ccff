"""The convexity ratio, its sign convention, and every guard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from marless.learning.algos.training.measuring import RATIO_LIMIT, convexity_ratio

EIGENVALUES = st.floats(-1e30, 1e30) | st.sampled_from([0.0, np.nan, np.inf, -np.inf])


def _ratio(highest: float, lowest: float) -> float:
    return float(convexity_ratio(np.array([highest]), np.array([lowest]))[0])


@pytest.mark.parametrize(
    ("highest", "lowest", "expected"),
    [
        (3.0, -2.0, 1.5),
        (2.0, -3.0, 2 / 3),
        (1e-12, -2e-12, 0.5),  # no absolute floor: objectives may be tiny
        (2.0, 0.0, RATIO_LIMIT),
        (2.0, 1.0, RATIO_LIMIT),  # convex: no downward direction
        (0.0, -2.0, 1 / RATIO_LIMIT),
        (-1.0, -2.0, 1 / RATIO_LIMIT),  # concave: no upward one
        (5.0, -1e-9, RATIO_LIMIT),
        (1e-9, -5.0, 1 / RATIO_LIMIT),
        (0.0, 0.0, 1.0),
        (np.nan, np.nan, 1.0),
        (np.inf, -1.0, 1.0),
        (1.0, -np.inf, 1.0),
    ],
)
def test_by_hand(highest: float, lowest: float, expected: float) -> None:
    assert _ratio(highest, lowest) == pytest.approx(expected, rel=1e-12)


@given(EIGENVALUES, EIGENVALUES)
@example(5e-324, 5e-324)
@example(1e-310, -1e-309)
def test_always_finite_and_negating_the_objective_inverts_it(one: float, other: float) -> None:
    highest, lowest = max(one, other), min(one, other)
    ratio = _ratio(highest, lowest)
    assert 1 / RATIO_LIMIT <= ratio <= RATIO_LIMIT
    assert _ratio(-lowest, -highest) == pytest.approx(1 / ratio, rel=1e-9)


def test_a_stack_is_its_members() -> None:
    highest, lowest = np.array([3.0, 2.0, np.nan]), np.array([-2.0, 1.0, -1.0])
    assert convexity_ratio(highest, lowest).tolist() == pytest.approx([1.5, RATIO_LIMIT, 1.0])
