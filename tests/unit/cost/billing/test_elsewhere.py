"""Bills of a recorded run on spot machines, with slots of one's own, and on a machine that is idle at times."""

import json
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import SpecError
from marless.cost.billing.bill import bill, charged
from marless.cost.billing.ledger import ReservedMachines
from marless.cost.billing.own import BUSY, bill_with_own, own_machines, usable_vcpus
from marless.cost.billing.spot import SpotSeries
from marless.cost.billing.spot_files import read_spot_prices
from marless.cost.pricing import usd
from marless.jobs import prices
from tests.unit.cost.billing.rounds import invocation, job, paper_round, round_of

TABLE = prices.load()
SPEC = job(env={"name": "mpe/simple_spread", "options": {"agents": 6}}, actors={"count": 50})
RECORDS = [paper_round(number) for number in range(4)]
SECOND = 10**6


def series(tmp_path, text: str) -> SpotSeries:
    path = tmp_path / "series.csv"
    path.write_text(text)
    return read_spot_prices(path)


def run(found: SpotSeries, rounds_s, begin_s=0, *, restart_s=0, minimum_s=0):
    lengths = [round(each * SECOND) for each in rounds_s]
    return found.run(lengths, begin_s * SECOND, restart_us=restart_s * SECOND, minimum_s=minimum_s)


def test_each_moment_is_billed_by_its_price(tmp_path):
    # 3.6 USD an hour is a millidollar a second: 10 s of it, and 20 s of twice that
    found = run(series(tmp_path, "time,usd_h\n0,3.6\n10,7.2\n"), [15, 15])
    assert (usd(found.picos), found.kills, found.lost_us, found.ended_us) == (0.05, 0, 0, 30 * SECOND)


def aws(tmp_path, *entries: tuple[str, str], **machine: str):
    """A file as AWS answers it, with the newest price first."""
    named = {"InstanceType": "c6a.4xlarge", "AvailabilityZone": "us-east-1a", "ProductDescription": "Linux/UNIX"}
    prices_ = [{"Timestamp": time, "SpotPrice": price, **named} for time, price in entries]
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"SpotPriceHistory": [*prices_, *([prices_[-1] | machine] if machine else [])]}))
    return path


HISTORY = (
    ("2026-10-01T00:00:40Z", "7.2"),
    ("2026-10-01T00:00:25+00:00", "9.0"),
    ("2026-10-01T02:00:00.000+02:00", "3.6"),
)


def test_prices_as_aws_tells_them(tmp_path):
    found = read_spot_prices(aws(tmp_path, *HISTORY))
    begin = found.rows[0].time_us
    assert [((row.time_us - begin) / SECOND, float(row.usd_h), row.killed) for row in found.rows] == [
        (0, 3.6, False),
        (25, 9.0, False),
        (40, 7.2, False),
    ]


def test_a_price_above_the_bid_takes_the_machine_away(tmp_path):
    with_bid = read_spot_prices(aws(tmp_path, *HISTORY), Decimal("8"))
    same = series(tmp_path, "time,usd_h,killed\n0,3.6,0\n25,3.6,1\n40,7.2,0\n")
    begin = with_bid.rows[0].time_us
    found = with_bid.run([10 * SECOND] * 3, begin, restart_us=3 * SECOND, minimum_s=0)
    assert found == run(same, [10, 10, 10], restart_s=3)
    # What comes after the last price that the bid can pay is no part of the series.
    assert len(read_spot_prices(aws(tmp_path, *HISTORY), Decimal("3.6")).rows) == 1


def test_of_two_prices_of_one_moment_the_first_is_the_newer(tmp_path):
    found = read_spot_prices(aws(tmp_path, ("2026-10-01T00:00:00Z", "2"), ("2026-10-01T00:00:00Z", "1")))
    assert [float(row.usd_h) for row in found.rows] == [2.0]


