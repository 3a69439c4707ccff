from marless.cost.simulation.virtual import VirtualRun
from marless.jobs.schedules.contract import check_schedule

from my_schedule.schedule import MySchedule


def test_it_keeps_the_contract() -> None:
    check_schedule(MySchedule(after=0))
    check_schedule(MySchedule(after=3))


def test_how_long_rounds_take() -> None:
    # On a virtual clock, actors take 2 seconds and updates 3: five seconds a round, or three where they overlap.
    run, seconds = VirtualRun.of(MySchedule(after=2)), []
    for _ in range(4):
        times, run = run.round(lambda began_s: 2.0, lambda began_s: 3.0)
        seconds.append(times.ended_s)
    assert seconds == [5.0, 5.0, 3.0, 3.0]
