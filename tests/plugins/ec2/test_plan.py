"""What the launcher `ec2` decides about its group: tables by hand, and what must hold for any group."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless_ec2.plan import GroupInstance, Load, MachineDemand, Plan, ScalingGroup, plan
from marless_ec2.settings import Ec2Settings

SETTINGS = Ec2Settings("actors", "eu-central-1", idle_s=300.0, boot_s=600.0)
BUSY, IDLE = Load(workers=2), Load(workers=0, idle_s=301.0)


def group(*states: str, desired: int | None = None, most: int = 8, least: int = 0) -> ScalingGroup:
    """Protected machines "i-0", "i-1", … in these states."""
    machines = tuple(GroupInstance(f"i-{n}", state, is_protected=True) for n, state in enumerate(states))
    return ScalingGroup("actors", least, most, len(machines) if desired is None else desired, machines)


def decided(found: ScalingGroup, loads: dict[str, Load], *, waiting: int = 0, slots: int = 2, silent_s=None) -> Plan:
    return plan(found, loads, silent_s or {}, MachineDemand(waiting, slots), SETTINGS)


@pytest.mark.parametrize(
    ("found", "loads", "waiting", "slots", "desired"),
    [
        (group(), {}, 1, 0, 1),
        (group(), {}, 100, 0, 1),  # the first machine tells how many it has room for
        (group(), {}, 5, 2, 3),
        (group(), {}, 100, 2, 8),  # no more than the group's max_size
        (group("Pending"), {}, 5, 2, 3),
        (group("InService"), {}, 2, 2, None),  # it has been ordered for these two
        (group("InService"), {"i-0": BUSY}, 5, 2, 4),
        (group("InService", "Pending", "Pending", "Pending"), {"i-0": BUSY}, 5, 2, None),
        (group("InService", desired=4), {"i-0": BUSY}, 5, 2, None),
        (group("InService"), {"i-0": Load(2, leaving="spot")}, 2, 2, 2),  # its replacement boots while it drains
        (group("InService", "Terminating:Wait", desired=1), {"i-0": BUSY}, 2, 2, 2),
        (group("InService", desired=3), {"i-0": BUSY}, 0, 2, 1),  # what AWS could not launch is not needed any more
        (group("InService", desired=3, least=2), {"i-0": BUSY}, 0, 2, None),
        (group("InService"), {"i-0": BUSY}, 0, 2, None),
        # A lease that has run out has set 0; protected machines run on, and AWS would refuse to end them.
        (group("InService", "InService", desired=0), {"i-0": BUSY, "i-1": IDLE}, 0, 2, 2),
        (group("InService", "InService", "InService", desired=0, most=2), {"i-0": BUSY}, 0, 2, 2),
    ],
)
def test_as_many_machines_as_waiting_workers_need(found, loads, waiting, slots, desired):
    assert decided(found, loads, waiting=waiting, slots=slots).desired == desired


def test_idle_machines_end_the_longest_idle_first_and_are_unprotected_before():
    found = group("InService", "InService", "InService", "InService")
    loads = {"i-0": IDLE, "i-1": Load(0, 900.0), "i-2": Load(0, 299.0), "i-3": BUSY}
    to_do = decided(found, loads)
    assert to_do == Plan(unprotect=("i-0", "i-1"), end={"i-1": "idle for 900 s", "i-0": "idle for 301 s"})
    assert list(to_do.end) == ["i-1", "i-0"]


def test_no_machine_ends_for_being_idle_while_workers_wait():
    assert decided(group("InService"), {"i-0": IDLE}, waiting=1).end == {}


def test_a_machine_that_is_being_ended_is_not_ended_again():
    found = group("Terminating:Wait", "Terminating:Proceed", "Terminated", desired=0)
    assert decided(found, {"i-0": IDLE, "i-1": Load(0, 900.0, leaving="spot"), "i-2": IDLE}).end == {}


def test_a_machine_that_leaves_ends_once_it_has_no_worker_or_its_time_is_over():
    found = group("InService", "InService", "InService")
    loads = {
        "i-0": Load(1, leaving="spot"),
        "i-1": Load(0, leaving="spot"),
        "i-2": Load(3, leaving="hook", is_due=True),
    }
    assert decided(found, loads, waiting=4).end == {"i-1": "spot", "i-2": "hook"}


def test_a_machine_that_does_not_dial_in_is_ended_and_replaced():
    to_do = decided(group("InService"), {}, waiting=2, silent_s={"i-0": 601.0})
    assert list(to_do.end) == ["i-0"]
    assert "has not dialled in for 600 s" in to_do.end["i-0"]
    assert to_do.desired == 2  # of which the end of this one takes one


def test_machines_with_work_and_unknown_ones_are_protected():
    machines = tuple(
        GroupInstance(f"i-{n}", state) for n, state in enumerate(("InService", "InService", "InService", "Pending"))
    )
    found = ScalingGroup("actors", 0, 8, 4, machines)
    loads = {"i-0": BUSY, "i-1": Load(0, 1.0)}
    assert decided(found, loads).protect == ("i-0", "i-2")


def test_machines_that_wait_for_the_hook_may_end_once_they_have_no_worker():
    found = group("Terminating:Wait", "Terminating:Wait", "Terminating:Wait", "Terminating:Proceed", desired=0)
    loads = {"i-0": BUSY, "i-1": Load(0, 1.0), "i-2": Load(1, is_due=True)}
    assert decided(found, loads).complete == ("i-1", "i-2")


STATES = ("Pending", "Pending:Wait", "InService", "Terminating:Wait", "Terminating:Proceed", "Terminated")
LOADS = st.builds(
    Load,
    workers=st.integers(0, 4),
    idle_s=st.floats(0, 1e4),
    leaving=st.sampled_from(["", "spot"]),
    is_due=st.booleans(),
)


@st.composite
def situations(draw):
    machines = [
        GroupInstance(f"i-{n}", draw(st.sampled_from(STATES)), draw(st.booleans()))
        for n in range(draw(st.integers(0, 8)))
    ]
    loads = {each.id: draw(LOADS) for each in machines if draw(st.booleans())}
    loads = {name: dataclasses.replace(load, idle_s=0.0) if load.workers else load for name, load in loads.items()}
    silent_s = {each.id: draw(st.floats(0, 1200)) for each in machines if each.id not in loads}
    found = ScalingGroup("actors", 0, draw(st.integers(1, 12)), draw(st.integers(0, 12)), tuple(machines))
    return found, loads, silent_s, MachineDemand(draw(st.integers(0, 50)), draw(st.integers(0, 5)))


@given(situations())
def test_what_holds_for_any_group(situation):
    found, loads, silent_s, demand = situation
    to_do = plan(found, loads, silent_s, demand, SETTINGS)
    states = {each.id: each.state for each in found.instances}
    serving = {each.id for each in found.serving}
    with_work = {name for name, load in loads.items() if load.workers and not load.is_due}
    assert not with_work & {*to_do.end, *to_do.unprotect, *to_do.complete}, "work is never ended"
    assert set(to_do.end) <= serving, "nothing is ended twice"
    assert set(to_do.unprotect) <= set(to_do.end)
    assert all(states[name] == "InService" for name in (*to_do.protect, *to_do.unprotect)), "AWS refuses others"
    assert not set(to_do.protect) & set(to_do.end)
    if to_do.desired is not None:
        assert 0 <= to_do.desired <= max(found.most, len(serving))
        if demand.waiting:
            assert to_do.desired > found.desired, "only ends make a group with waiting workers smaller"
        else:
            assert to_do.desired == min(len(serving), found.most), "AWS has nothing to end by itself"
    elif not demand.waiting and serving:
        assert found.desired == min(len(serving), found.most), "AWS ends no machine below a desired capacity of 0"
    if demand.waiting and demand.slots:
        kept = len([name for name in loads if name in serving and name not in to_do.end and not loads[name].leaving])
        after = (found.desired if to_do.desired is None else to_do.desired) - len(to_do.end)
        room = (
            after
            - kept
            - len([name for name in loads if name in serving and loads[name].leaving and name not in to_do.end])
        )
        enough = room * demand.slots >= demand.waiting
        assert enough or (to_do.desired or found.desired) >= found.most, "everybody who waits gets a machine"