@pytest.mark.parametrize(
    ("text", "bid", "said"),
    [
        ('{"SpotPriceHistory": [{"Timestamp": 3}]}', None, "is no answer of `aws ec2 describe-spot-price-history`"),
        ('{"other": []}', None, "is no answer of"),
        ("{", None, "is no answer of"),
        ('{"SpotPriceHistory": []}', None, "has 0 rows; give 1 to 100,000"),
        ("time,usd_h\n0,2\n", Decimal(1), "no price is as low as the bid of 1 US dollars an hour; raise --bid"),
        ("time,usd_h\n0,2\n", Decimal("NaN"), "--bid NaN is no price"),
    ],
)
def test_what_is_no_series_is_refused(tmp_path, text, bid, said):
    path = tmp_path / "series"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        read_spot_prices(path, bid)


def test_prices_without_a_time_zone_and_of_two_machines_are_refused(tmp_path):
    with pytest.raises(SpecError, match="is no answer of"):
        read_spot_prices(aws(tmp_path, ("2026-10-01T00:00:00", "2")))
    two = aws(tmp_path, *HISTORY, AvailabilityZone="us-east-1b")
    with pytest.raises(SpecError, match=r"prices of 2 machines, such as c6a\.4xlarge us-east-1a Linux/UNIX and c6a"):
        read_spot_prices(two)


def test_work_that_a_kill_loses_is_paid_again(tmp_path):
    prices_ = series(tmp_path, "time,usd_h,killed\n0,3.6,0\n25,3.6,1\n40,7.2,0\n")
    # rounds of 10 s: two are done at 20, the third is lost at 25; at 40 s workers start for 3 s, and it is done at 53
    found = run(prices_, [10, 10, 10], restart_s=3)
    assert (found.kills, found.lost_us, found.ended_us) == (1, 5 * SECOND, 53 * SECOND)
    assert usd(found.picos) == pytest.approx(0.025 + 2 * 0.013)
    # a round that ends just then is not lost
    assert run(prices_, [10, 15], restart_s=3).kills == 0
    after = run(prices_, [10, 15, 1], restart_s=3)  # but the next one needs another machine
    assert (after.kills, after.lost_us, after.ended_us) == (1, 0, 44 * SECOND)


def test_a_machine_is_charged_whole_seconds_and_its_first_minute(tmp_path):
    prices_ = series(tmp_path, "time,usd_h,killed\n0,3.6,0\n25,3.6,1\n1000,3.6,0\n")
    assert usd(run(prices_, [10, 20], minimum_s=60).picos) == pytest.approx(0.06 + 0.06)
    assert usd(run(prices_, [10.5], minimum_s=0).picos) == pytest.approx(0.011)


def test_a_start_that_is_killed_starts_anew(tmp_path):
    prices_ = series(tmp_path, "time,usd_h,killed\n0,3.6,0\n5,3.6,1\n10,3.6,0\n12,3.6,1\n20,3.6,0\n")
    found = run(prices_, [10], restart_s=4)
    assert (found.kills, found.lost_us, found.ended_us) == (2, 7 * SECOND, 34 * SECOND)
    assert usd(found.picos) == pytest.approx(0.005 + 0.002 + 0.014)


def test_a_run_that_begins_without_a_machine_waits_for_one(tmp_path):
    prices_ = series(tmp_path, "time,usd_h,killed\n0,3.6,1\n30,3.6,0\n")
    assert run(prices_, [10]).ended_us == 10 * SECOND
    assert run(prices_, [10]).picos == run(prices_, [10], 30).picos


@given(st.lists(st.floats(0.01, 60.0), min_size=1, max_size=8), st.lists(st.integers(1, 90), max_size=6))
def test_a_kill_makes_no_run_shorter_or_cheaper(tmp_path_factory, rounds_s, gaps):
    rows, now = ["time,usd_h,killed", "0,3.6,0"], 0
    for gap in gaps:
        rows += [f"{now + gap},3.6,1", f"{now + gap + 5},3.6,0"]
        now += gap + 5
    place = tmp_path_factory.mktemp("series")
    disturbed = run(series(place, "\n".join(rows)), rounds_s, restart_s=2)
    calm = run(series(place, "time,usd_h\n0,3.6\n"), rounds_s)
    assert disturbed.picos >= calm.picos
    assert disturbed.ended_us >= calm.ended_us + disturbed.lost_us + 5 * SECOND * disturbed.kills
    assert (disturbed.kills == 0) == (disturbed.ended_us == calm.ended_us)


