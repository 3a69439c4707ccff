"""The gradient noise scale by hand, its guards, and its mean over many draws."""

from __future__ import annotations

import numpy as np
import pytest

from marless.learning.algos.training.measuring import NOISE_LIMIT, noise_scale


def _scale(small_square: float, big_square: float, small: float = 10, big: float = 40) -> float:
    return float(noise_scale(np.array([small_square]), np.array([big_square]), small, big)[0])


def test_by_hand() -> None:
    """|g_10|² = 5, |g_40|² = 2: tr Σ = 3 / (0.1 − 0.025) = 40, |G|² = (80 − 50) / 30 = 1, so 40 samples."""
    assert _scale(5.0, 2.0) == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("small_square", "big_square", "expected"),
    [
        (2.0, 2.0, 0.0),  # no noise
        (1.0, 2.0, 0.0),  # less than none
        (8.0, 2.0, 40 * NOISE_LIMIT),  # no signal: B·|g_B|² = b·|g_b|²
        (9.0, 2.0, 40 * NOISE_LIMIT),  # less than none
        (7.999999, 2.0, 40 * NOISE_LIMIT),  # hardly any
        (0.0, 0.0, 0.0),
        (np.nan, 1.0, 0.0),
        (np.inf, 1.0, 0.0),
        (np.inf, np.inf, 0.0),
    ],
)
def test_guards(small_square: float, big_square: float, expected: float) -> None:
    assert _scale(small_square, big_square) == expected


@pytest.mark.parametrize(("small", "big"), [(0, 4), (4, 4), (5, 4)])
def test_batch_sizes_that_tell_nothing(small: int, big: int) -> None:
    with pytest.raises(ValueError, match="small < big"):
        _scale(1.0, 1.0, small, big)


def test_finds_the_noise_that_is_there() -> None:
    """Per-sample gradients N(G, σ²I) in 50 dimensions with |G|² = 4, σ² = 2: 50·2/4 = 25 samples."""
    rng = np.random.default_rng(0)
    mean = np.full(50, np.sqrt(4 / 50))
    parts = mean + np.sqrt(2 / 250) * rng.standard_normal((300, 4, 50))  # means of 250 samples
    small = np.square(parts).sum(axis=2).mean(axis=1)
    big = np.square(parts.mean(axis=1)).sum(axis=1)
    assert np.median(noise_scale(small, big, 250, 1000)) == pytest.approx(25, rel=0.05)
