"""The law of noise is found in rounds that follow it, and its error in rounds that do not."""

import pytest

from bench.noise_law import arrivals, fitted


def test_a_law_is_found():
    least, noise, error = fitted({n: 13 * (1 + 22 / n) for n in (2, 8, 50)})
    assert (least, noise, error) == (pytest.approx(13), pytest.approx(22), pytest.approx(0, abs=1e-9))


def test_the_largest_error_is_relative():
    least, noise, error = fitted({1: 200.0, 2: 100.0, 4: 100.0})
    worst = max(abs(least * (1 + noise / n) / y - 1) for n, y in ((1, 200.0), (2, 100.0), (4, 100.0)))
    assert error == pytest.approx(worst)
    assert error > 0.05


def test_only_settings_that_arrive_with_every_seed_count():
    def setting(actors, groups, *env_steps):
        runs = [{"to_the_goal": "not reached" if each is None else {"env_steps": each}} for each in env_steps]
        return {"actors": actors, "groups": groups, "schedule": "synchronous", "runs": runs}

    settings = {
        "a": setting(2, "shared", 1000, 3000),
        "b": setting(4, "shared", 1000, None),
        "c": setting(2, "independent", 100, 100),
    }
    assert arrivals(settings, "shared", 100) == {2: 10.0}