def test_the_bill_of_a_run_is_of_many_beginnings(tmp_path):
    # 50 actors: a c6a.16xlarge, 4 rounds of 1.15 + 3.75 s; at half of its list price
    # 19.6 s before the kill at 100 of 150 s: begun in 196 of 1,500 moments, rounds are lost
    found = series(tmp_path, "time,usd_h,killed\n0,1.224,0\n100,1.224,1\n150,1.224,0\n").bill(RECORDS, SPEC, TABLE)
    assert (found.machine, found.undisturbed_s, len(found.runs)) == ("c6a.16xlarge", pytest.approx(19.6), 1000)
    assert found.on_demand_usd == pytest.approx(60 * 2.448 / 3600)
    minute, killed = 60 * 1.224 / 3600, found.kills[1]
    assert found.usd == pytest.approx((minute, (1 + killed) * minute, 2 * minute))
    assert killed == pytest.approx(19.6 / 150, abs=1e-3)
    assert 4.8 < found.lost_s[2] < 4.9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,price\n0,1\n", "has no column 'usd_h'; name the columns time,usd_h,killed"),
        ("", "has no column 'time'"),
        ("time,usd_h\n", "has 0 rows"),
        ("time,usd_h\n0,cheap\n", "row 1: give time and usd_h as numbers, and killed as 0 or 1"),
        ("time,usd_h,killed\n0,1,0\n1,1,yes\n", "row 2: give time and usd_h as numbers"),
        ("time,usd_h\n0\n", "row 1: give time and usd_h as numbers"),
        ("time,usd_h\n0,-1\n", "row 1: time must be 0 to 1e10 seconds, and usd_h 0 to 10,000 US dollars"),
        ("time,usd_h\nnan,1\n", "row 1: time must be"),
        ("time,usd_h\n0,nan\n", "row 1: time must be"),
        ("time,usd_h\n5,1\n5,1\n", "time 5 follows 5; sort rows"),
        ("time,usd_h,killed\n0,1,0\n5,1,1\n", "ends with a kill, after which there is no machine"),
    ],
)
def test_a_series_that_makes_no_sense_is_refused_in_one_sentence(tmp_path, text, said):
    with pytest.raises(SpecError, match=r"series\.csv: ") as refused:
        series(tmp_path, text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_comments_of_a_series_are_no_rows(tmp_path):
    found = series(tmp_path, "# synthetic\ntime,usd_h,killed\n# more\n0,0.10,\n")
    assert [(row.time_us, float(row.usd_h), row.killed) for row in found.rows] == [(0, 0.1, False)]


def test_a_machine_that_is_idle_at_times_costs_its_idle_time_too():
    # two vCPUs: 25 · 1.15 s of 50 actors, 6 · 3.75 s of 12 learner functions; four rounds of 51.25 s at 0.0765 USD/h
    made = own_machines(RECORDS, SPEC, TABLE, "paper")
    small, large = made[0], next(each for each in made if each.instance == "c6a.16xlarge")
    assert (small.instance, small.vcpus, small.seconds) == ("c6a.large", 2, pytest.approx(205.0))
    assert small.usd(1.0) == pytest.approx(205 * 0.0765 / 3600)
    assert small.usd(0.1) == pytest.approx(10 * small.usd(1.0))
    assert (large.seconds, large.usd(1.0)) == (pytest.approx(19.6), pytest.approx(19.6 * 2.448 / 3600))
    # functions: 50 actors of 1 GB, 12 functions of 2 GB: 147.5 GB-s a round
    functions_usd = 4 * 147.5 * 0.0000166667
    assert small.break_even == pytest.approx(205 * 0.0765 / 3600 / functions_usd)
    assert small.idle == pytest.approx(1 - small.break_even) == pytest.approx(0.557, abs=1e-3)
    assert (large.break_even > 1, large.idle) == (True, 0.0)


def test_at_break_even_both_cost_the_same():
    for each in own_machines(RECORDS, SPEC, TABLE):
        assert each.usd(each.break_even) == pytest.approx(each.functions_usd)
        cheaper = [busy for busy in BUSY if each.functions_usd < each.usd(busy)]
        assert cheaper == [busy for busy in BUSY if busy < each.break_even]


def test_both_sides_are_modelled_and_pay_for_services_beside_billed_functions():
    """Rounds of any measured length cost the same: 205 modelled seconds of a c6a.large, and services' machines."""
    small = own_machines(RECORDS, SPEC, TABLE)[0]
    assert small.usd(1.0) == pytest.approx(205 * (0.0765 + 0.032 + 0.0168) / 3600)
    longer = [replace(record, ended_s=record.ended_s + 500.0) for record in RECORDS]
    assert own_machines(longer, SPEC, TABLE)[0].functions_usd == pytest.approx(small.functions_usd)
    machine = ReservedMachines("c6a.large", 1, TABLE.instance("c6a.large"))
    assert small.functions_usd == pytest.approx(charged(RECORDS, SPEC, TABLE, machine)["billed"])


def test_memory_limits_what_runs_at_once():
    sizes = {"actor": {"vcpus": 1, "memory_mb": 4096}, "learner": {"vcpus": 1, "memory_mb": 8192}}
    assert usable_vcpus(job(functions=sizes).functions, TABLE.instance("c6a.16xlarge")) == 16  # 128 GB
    assert usable_vcpus(SPEC.functions, TABLE.instance("c6a.16xlarge")) == 64
    assert own_machines(RECORDS, job(functions=sizes, actors={"count": 50}), TABLE)[0].instance == "c6a.xlarge"


def test_without_own_slots_a_run_costs_what_it_costs():
    made = bill_with_own(RECORDS, SPEC, TABLE, 0)
    assert made.picos == bill(RECORDS, SPEC, TABLE).by("kind", "billed")
    assert (made.own_s, made.share) == ({}, 0.0)


def test_with_enough_own_slots_only_the_store_is_billed():
    made = bill_with_own(RECORDS, SPEC, TABLE, 50)
    assert {name for name, picos in made.picos.items() if picos} == {"redis: node"}
    assert (made.share, made.billed_s) == (1.0, {})
    assert made.own_s == pytest.approx({"actor": 4 * 50 * 1.15, "critic": 4 * 6 * 3.75, "policy": 4 * 6 * 3.75})


def test_some_own_slots_take_what_fits_and_the_rest_is_billed():
    everything, made = (bill_with_own(RECORDS, SPEC, TABLE, count) for count in (0, 12))
    assert made.own_s == pytest.approx({"actor": 4 * 12 * 1.15, "critic": 4 * 6 * 3.75, "policy": 4 * 6 * 3.75})
    assert made.billed_s == pytest.approx({"actor": 4 * 38 * 1.15})
    for name in ("actor", "actor: ready", "actor: request"):  # 38 of 50
        assert made.picos[name] == pytest.approx(everything.picos[name] * 38 / 50)


def test_a_slot_is_free_again_when_its_function_has_ended():
    # on one slot: the first of two that overlap, and the one after them
    acting = [invocation("actor", begin, end) for begin, end in ((0.0, 2.0), (1.0, 3.0), (2.0, 4.0))]
    made = bill_with_own([round_of(*acting)], SPEC, TABLE, 1)
    assert (made.own_s, made.billed_s) == ({"actor": 4.0}, {"actor": 2.0})


def test_machines_that_are_held_anyway_have_no_own_slots():
    with pytest.raises(SpecError, match="bills by fargate, whose machines are charged whether they work or not"):
        bill_with_own(RECORDS, SPEC, prices.merged({"backend": "fargate"}), 2)


@pytest.mark.parametrize("of", [own_machines, lambda *run: SpotSeries(()).bill(*run)])
def test_there_must_be_a_round(of):
    with pytest.raises(SpecError, match="no round has been recorded yet"):
        of([], SPEC, TABLE)
