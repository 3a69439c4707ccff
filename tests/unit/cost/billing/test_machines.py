"""Accounting `machines`: hand-computed amounts, whole picodollars, and no amount where no price is known."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.core.machine import Kept, MachineRecord
from marless.cost.billing.bill import bill, to_dict
from marless.cost.billing.ledger import Ledger, starts
from marless.cost.billing.machines import MachineMeter
from marless.jobs import prices
from marless.jobs.record import InvocationRecord, from_json
from tests.unit.cost.billing.rounds import invocation, job, paper_round, round_of

PLAIN = prices.merged(None)
SPOT = {"provider": "aws", "type": "c6a.large", "market": "spot", "zone": "z"}
PICO = 10**12


def row(**changes) -> MachineRecord:
    return MachineRecord(**{"id": "m", "began_s": 1e9, "pool": "actor", "launcher": "ec2", "present_s": 1.0} | changes)


def charged(*rows: MachineRecord, table=PLAIN, after: bool = False) -> dict[str, int]:
    return {each.item: each.picos for each in MachineMeter(table).charges(rows, after=after)}


def test_a_machine_is_charged_by_what_it_did():
    """c6a.large on demand: 0.0765 USD an hour, so 21.25 microdollars a second."""
    done = row(type="c6a.large", market="on-demand", present_s=100.0, starting_s=40.0, work_s=50.0, waiting_s=10.0)
    assert charged(done) == {"starting": 850 * 10**6, "work": 1062_500_000, "waiting": 212_500_000}


def test_the_price_of_what_ran_is_the_operators_then_the_hosts_up_to_the_list_price():
    table = prices.merged({"machines": {"usd_h": {"c6a.large/spot": "0.036", "c6a.large/spot/z": "0.018", "box": 7.2}}})
    hour = {"present_s": 3600.0, "work_s": 3600.0}
    for changes, usd, prices_of in (
        (SPOT | {"usd_h": 0.03}, 0.018, table),  # the table wins
        (SPOT | {"usd_h": 0.03, "zone": "y"}, 0.036, table),
        (SPOT | {"usd_h": 0.03}, 0.03, PLAIN),
        (SPOT | {"usd_h": 900.0}, 0.0765, PLAIN),  # no spot machine costs more than its list price
        (SPOT | {"market": "on-demand", "usd_h": 0.03}, 0.0765, PLAIN),
        ({"type": "box", "market": "own", "usd_h": 1.0}, 7.2, table),
        ({"type": "c6a.large", "market": "own", "usd_h": 1.0}, 1.0, PLAIN),
        ({"type": "n2-standard-8", "provider": "gcp", "usd_h": 0.5}, 0.5, PLAIN),
    ):
        assert charged(row(**hour | changes), table=prices_of) == {"work": round(usd * PICO)}, changes


def test_a_machine_without_a_known_price_has_no_amount_and_is_named():
    meter = MachineMeter(PLAIN)
    assert list(meter.charges([row(**SPOT, present_s=120.0, work_s=120.0)])) == []
    assert {name: each.us for name, each in meter.time.unpriced.items()} == {"c6a.large (spot)": 120 * 10**6}
    assert meter.time.minutes["work"] == 2.0
    ledger = Ledger(job(bill={"accounting": "machines"}), PLAIN)
    ledger.add(round_of(invocation("actor", 0.0, 1.0), machines=(row(**SPOT, work_s=1.0),)))
    with pytest.raises(
        SpecError, match=r"no price is known for 0.0 minutes of c6a.large \(spot\) \(such as machine m\)"
    ):
        ledger.total_usd("machines")


def test_records_that_name_no_machines_have_no_such_cost():
    ledger = Ledger(job(), PLAIN)
    ledger.add(paper_round(0))
    with pytest.raises(SpecError, match="the records name no machines"):
        ledger.total_usd("machines")
    assert set(to_dict(bill([paper_round(0)], job(), PLAIN), PLAIN)["usd"]) == {"paper", "billed", "serverful"}


@pytest.mark.parametrize(
    ("changes", "us"),
    [
        ({"market": "spot", "present_s": 20.0}, 40_000_000),  # the first minute
        ({"market": "spot", "present_s": 60.25}, 750_000),  # whole seconds
        ({"market": "spot", "present_s": 61.0}, 0),
        ({"market": "own", "present_s": 20.25}, 0),
    ],
)
def test_a_released_machine_is_rounded_up_once(changes, us):
    meter = MachineMeter(PLAIN)
    gone = row(**SPOT | changes, usd_h=0.036, released=True)
    charges = [*meter.charges([gone]), *meter.charges([gone])]
    assert [(each.item, each.picos) for each in charges] == ([("minimum", 10 * us)] if us else [])  # 10 a microsecond


def test_a_machine_that_other_jobs_still_use_is_not_rounded_up():
    assert "minimum" not in charged(row(**SPOT, usd_h=0.036, present_s=20.0, work_s=5.0))


def test_a_machine_with_workers_of_two_pools_is_paid_once():
    """Each pool sees 10 s; together they are charged 10 s of the machine, not 20."""
    rows = [
        row(pool=pool, type="box", usd_h=3.6, present_s=10.0, work_s=8.0, waiting_s=2.0)
        for pool in ("actor", "learner")
    ]
    meter = MachineMeter(PLAIN)
    assert sum(each.picos for each in meter.charges(rows)) == 10 * PICO // 1000
    assert (meter.time.us["work"], meter.time.us["waiting"]) == (8_000_000, 2_000_000)


def test_a_machine_of_two_pools_is_rounded_up_once_by_its_whole_life():
    """From 0 to 18.5 s, of which one pool had it until 17.5 s, and the other from 0.5 s: 41.5 s are missing."""
    facts = SPOT | {"usd_h": 0.036, "released": True}
    rows = [row(present_s=17.5, **facts), row(pool="learner", began_s=1e9 + 0.5, present_s=18.0, **facts)]
    assert [(each.function, each.picos) for each in MachineMeter(PLAIN).charges(rows)] == [("learner", 415 * 10**6)]


def test_records_hold_what_was_done_so_far_and_facts_only_once():
    first = row(type="box", usd_h=3.6, present_s=10.0, work_s=4.0)
    second = row(present_s=20.0, work_s=9.0)  # no facts
    anew = row(began_s=2e9, type="box", usd_h=3.6, present_s=3.0, work_s=3.0)  # the pool was restarted
    meter = MachineMeter(PLAIN)
    amounts = [sum(each.picos for each in meter.charges([one])) for one in (first, second, second, anew)]
    assert amounts == [4 * 10**9, 5 * 10**9, 0, 3 * 10**9]
    assert meter.machines[0].type == "box"


def test_what_is_kept_after_the_end_is_told_apart_and_in_the_total():
    spec, done = job(), row(type="box", usd_h=3.6, present_s=10.0, work_s=10.0)
    ended = row(present_s=12.0, work_s=11.0, waiting_s=1.0)
    later = row(present_s=42.0, work_s=11.0, waiting_s=31.0, released=True)
    kept = Kept(end=(ended,), now=(later,), seen_s=1.0)
    made = bill([round_of(invocation("actor", 0.0, 1.0), machines=(done,))], spec, PLAIN, kept)
    assert made.by("round", "machines") == {"0": 10 * 10**9, "after": 50 * 10**9}
    assert made.by("kind", "machines") == {
        "actor": 11 * 10**9,
        "actor: waiting": 10**9,
        "actor: kept": 30 * 10**9,
        "actor: minimum": 18 * 10**9,
    }
    assert made.time.idle_minutes * 60 == pytest.approx(31.0)
    assert made.picos("machines") == sum(made.by("group", "machines").values()) == 60 * 10**9
    assert to_dict(made, PLAIN)["machine_minutes"]["kept"] == 0.5


SECONDS = st.integers(0, 10**7).map(lambda ms: ms / 1000)
GROWTH = st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6)


@given(GROWTH, st.floats(0.001, 500))
def test_amounts_of_rounds_add_up_to_the_total_to_the_picodollar(growth, usd_h):
    """Also however often the records are split, to half a picodollar a charge."""
    rows, sums = [], [0.0, 0.0, 0.0]
    for grown in growth:
        sums = [round(total + each, 3) for total, each in zip(sums, grown, strict=True)]
        starting_s, work_s, waiting_s = sums
        rows.append(row(usd_h=usd_h, present_s=sum(sums), starting_s=starting_s, work_s=work_s, waiting_s=waiting_s))
    records = [round_of(invocation("actor", 0.0, 1.0), round_=i, machines=(each,)) for i, each in enumerate(rows)]
    made, whole = bill(records, job(), PLAIN), MachineMeter(PLAIN)
    total = made.picos("machines")
    assert total == sum(made.by("round", "machines").values()) == sum(made.by("kind", "machines").values())
    assert abs(total - sum(each.picos for each in whole.charges([rows[-1]]))) <= 2 * len(rows) + 2
    ledger = Ledger(job(), PLAIN)
    for record in records:
        ledger.add(record)
    assert ledger.picos("machines") == total


def test_a_copied_meter_goes_on_by_itself():
    meter = MachineMeter(PLAIN)
    list(meter.charges([row(work_s=1.0)]))
    other = copy.deepcopy(meter)
    list(other.charges([row(work_s=3.0)]))
    assert (meter.time.us["work"], other.time.us["work"]) == (10**6, 3 * 10**6)
    assert len(meter.time.unpriced) == 1


def test_a_record_with_machines_is_read_as_it_was_written():
    for count in (1, 2, 5, 40):
        rows = tuple(row(id=f"i-{index:017x}", work_s=float(index), held=index == 1) for index in range(count))
        runs = tuple(invocation("actor", 0.0, 1.0, index=i, machine=rows[i % count].id) for i in range(40))
        record = round_of(*runs, machines=rows)
        assert from_json(record.to_json()) == record


def test_starts_are_told_by_launcher():
    def cold(init_s: float, ready_s: float, function: str = "actor", machine: str = "m") -> InvocationRecord:
        return invocation(function, 0.0, 1.0, cold=True, init_s=init_s, ready_s=ready_s, machine=machine)

    runs = [cold(1.0, 1.0), cold(3.0, 0.5), cold(2.0, 2.0), cold(9.0, 0.0, "learner"), cold(0.0, 5.0)]
    found = starts([round_of(*runs, machines=(row(), row(pool="learner", launcher="local")))])
    assert [(each.launcher, each.pool, each.workers) for each in found] == [
        ("ec2", "actor", 3),
        ("local", "learner", 1),
    ]
    assert (found[0].connected_s, found[0].connected_most_s) == (2.0, 3.0)
    assert (found[0].first_task_s, found[0].first_task_most_s) == (3.5, 4.0)
    later = [round_of(runs[0]), round_of(machines=(row(),))]  # pools are asked once a second, so after some rounds
    assert [each.launcher for each in starts(later)] == ["ec2"]
