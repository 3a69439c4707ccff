"""How a round's CPU time is parted, and what of it is outside torch and the environment."""

import pytest

from bench import off_policy_step
from bench.harness import BenchError
from bench.off_policy_step import PARTS, Steady, environment_share, outside, parts, row, steady
from bench.processes import Look


def ended(*moments_s, **function_s):
    invocations = [{"function": name, "vcpu_s": took_s} for name, took_s in function_s.items()]
    return [{"ended_s": moment_s, "invocations": invocations} for moment_s in moments_s]


def test_rounds_count_as_far_as_they_lie_between_two_looks():
    looks = [
        Look(0.0, {"a": 5.0}),
        Look(10.5, {"a": 6.0}),
        Look(12.0, {"a": 6.5, "b": 1.0}),
        Look(14.25, {"a": 7.0, "b": 2.0}),
        Look(99.0, {"a": 20.0, "b": 20.0}),
    ]
    found = steady(looks, ended(10.0, 11.0, 12.0, 13.0, 14.0, 15.0, policy=0.5))
    assert found == Steady({"a": 1.0, "b": 2.0}, {"policy": 1.875}, rounds=3.75)


@pytest.mark.parametrize("ends", [(), (10.0,), (10.0, 11.0)])
def test_a_run_that_is_too_short_has_no_steady_state(ends):
    with pytest.raises(BenchError, match="too short"):
        steady([Look(10.0, {"a": 1.0}), Look(11.5, {"a": 2.0})], ended(*ends))


CPU_S = {"actor worker": 4.0, "learner worker": 8.0, "coordinator": 1.0, "redis-server": 1.0}


def test_each_process_is_parted():
    found = parts(Steady(CPU_S, {"learner": 8.0, "post_process": 1.0, "critic": 4.0, "policy": 2.0}, 2.0), 0.75)
    assert found == dict(zip(PARTS, (3000.0, 500.0, 500.0, 1500.0, 500.0, 1000.0), strict=True))
    assert outside(found) == pytest.approx(2.5 / 7)


def test_what_an_update_waits_is_no_cpu_time():
    found = parts(Steady(CPU_S, {"learner": 16.0, "policy": 12.0}, 2.0), 0.0)
    assert (found["torch"], found["learner worker, rest"]) == (3000.0, 1000.0)


def test_what_a_worker_does_between_updates_is_not_torch():
    found = parts(Steady(CPU_S, {"learner": 6.0, "policy": 6.0}, 2.0), 0.0)
    assert (found["torch"], found["learner worker, rest"]) == (3000.0, 1000.0)


def test_a_line_of_the_table_has_the_median_of_runs():
    runs = [dict(zip(PARTS, (torch, 1.0, 1.0, 2.0, 0.0, 0.0), strict=True)) for torch in (4.0, 6.0, 16.0)]
    found = row("vdn", runs)
    assert (found["CPU ms a round"]["median"], found["torch"]) == (10, 6.0)
    assert found["outside (%)"] == {"median": 20.0, "min": 10.0, "max": 25.0}


def test_the_environment_has_some_of_a_rollout(monkeypatch):
    monkeypatch.setattr(off_policy_step, "ROLLOUTS", 5)
    assert 0.1 < environment_share("vdn", 0) < 0.9
