"""How a round's CPU time is parted, and what of it is outside torch and the environment."""

import pytest

from bench import off_policy_step
from bench.harness import BenchError
from bench.off_policy_step import SYSTEM, outside, parts, per_round_ms, row
from bench.workers import ENVIRONMENT, TORCH


def test_cpu_time_of_a_round_is_that_between_two_looks_within_the_steady_state():
    seen = [(0.0, 5.0), (10.0, 6.0), (12.0, 6.5), (14.0, 7.0), (99.0, 20.0)]
    ended_s = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    assert per_round_ms(seen, ended_s) == pytest.approx(1000 * 1.0 / 4)  # from 10 to 14 s: four rounds ended


@pytest.mark.parametrize("ended_s", [[], [10.0], [10.0, 11.0]])
def test_a_run_that_is_too_short_has_no_steady_state(ended_s):
    with pytest.raises(BenchError, match="too short"):
        per_round_ms([(10.0, 1.0)], ended_s)


def test_the_share_outside_is_of_everything():
    run = {TORCH: 6.0, ENVIRONMENT: 2.0, SYSTEM: 2.0}
    assert outside(run) == pytest.approx(0.2)
    found = row("vdn", [run, run])
    assert (found["CPU ms a round"]["median"], found[TORCH], found["outside"]) == (10.0, 6.0, "20%")


def test_a_round_is_parted_into_what_the_workers_do(monkeypatch):
    monkeypatch.setattr(off_policy_step, "WARM_UP", 4)
    monkeypatch.setattr(off_policy_step, "ROUNDS", 2)
    found = parts("vdn", 0)
    assert set(found) == {"torch", "environment", "acting", "replay", "update, rest", "states ↔ bytes"}
    assert found["torch"] > found["environment"] > 0
