"""Bounds of an evaluation: which one ends it, and into which batches its episodes are cut."""

from itertools import islice

import pytest

from marless.learning.data.returns import EpisodeReturns, PlayLimits, batches


def played(episodes: int, mean: float = -20.0, standard_error: float = 1.0) -> EpisodeReturns:
    return EpisodeReturns(episodes=episodes, mean=mean, per_agent={"a": mean}, standard_error=standard_error)


def test_the_first_batch_is_always_played():
    assert PlayLimits(episodes=100, limit_s=1e-3, relative_error=0.5).reached(None, 0.0, 80) == ""


@pytest.mark.parametrize(("episodes", "reached"), [(99, ""), (100, "episodes")])
def test_no_more_episodes_than_asked_for(episodes, reached):
    assert PlayLimits(episodes=100).reached(played(episodes), 1e9, 1) == reached


@pytest.mark.parametrize(("played_s", "following", "reached"), [(8.0, 2, ""), (8.0, 3, "time"), (10.1, 1, "time")])
def test_no_batch_starts_that_would_not_end_in_time(played_s, following, reached):
    # 8 episodes took 8 or 10.1 s: one takes about a second.
    assert PlayLimits(episodes=100, limit_s=10.0).reached(played(8), played_s, following) == reached


@pytest.mark.parametrize(
    ("known", "reached"),
    [
        (played(30, standard_error=0.2), "error"),  # 1 % of 20
        (played(30, standard_error=0.21), ""),
        (played(29, standard_error=0.01), ""),  # too few to trust their spread
        (played(500, mean=0.0, standard_error=0.0), ""),  # a reward that was not seen yet
        (played(500, standard_error=0.0), ""),
    ],
)
def test_a_mean_that_is_precise_enough_ends_it(known, reached):
    assert PlayLimits(episodes=1000, relative_error=0.01).reached(known, 0.0, 1) == reached


def test_each_of_several_actors_may_be_less_precise_than_all_together():
    known = played(30, standard_error=0.4)  # of four actors: 0.2 together
    assert PlayLimits(episodes=100, relative_error=0.01, parts=4).reached(known, 0.0, 1) == "error"
    assert PlayLimits(episodes=100, relative_error=0.01, parts=3).reached(known, 0.0, 1) == ""


def test_without_bounds_all_episodes_are_played():
    assert PlayLimits(episodes=100).reached(played(99, standard_error=1e-9), 1e9, 1) == ""


def test_copies_that_are_stepped_together_play_an_episode_each():
    assert list(batches(100, 80, one_by_one=False)) == [80, 20]
    assert list(batches(50, 80, one_by_one=False)) == [50]


def test_copies_that_are_stepped_one_after_another_begin_with_one_episode():
    assert list(batches(14, 80, one_by_one=True)) == [1, 2, 4, 4, 3]
    assert list(batches(5, 2, one_by_one=True)) == [1, 2, 2]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_more_episodes_only_add_to_the_same_batches(one_by_one):
    few, many = (list(batches(episodes, 16, one_by_one=one_by_one)) for episodes in (200, 1000))
    assert list(islice(many, len(few) - 1)) == few[:-1]
