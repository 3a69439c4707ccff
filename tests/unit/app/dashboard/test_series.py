"""Curves: what of a record they keep, which points of long ones are shown, and what is marked."""

import json
import math
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.app.dashboard import rows
from marless.app.dashboard.series import MOST_COLUMNS, RunSeries, chosen
from marless.core.errors import CorruptError, SpecError
from marless.jobs.record import AggregationRecord, Decision, GradientRecord, GroupRecord
from tests.unit.jobs.test_record import EARLIER, RETURNS, WON, record


def added(*records) -> RunSeries:
    series = RunSeries()
    for number, each in enumerate(records):
        series.add(rows.decode(each.to_json().encode(), number, "rounds.jsonl"))
    return series


@pytest.mark.parametrize("many", [1, 40])
def test_a_row_has_what_the_record_says(many):
    invocations = record().invocations * many  # 40 are written as columns
    row = rows.decode(record(2, evaluation=WON, idle_s=0.25, invocations=invocations).to_json().encode(), 2, "f")
    assert (row.round, row.env_steps, row.actors, row.spent_s) == (2, 300, 2, 0.75)
    assert row.evaluation.win_rate == 0.75 and row.returns.per_agent == RETURNS.per_agent
    assert row.groups[0].agents == ("a", "b")
    assert row.retried  # the record's invocations have attempt 2


@pytest.mark.parametrize("many", [1, 40])
@pytest.mark.parametrize("attempt", [0, 1])
def test_first_attempts_are_no_fault(many, attempt):
    from dataclasses import replace

    calm = tuple(replace(each, attempt=attempt, name='x","attempt":7') for each in record().invocations * many)
    assert not rows.decode(record(invocations=calm).to_json().encode(), 0, "f").retried


def test_numbers_that_are_none_are_read_and_left_out():
    odd = Decision(kind="scaling", rule="r", outcome="2 actors", reason="", inputs={"a": math.nan, "b": 2.0})
    series = added(record(metrics={"p": {"loss": math.nan, "kl": math.inf}}, decisions=(odd,)))
    assert math.isnan(series.columns["metric/loss"][0])
    assert series.columns["signal/b"][0] == 2.0 and "signal/a" not in series.columns
    shown = series.query(["metric/loss"], "rounds", low=None, high=None, points=10)
    assert json.loads(msgspec.json.encode(shown))["columns"]["metric/loss"] == [None]


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'"x"', b"null", b'{"round": 0}', b"\xff", b"[" * 100_000])
def test_what_is_no_record_is_named_with_its_line(line):
    with pytest.raises(CorruptError, match=r"^rounds.jsonl, line 4: this is not a round record$"):
        rows.decode(line, 3, "rounds.jsonl")


def test_a_record_of_another_round_is_refused():
    with pytest.raises(CorruptError, match="line 1: this is the record of round 3"):
        rows.decode(record(2).to_json().encode(), 0, "f")


def test_an_evaluation_belongs_to_the_round_whose_policies_it_played():
    series = added(record(0), record(1), record(2), record(3, earlier_evaluation=EARLIER, evaluation=RETURNS))
    greedy = series.column("return/greedy")
    assert [None if math.isnan(each) else each for each in greedy] == [None, None, WON.mean, RETURNS.mean]
    update = json.loads(series.updates[-1].json)
    assert [row["round"] for row in update["rows"]] == [3, 2]
    assert update["rows"][1]["values"]["return/greedy"] == WON.mean


def test_seconds_are_those_of_training():
    series = added(record(0), record(1, idle_s=2.0), record(2, idle_s=None))
    assert list(series.column("seconds")) == [0.5, 3.0, 3.5]
    assert [mark.kind for mark in series.marks if "interruption" in mark.text] == ["recovery", "recovery"][1:]


