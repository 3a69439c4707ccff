"""Standard errors against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from marless.learning.data.episodes import EpisodeMeter, EpisodeStats, total
from marless.learning.data.returns import Sums, return_text, returns_of, standard_error
from marless.learning.envs.base import AgentClass, Discrete, EnvSpaces, Frame, Transition


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (-19.2, 0.3149, "-19.20 ± 0.31"),
        (1234.5, None, "1,234.50"),
        (0.0, 0.0, "0.00 ± 0.00"),
        (0.0123, 0.00017, "0.0123 ± 0.0002"),
        (0.0123, 2.5, "0.01 ± 2.50"),
        (-1.5e-6, 2e-7, "-1.50e-06 ± 2.00e-07"),
    ],
)
def test_small_returns_are_shown_with_three_digits(mean, error, text):
    assert return_text(mean, error) == text


def meter(agents: int, copies: int) -> EpisodeMeter:
    names = tuple(f"agent_{i}" for i in range(agents))
    return EpisodeMeter(EnvSpaces((AgentClass("coin", names, 1, Discrete(2)),), 0, 1), copies)


def played(*returns: Sequence[float], copies: int = 1) -> EpisodeStats:
    """Episodes of one step each, whose agents return these numbers; `copies` of them at a time."""
    found = np.array(returns, np.float64)
    agents = found.shape[1]
    sums = meter(agents, copies)
    frame, ends = Frame((np.zeros((agents, copies, 1), np.float32),)), np.ones(copies, np.bool_)
    over = (np.ones((agents, copies), np.bool_),)
    for first in range(0, len(found), copies):
        sums.add(Transition(frame, frame, (found[first : first + copies].T,), over, ~ends, ends))
    return sums.stats()


def errors(stats: EpisodeStats) -> tuple[list[float | None], float | None]:
    """Those of the agents, and that of their mean."""
    found = returns_of([stats])
    assert found is not None
    return [standard_error(each, stats.episodes) for each in stats.return_scatter.values()], found.standard_error


HEADS, TAILS = (1.0, -1.0), (-1.0, 1.0)


def test_a_coin_for_two_rivals():
    """±1: deviation √2 of two episodes, over √2; of three heads and two tails, √(4.8 / 4 / 5); of one, unknown."""
    assert errors(played(HEADS, TAILS)) == ([pytest.approx(1.0)] * 2, 0.0)
    assert errors(played(HEADS, TAILS, HEADS, TAILS, HEADS)) == ([pytest.approx(math.sqrt(0.24))] * 2, 0.0)
    assert errors(played(HEADS)) == ([None, None], None)


def test_the_error_of_a_mean_is_that_of_the_episodes_means():
    """(0, 4), (2, 2), (4, 6): means 2, 2, 5 of deviation √3; the agents' own deviations are 2 each."""
    found = errors(played((0.0, 4.0), (2.0, 2.0), (4.0, 6.0)))
    assert found == ([pytest.approx(2 / math.sqrt(3))] * 2, pytest.approx(1.0))


@pytest.mark.parametrize("copies", [1, 4, 100])
def test_large_returns_that_differ_little_have_an_error(copies):
    """1e8 + {0, 1}, fifty times each: √(25 / 99 / 100)."""
    stats = played(*[(1e8 + i % 2,) for i in range(100)], copies=copies)
    assert errors(stats) == ([pytest.approx(math.sqrt(25 / 99 / 100))], pytest.approx(0.0502519))


def test_parts_add_up_to_the_whole():
    episodes = [(1e8 + x, 3.0 * x * x) for x in (0.0, 1.0, 5.0, -2.0, 7.0, 1.5)]
    whole = played(*episodes)
    parts = [played(*episodes[:1]), played(*episodes[1:3], copies=2), played(*episodes[3:])]
    for found in (total(parts), Sums.of(parts)):
        assert found.episodes == 6
        assert found.return_scatter == pytest.approx(whole.return_scatter)
        assert found.mean_scatter == pytest.approx(whole.mean_scatter)
    values = np.array(episodes)
    exact = np.square(values - values.mean(axis=0)).sum(axis=0)
    assert list(whole.return_scatter.values()) == pytest.approx(exact.tolist())
    assert whole.mean_scatter == pytest.approx(np.square(values.mean(1) - values.mean()).sum())


def test_actors_without_a_finished_episode_change_nothing():
    part, empty = played(HEADS, TAILS), meter(2, 1).stats()
    assert returns_of([empty, part, empty]) == returns_of([part])
    assert returns_of([empty]) is None


def test_squares_beyond_float64_have_no_error():
    assert errors(played((1e200,), (-1e200,))) == ([None], None)
