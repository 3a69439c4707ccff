"""What a job's time goes by: no jump of the wall clock is seen in it, and nothing that lay between two coordinators."""

import pytest

from marless import stopwatch
from services.coordinator.timing import Timing


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


@pytest.mark.parametrize("jump_s", [-3600.0, 0.0, 3600.0])
def test_rounds_take_what_they_take_whatever_the_clock_is_set_to(clocks, jump_s):
    timing = Timing()
    idle = []
    for number in range(3):
        clocks.wait(0.25, jump_s=jump_s)
        begun = timing.begin(number)
        clocks.wait(0.5, jump_s=jump_s)
        times = timing.present(0.5)
        clocks.wait(0.5, jump_s=-3 * jump_s)
        assert times is begun
        assert times.watch.now_s - times.watch.started_s == pytest.approx(1.0)
        timing.recorded(number)
        idle.append(times.idle_s)
    assert idle == [None, 0.25, 0.25]
    assert timing.training_s == timing.trained_s == 3.5
    assert timing.since(1e9 - 10) == pytest.approx(13.75)
    assert timing.since(2e9) == 3.75  # accepted before the clock was set back


def test_a_round_that_another_coordinator_began_takes_its_rollout_and_what_this_one_does(clocks):
    timing = Timing()
    timing.go_on_after(100.0)
    clocks.wait(5.0)  # opening the job
    times = timing.present(rollout_s=2.0)
    clocks.wait(1.0)
    assert (times.watch.seconds, times.idle_s) == (3.0, None)
    assert times.watch.now_s == clocks.wall_s
    assert (timing.trained_s, timing.training_s) == (100.0, 103.0)


def test_a_round_that_is_run_again_after_others_were_lost_was_not_waited_for(clocks):
    timing = Timing()
    for number in (6, 7):
        timing.begin(number)
        timing.present(0.0)
        timing.recorded(number)
    assert timing.begin(5).idle_s is None
