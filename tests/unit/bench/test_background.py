"""What the background worker costs rounds, computed from records and logs."""

import pytest

from bench.background import ALONE, BESIDE, check_lasted, rounds_per_s, settings, table
from bench.harness import ROOT, BenchError
from marless.jobs import spec as specs


def records(*ends_s: float) -> list[dict[str, float]]:
    return [
        {"started_s": 100.0 if number == 0 else end_s - 0.1, "ended_s": end_s} for number, end_s in enumerate(ends_s)
    ]


def test_the_first_seconds_and_the_last_round_do_not_count():
    assert rounds_per_s(records(101.0, 101.1, 101.9, 102.0, 102.5, 103.0, 109.0)) == 2.0


def test_too_few_rounds_are_no_rate():
    with pytest.raises(BenchError, match="3 rounds in 10 s"):
        rounds_per_s(records(101.0, 102.5, 109.0))


@pytest.mark.parametrize("events", [["round.evaluated"], ["round.evaluated", "baseline.measured"]])
def test_a_baseline_that_lasts_is_measured_after_the_last_round_or_cut(events):
    check_lasted(["job.opened", *events])


def test_a_baseline_that_ended_before_training_is_refused():
    with pytest.raises(BenchError, match="raise PLAYED_S"):
        check_lasted(["job.opened", "baseline.measured", "round.evaluated"])


def test_the_ratio_is_that_of_pairs():
    rows, headline = table({ALONE: [10.0, 20.0, 30.0], BESIDE: [9.0, 19.0, 15.0]})
    assert headline == {"rounds_per_s_ratio": 0.9, "low": 0.5, "high": 0.95}
    assert rows[1]["ratio"] == {"median": 0.9, "min": 0.5, "max": 0.95}
    assert rows[0]["rounds/s"] == {"median": 20.0, "min": 10.0, "max": 30.0}


@pytest.mark.parametrize("episodes", [1, 10**6])
def test_its_settings_are_those_of_a_job(episodes):
    overrides = [f"{section}={value}" for section, value in settings(3, episodes).items()]
    spec = specs.load(ROOT / "examples" / "spread.yaml", overrides)
    assert (spec.seed, spec.evaluation.random_episodes, spec.stop.rounds, spec.stop.wall_s) == (3, episodes, None, 10.0)
