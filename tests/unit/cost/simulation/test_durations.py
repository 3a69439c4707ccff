"""How durations follow from recorded ones: lines computed by hand, draws from the nearest rounds."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.cost.simulation.durations import ENOUGH, DurationModel, LinearSeconds, fit, sampled
from marless.jobs.record import GroupRecord
from tests.unit.cost.billing.rounds import invocation, round_of


def test_a_line_through_two_sizes_is_found():
    # y = 1 + 0.5 x, twice at 2 with the errors cancelling out: means are 10/3 and 8/3, slope (8/3)/(16/3).
    line = fit([(2.0, 1.9), (2.0, 2.1), (6.0, 4.0)], one_size="constant")
    assert (line.base_s, line.per_sample_s, line.sizes) == (pytest.approx(1.0), pytest.approx(0.5), 2)
    assert line.at(10.0) == pytest.approx(6.0)


def test_one_size_says_nothing_of_the_slope_so_time_is_proportional_or_constant_as_asked():
    assert fit([(4.0, 1.0), (4.0, 3.0)], one_size="proportional") == LinearSeconds(0.0, 0.5, 1)
    assert fit([(4.0, 1.0), (4.0, 3.0)], one_size="constant") == LinearSeconds(2.0, 0.0, 1)


def test_a_line_starts_at_zero_or_above_and_does_not_fall():
    assert fit([(1.0, 0.0), (3.0, 4.0)], one_size="proportional") == LinearSeconds(
        0.0, 1.2, 2
    )  # (1·0 + 3·4) / (1 + 9), as the free one begins at -2
    assert fit([(1.0, 4.0), (3.0, 2.0)], one_size="proportional") == LinearSeconds(3.0, 0.0, 2)
    assert fit([(0.0, 1.0)], one_size="proportional") == LinearSeconds(0.0, 0.0, 1)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.floats(0, 1e3)), min_size=1, max_size=20))
def test_no_line_makes_time_negative_or_shorter_for_more_samples(points):
    line = fit(points, one_size="proportional")
    assert line.base_s >= 0
    assert line.per_sample_s >= 0
    assert line.at(1e7) >= line.at(1.0) >= 0


def test_samples_of_a_learner():
    durations = DurationModel([round_of()], "pooled")
    assert durations.samples("policy", 3, 100, "pooled") == 300.0
    assert durations.samples("policy", 3, 100, "drawn") == 100.0


def test_who_draws_from_a_replay_goes_over_as_much_in_every_round():
    durations = DurationModel([round_of()], "pooled", drawn=40)
    assert durations.samples("policy", 3, 100, "pooled") == 120.0
    assert durations.samples("mixer", 1, 100, "pooled") == 40.0
    assert durations.samples("post_process", 1, 100, "pooled") == 100.0


def test_drawn_batches_take_as_long_in_a_larger_round_and_as_members_ask():
    runs = (invocation("post_process", 0.0, 2.0, name="team"), invocation("policy", 2.0, 3.0, name="a"))
    durations = DurationModel([replace(round_of(*runs, policies=("a",)), env_steps=100)], "pooled", drawn=40)
    assert durations.lines["post_process"] == LinearSeconds(2.0, 0.0, 1)
    assert durations.ratio("post_process", 100.0, 900.0) == 1.0
    assert durations.ratio("policy", 40.0, 120.0) == pytest.approx(3.0)


def test_env_steps_of_each_round_alone():
    assert sampled([round_of(env_steps=total) for total in (100, 250, 300)]) == [100, 150, 50]


def test_policies_of_groups_are_fitted_to_their_members_samples_and_post_processing_to_the_env_steps():
    def learned(policy_s: float, members: int, round_: int):
        groups = (GroupRecord(policy="x", agents=tuple("abc"[:members]), version=1),)
        runs = (
            invocation("post_process", 0.0, 2.0, name="x"),  # a class of the same name as a policy
            invocation("policy", 2.0, 2.0 + policy_s, name="x"),
        )
        return replace(round_of(*runs, round_=round_), groups=groups, env_steps=100 * (round_ + 1))

    records = [learned(1.0, 1, 0), learned(2.0, 3, 1)]
    pooled, drawn = DurationModel(records, "pooled"), DurationModel(records, "drawn")
    assert pooled.lines["policy"] == LinearSeconds(pytest.approx(0.5), pytest.approx(0.005), 2)
    assert drawn.lines["policy"].sizes == 1
    assert pooled.lines["post_process"] == LinearSeconds(0.0, pytest.approx(0.02), 1)
    assert pooled.ratio("policy", 100.0, 300.0) == pytest.approx(2.0)
    assert pooled.ratio("curvature", 100.0, 300.0) == 1.0


def test_actors_are_drawn_from_their_round_and_from_the_nearest_if_they_are_few():
    def rolled_out(count: int, round_: int):
        return round_of(*(invocation("actor", 0.0, 1.0 + round_, index=i) for i in range(count)), round_=round_)

    def drawn(records, number: int) -> set[float]:
        found = DurationModel(records, "pooled").actors(number, 200, np.random.default_rng(0))
        assert len(found) == 200
        return {each.end_s for each in found}

    assert drawn([rolled_out(ENOUGH, n) for n in range(3)], 1) == {2.0}
    assert drawn([rolled_out(ENOUGH - 1, n) for n in range(3)], 1) == {1.0, 2.0}
    assert drawn([rolled_out(1, n) for n in range(3)], 1) == {1.0, 2.0, 3.0}
    assert DurationModel([round_of()], "pooled").actors(0, 3, np.random.default_rng(0)) == []


def test_similarity_is_that_of_the_nearest_round_that_measured_it():
    records = [
        round_of(*([invocation("similarity", 0.0, float(n + 1))] if n in (0, 3) else []), round_=n) for n in range(6)
    ]
    durations = DurationModel(records, "pooled")
    assert [durations.similarity(n)[0].end_s for n in range(6)] == [1.0, 1.0, 4.0, 4.0, 4.0, 4.0]
    assert DurationModel([round_of()], "pooled").similarity(0) == []