def test_groups_are_stretches():
    apart = (GroupRecord(policy="a", agents=("a",), version=1), GroupRecord(policy="b", agents=("b",), version=1))
    series = added(record(0), record(1), record(2, groups=apart), record(3, groups=apart), record(4))
    assert [(each.first, each.last, len(each.groups)) for each in series.stretches] == [(0, 1, 1), (2, 3, 2), (4, 4, 1)]


def test_staleness_is_that_of_the_gradients():
    gradients = tuple(
        GradientRecord(learner=n, rollouts=(n,), env_steps=10, staleness=s, weight=1.0, waited_s=0.0)
        for n, s in enumerate((1, 4))
    )
    made = AggregationRecord(
        arrivals="", gradients=gradients, because="rule", bound=None, sampling=1, waiting=0, learning=0, dropped=0,
        lost=0, refused=0,
    )  # fmt: skip
    series = added(record(aggregation=made))
    assert series.columns["staleness/mean"][0] == 2.5 and series.columns["staleness/most"][0] == 4


def test_memory_is_bounded_however_many_agents_there_are():
    many = {f"agent-{n}": float(n) for n in range(2 * MOST_COLUMNS)}
    returns = type(RETURNS)(episodes=1, mean=1.0, per_agent=many, standard_error=None)
    series = added(record(0, returns=returns), record(1, returns=returns))
    assert len(series.columns) < MOST_COLUMNS and series.left_out > MOST_COLUMNS


def test_a_team_of_hundreds_displaces_none_of_a_jobs_own_curves():
    """With 200 agents, each with a policy of its own, the mean of a loss, the greedy return and bills are kept."""
    agents = {f"agent_{n}": float(n) for n in range(200)}
    returns = type(RETURNS)(episodes=1, mean=1.0, per_agent=agents, standard_error=None)
    metrics = {agent: {"policy_loss": 0.5, "entropy": 1.0, "approx_kl": 0.1} for agent in agents}
    first = record(0, returns=returns, metrics=metrics)
    series = added(first, record(1, returns=returns, evaluation=returns, metrics=metrics))
    series.set("cost/billed", 1, 2.0)
    assert {"return/greedy", "metric/policy_loss", "metric/approx_kl", "cost/billed"} <= set(series.columns)
    assert series.columns["metric/policy_loss"][0] == 0.5 and "agent/exploring/agent_199" in series.columns
    kept = Counter(name.partition("/")[0] for name in series.columns)
    assert (kept["agent"], kept["policy"]) == (300, 150) and series.left_out == 100 + 600 - 150


def test_a_range_is_shown_with_a_point_on_either_side():
    series = added(*(record(n) for n in range(100)))
    found = series.query(["actors"], "env-steps", low=2000, high=3000, points=1000)
    assert found["x"][0] == 1900 and found["x"][-1] == 3100 and found["rounds"][0] == 18
    assert series.query(["actors"], "rounds", low=5000, high=None, points=10)["rounds"] == [99]
    assert added().query(["actors"], "rounds", low=None, high=None, points=10)["x"] == []
    with pytest.raises(SpecError, match="x: unknown axis 'time'"):
        series.query([], "time", low=None, high=None, points=10)


def test_an_axis_that_is_not_computed_has_no_points():
    assert added(record()).query(["actors"], "usd", low=None, high=None, points=10)["x"] == []


@given(st.lists(st.one_of(st.floats(-1e9, 1e9), st.just(math.nan)), min_size=1, max_size=400), st.integers(2, 60))
def test_the_lowest_and_highest_points_are_kept_and_few(values, points):
    column = np.asarray(values)
    at = chosen([column], 0, len(values), points)
    known = column[~np.isnan(column)]
    assert list(at) == sorted(set(at)) and {0, len(values) - 1} <= set(at)
    assert len(at) <= points + 6
    if len(known):
        assert np.nanmin(column[at]) == known.min() and np.nanmax(column[at]) == known.max()


def test_a_short_peak_of_a_long_curve_is_seen():
    curve = np.zeros(10_000)
    curve[7777] = 5.0
    at = chosen([curve], 0, 10_000, 400)
    assert 7777 in at and len(at) <= 406
