"""What a job's time goes by: no jump of the wall clock is seen in it, and nothing that lay between two coordinators."""

import pytest

from marless.core import stopwatch
from marless.jobs.record import RoundRecord
from marless.services.coordinator.execution.timing import Timing
from tests.unit.jobs.test_record import record


class Clocks:
    """A module `time` whose clocks are set."""

    def __init__(self) -> None:
        self.wall_s, self.monotonic_s = 1e9, 50.0

    def time(self) -> float:
        return self.wall_s

    def monotonic(self) -> float:
        return self.monotonic_s

    def wait(self, seconds: float, *, jump_s: float = 0.0) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds + jump_s


@pytest.fixture
def clocks(monkeypatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(stopwatch, "time", clocks)
    return clocks


def a_round(timing: Timing, clocks: Clocks, number: int, *, jump_s: float = 0.0) -> RoundRecord:
    """Half a second of rollout, half a second of update, and a quarter on the way to the disk."""
    timing.begin(number)
    clocks.wait(0.5, jump_s=jump_s)
    times = timing.present(0.5)
    clocks.wait(0.5, jump_s=-3 * jump_s)
    found = record(number, started_s=times.watch.started_s, ended_s=times.watch.now_s, idle_s=times.idle_s)
    clocks.wait(0.25)
    timing.recorded(found)
    return found


@pytest.mark.parametrize("jump_s", [-3600.0, 0.0, 3600.0])
def test_rounds_take_what_they_take_whatever_the_clock_is_set_to(clocks, jump_s):
    timing = Timing()
    records = []
    for number in range(3):
        clocks.wait(0.25, jump_s=jump_s)
        records.append(a_round(timing, clocks, number, jump_s=jump_s))
    assert [each.idle_s for each in records] == [None, pytest.approx(0.5), pytest.approx(0.5)]
    assert [each.took_s for each in records] == [pytest.approx(1.0)] * 3
    assert sum(each.spent_s for each in records) == pytest.approx(4.0)  # all but the first wait and the last write
    assert timing.since(1e9 - 10) == pytest.approx(14.5)
    assert timing.since(2e9) == 4.5  # accepted before the clock was set back


def test_a_round_that_another_coordinator_began_takes_its_rollout_and_what_this_one_does(clocks):
    timing = Timing()
    clocks.wait(5.0)  # opening the job
    times = timing.present(rollout_s=2.0)
    clocks.wait(1.0)
    assert (times.watch.seconds, times.idle_s) == (3.0, None)
    assert times.watch.now_s == clocks.wall_s


def test_a_round_that_is_run_again_after_others_were_lost_was_not_waited_for(clocks):
    timing = Timing()
    for number in (6, 7):
        a_round(timing, clocks, number)
    assert timing.begin(5).idle_s is None


def test_trouble_is_an_interruption_in_which_no_time_passes(clocks):
    """A learner pool that is down for five minutes, with the trajectories of round 1; then without them."""
    timing = Timing()
    a_round(timing, clocks, 0)
    timing.begin(1)
    clocks.wait(0.5)
    timing.present(0.5)
    timing.interrupted()
    clocks.wait(300.0)
    times = timing.present(0.5)
    clocks.wait(0.5)
    assert (times.watch.seconds, times.idle_s) == (1.0, None)
    timing.interrupted()
    clocks.wait(300.0)
    assert a_round(timing, clocks, 1).spent_s == pytest.approx(1.0)
