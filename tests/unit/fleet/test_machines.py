"""The accounts of machines: hand-computed times, and for any sequence of events, that none is lost or counted twice."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.machine import Machine
from marless.fleet.machines import EARLIER_S, FORGET_S, MachineAccounts, Presence

WALL_S = 1_700_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL_S + self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machines(clock) -> MachineAccounts:
    made = MachineAccounts("local", clock=clock, wall=clock.wall)
    clock.now += 10_000.0  # the pool has run for a while
    return made


def told(machines: MachineAccounts, job: str) -> list[tuple[str, float, float, float]]:
    return [
        (use.presence.machine.id, use.account.starting_s, use.account.work_s, use.account.waiting_s)
        for use in machines.of(job)
    ]


def test_a_machine_starts_works_and_waits_for_one_job(machines, clock):
    machines.want("j")
    clock.now += 30.0
    presence = machines.arrive(Machine(id="m"), took_s=30.0)
    assert presence.began_s == WALL_S + clock.now - 30.0
    assert presence.connected_after_s == 30.0
    clock.now += 2.0
    machines.begin(presence, "j")
    clock.now += 5.0
    machines.end(presence, "j")
    clock.now += 3.0
    assert told(machines, "j") == [("m", 32.0, 5.0, 3.0)]
    assert presence.first_task_after_s == 32.0
    assert presence.present_s == 40.0


def test_time_before_a_job_asks_for_workers_is_not_its_own(machines, clock):
    """Red if a warm machine were charged to whoever comes first: it may have been there for days."""
    presence = machines.arrive(Machine(id="m"), took_s=1.0)
    clock.now += 600.0
    machines.want("j")
    clock.now += 0.5
    machines.begin(presence, "j")
    assert told(machines, "j") == [("m", 0.5, 0.0, 0.0)]
    assert machines.seconds == {"unused": 601.0, "starting": 0.5}


def test_a_machine_is_shared_by_the_number_of_tasks(machines, clock):
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    for job in "aab":
        machines.begin(presence, job)
    clock.now += 9.0
    machines.end(presence, "a")
    clock.now += 4.0
    assert told(machines, "a") == [("m", 0.0, 8.0, 0.0)]
    assert told(machines, "b") == [("m", 0.0, 5.0, 0.0)]


def test_an_idle_machine_waits_for_the_job_that_was_last_until_another_begins(machines, clock):
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    machines.begin(presence, "a")
    clock.now += 1.0
    machines.end(presence, "a")
    clock.now += 60.0  # nobody asks
    machines.want("b")
    clock.now += 7.0
    machines.begin(presence, "b")
    clock.now += 1.0
    machines.end(presence, "b")
    assert told(machines, "a") == [("m", 0.0, 1.0, 60.0)]
    assert told(machines, "b") == [("m", 7.0, 1.0, 0.0)]
    assert [use.is_last for use in machines.of("a")] == [False]
    assert [use.is_last for use in machines.of("b")] == [True]


def test_a_gap_between_two_jobs_that_alternate_is_waiting_not_starting(machines, clock):
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    for job in "abab":
        machines.want(job)
        machines.begin(presence, job)
        clock.now += 2.0
        machines.end(presence, job)
        clock.now += 1.0
    assert told(machines, "a") == [("m", 0.0, 4.0, 2.0)]
    assert told(machines, "b") == [("m", 0.0, 4.0, 2.0)]


def test_a_request_of_long_ago_does_not_make_a_machine_start_for_it(machines, clock):
    machines.want("j")
    clock.now += 2 * FORGET_S
    presence = machines.arrive(Machine(id="m"), took_s=FORGET_S)
    machines.want("j")
    clock.now += 1.0
    machines.begin(presence, "j")
    assert told(machines, "j") == [("m", 1.0, 0.0, 0.0)]


def test_a_machine_ends_with_its_last_worker(machines, clock):
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    machines.arrive(Machine(id="m"), took_s=0.0)
    machines.begin(presence, "j")
    clock.now += 2.0
    machines.end(presence, "j")
    machines.release(presence)
    clock.now += 3.0
    machines.release(presence)
    clock.now += 100.0
    assert told(machines, "j") == [("m", 0.0, 2.0, 3.0)]
    assert presence.is_released
    assert not machines.present


def test_a_machine_that_its_launcher_keeps_goes_on_without_workers(clock):
    kept = {"m"}
    machines = MachineAccounts("ec2", lambda: kept, clock=clock, wall=clock.wall)
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    machines.begin(presence, "j")
    clock.now += 2.0
    machines.end(presence, "j")
    machines.release(presence)
    clock.now += 10.0
    assert told(machines, "j") == [("m", 0.0, 2.0, 10.0)]
    assert machines.arrive(Machine(id="m"), took_s=1.0) is presence
    machines.release(presence)
    clock.now += 5.0
    kept.clear()
    assert told(machines, "j") == [("m", 0.0, 2.0, 15.0)]
    clock.now += 50.0
    assert told(machines, "j") == [("m", 0.0, 2.0, 15.0)]


@pytest.mark.parametrize(
    ("ago_s", "expected_s"), [(90.0, 90.0), (10 * EARLIER_S, EARLIER_S), (-50.0, 0.0)], ids=["told", "old", "future"]
)
def test_what_a_worker_says_of_its_launch_is_bounded(machines, clock, ago_s, expected_s):
    machine = Machine(id="m", launched_s=clock.wall() - ago_s)
    assert machines.arrive(machine, took_s=20.0).connected_after_s == pytest.approx(expected_s, abs=1e-6)


def test_a_machine_that_comes_back_does_not_count_its_first_life_again(machines, clock):
    launched_s = clock.wall() - 5.0
    machines.release(machines.arrive(Machine(id="m", launched_s=launched_s), took_s=0.0))
    clock.now += 30.0
    again = machines.arrive(Machine(id="m", launched_s=launched_s), took_s=0.0)
    assert again.connected_after_s == pytest.approx(30.0)


def test_a_task_that_comes_to_a_released_machine_takes_no_time_of_it(machines, clock):
    """A worker may be gone when its turn comes."""
    presence = machines.arrive(Machine(id="m"), took_s=0.0)
    machines.begin(presence, "j")
    clock.now += 2.0
    machines.end(presence, "j")
    machines.release(presence)
    clock.now += 100.0
    machines.begin(presence, "j")
    clock.now += 1.0
    machines.end(presence, "j")
    assert told(machines, "j") == [("m", 0.0, 2.0, 0.0)]


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "leave", "begin", "end", "want", "look"]),
        st.sampled_from(["m0", "m1"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 40),
    ),
    max_size=60,
)


@given(EVENTS)
def test_all_time_of_all_machines_is_divided_and_nothing_shrinks(events):
    """The sum over jobs, and what no job had, is the time from each beginning to each end: nothing twice, none lost."""
    clock = Clock()
    machines = MachineAccounts(clock=clock, wall=clock.wall)
    clock.now += 10_000.0
    present: dict[str, Presence] = {}
    ever: set[Presence] = set()
    tasks: Counter[tuple[str, str]] = Counter()
    before: dict[tuple[str, int], tuple[float, float, float]] = {}
    for event, name, job, wait in events:
        clock.now += wait
        presence = present.get(name)
        if event == "arrive":
            present[name] = machines.arrive(Machine(id=name), took_s=float(wait))
            ever.add(present[name])
        elif event == "want":
            machines.want(job)
        elif event == "look":
            for use in machines.of(job):
                account = (use.account.starting_s, use.account.work_s, use.account.waiting_s)
                key = (job, id(use.presence))
                assert all(new >= old for new, old in zip(account, before.get(key, (0.0,) * 3), strict=True))
                before[key] = account
        elif presence and event == "begin":
            machines.begin(presence, job)
            tasks[name, job] += 1
        elif presence and event == "end" and tasks[name, job]:
            machines.end(presence, job)
            tasks[name, job] -= 1
        elif presence and event == "leave" and not any(tasks[name, each] for each in "abc"):
            machines.release(presence)
            if not presence.workers:
                del present[name]
    jobs = {job: machines.of(job) for job in "abc"}
    accounts = [use.account for uses in jobs.values() for use in uses]
    given_s = sum(each.starting_s + each.work_s + each.waiting_s for each in accounts)
    assert all(min(each.starting_s, each.work_s, each.waiting_s) >= 0 for each in accounts)
    assert given_s + machines.seconds["unused"] == pytest.approx(sum(each.present_s for each in ever), abs=1e-6)
    assert sum(machines.seconds.values()) == pytest.approx(given_s + machines.seconds["unused"], abs=1e-6)


def test_a_price_is_the_launchers_where_the_machine_does_not_say_it(clock):
    known: dict[str, float] = {}
    machines = MachineAccounts("ec2", usd_h=lambda machine: known.get(machine.type), clock=clock, wall=clock.wall)
    silent = machines.arrive(Machine(id="i-1", type="c6a.4xlarge", market="spot"), 0.0)
    says = machines.arrive(Machine(id="i-2", type="c6a.4xlarge", usd_h=0.3), 0.0)
    for presence in (silent, says):
        machines.begin(presence, "j")
    clock.now += 1
    assert [use.presence.machine.usd_h for use in machines.of("j")] == [None, 0.3]
    known["c6a.4xlarge"] = 0.2448
    clock.now += 1
    assert [use.presence.machine.usd_h for use in machines.of("j")] == [0.2448, 0.3]
    known["c6a.4xlarge"] = 0.5
    clock.now += 1
    assert [use.presence.machine.usd_h for use in machines.of("j")] == [0.2448, 0.3], "it is that of the beginning"
