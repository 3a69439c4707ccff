"""What interruptions do to a bill: nothing but to start functions again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marless.cost.billing.bill import Bill, bill
from marless.jobs.prices import ACCOUNTINGS
from marless.jobs.record import RoundRecord
from tests.unit.cost.billing.rounds import job
from tests.unit.cost.billing.test_ledger import prices, small_round

BACKENDS = ("lambda", "fargate", "ec2")
MOST_ROUNDS = 24
START_S = 3.0
rounds_after_gaps = st.dictionaries(st.integers(1, MOST_ROUNDS - 1), st.floats(-1e5, 1e6), min_size=1, max_size=10)
"""Rounds before which nobody ran the job, and for how many seconds by a wall clock that may be set meanwhile."""


@st.composite
def undisturbed(draw) -> list[RoundRecord]:
    """Rounds of some seconds, a moment after one another; only the first had to start anything."""
    records: list[RoundRecord] = []
    at = 1.7e9
    for number in range(draw(st.integers(2, MOST_ROUNDS))):
        idle_s, took_s = draw(st.floats(0.0, 0.02)), draw(st.floats(3.0, 6.0))
        at += idle_s
        changes = {"at": at, "ended_s": at + took_s, "policies": ("p", "q")}
        records.append(started(small_round(number, **changes), cold=not number, idle_s=idle_s if number else None))
        at += took_s
    return records


def started(record: RoundRecord, *, cold: bool, idle_s: float | None) -> RoundRecord:
    """The round with functions that had to be started, or were there."""
    init_s = START_S if cold else 0.0
    invocations = tuple(replace(each, cold=cold, init_s=init_s) for each in record.invocations)
    return replace(record, invocations=invocations, idle_s=idle_s)


def later(record: RoundRecord, seconds: float) -> RoundRecord:
    moved = [
        replace(
            each, **{name: at + seconds for name in ("queued_s", "start_s", "end_s") if (at := getattr(each, name))}
        )
        for each in record.invocations
    ]
    times = {"started_s": record.started_s + seconds, "ended_s": record.ended_s + seconds}
    return replace(record, **times, invocations=tuple(moved))


def interrupted(records: Sequence[RoundRecord], gaps: Mapping[int, float], *, cold: bool) -> list[RoundRecord]:
    """The same job without a coordinator, or with nothing at all (`cold`), for these times."""
    shifts = accumulate(gaps.get(record.round, 0.0) for record in records)
    return [
        started(later(record, shift), cold=cold, idle_s=None) if record.round in gaps else later(record, shift)
        for record, shift in zip(records, shifts, strict=True)
    ]


def billed(records: Sequence[RoundRecord], backend: str) -> Bill:
    return bill(records, job(), prices(backend=backend))


@settings(max_examples=20)
@given(records=undisturbed(), gaps=rounds_after_gaps, cold=st.booleans(), backend=st.sampled_from(BACKENDS))
def test_how_long_an_interruption_lasts_makes_no_difference(records, gaps, cold, backend):
    """Beyond the millisecond that a function's time is rounded up to."""
    long, none = (
        billed(interrupted(records, {number: gap * length for number, gap in gaps.items()}, cold=cold), backend)
        for length in (1.0, 0.0)
    )
    for accounting in ACCOUNTINGS:
        assert long.total_usd(accounting) == pytest.approx(none.total_usd(accounting), rel=2e-3, abs=1e-9)


@settings(max_examples=20)
@given(records=undisturbed(), gaps=rounds_after_gaps, backend=st.sampled_from(BACKENDS))
def test_a_job_that_was_interrupted_costs_what_it_costs_undisturbed_and_its_starts(records, gaps, backend):
    """Within 5 %: what it idled before the rounds in question is not on the bill, and nothing else is missing."""
    plain = billed(records, backend)
    left, killed = (billed(interrupted(records, gaps, cold=cold), backend) for cold in (False, True))
    for accounting in ACCOUNTINGS:
        assert left.total_usd(accounting) == pytest.approx(plain.total_usd(accounting), rel=0.05, abs=1e-9)
        assert left.picos(accounting) <= plain.picos(accounting) * 1.002
        assert killed.picos(accounting) * 1.002 >= left.picos(accounting)
    starts_s = sum(START_S * (1 + 2) for number in gaps if number < len(records))  # an actor and two policies each
    work = billed(interrupted(records, gaps, cold=True), "lambda").total_usd("paper") - plain.total_usd("paper")
    assert work == pytest.approx(starts_s * 5 / 3 * 0.0000166667, rel=1e-3, abs=1e-9)  # of 1, 2 and 2 GB


def test_a_job_that_goes_on_after_a_pause_pays_for_its_next_round_and_no_more():
    """52 rounds, `down`, 100 s, `up`; then an end, and one more round after 3.5 minutes."""
    at = [4.0 * number for number in range(54)]
    gaps = {52: 100.0, 53: 210.0}
    records = [small_round(number, at=at[number], idle_s=0.0 if number else None) for number in range(54)]
    records = [started(each, cold=False, idle_s=each.idle_s) for each in records]
    costs = [each.picos("billed") for each in billed(interrupted(records, gaps, cold=False), "lambda").rounds]
    assert costs[52] == costs[53] == pytest.approx(costs[51], rel=0.01)
