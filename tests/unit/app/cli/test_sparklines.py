"""What `marless watch` shows below its bar: curves, actors and cost, on any terminal."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from marless.app.cli.progress import TrainingProgress
from marless.app.cli.sparklines import Series, WatchedCourse, sparkline
from marless.cost.billing.ledger import Ledger
from marless.jobs import prices, spec
from tests.docs.terminal import Screen
from tests.unit.jobs.test_record import RETURNS, record

GIVEN = {"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 40}}
SPEC = spec.parse(GIVEN, "spec")


def rounds(count: int, first: int = 0, **changes):
    """Returns rise by one a round from -20.5, actors go from 2 to 9 and stay there."""
    for n in range(first, first + count):
        returns = replace(RETURNS, mean=RETURNS.mean + n)
        yield replace(record(n, **changes), returns=returns, actors=min(2 + n, 9))


def course(given=SPEC, **which) -> WatchedCourse:
    found = WatchedCourse(given)
    for each in rounds(**which):
        found.add(each)
    return found


def test_a_sparkline_goes_from_the_lowest_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 20, ascii_only=False) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, 0, 3.4, 3.6], 20, ascii_only=True) == "#_-="


def test_more_values_than_columns_are_averaged():
    assert sparkline([0, 2, 4, 4, 8, 10], 3, ascii_only=False) == "▁▄█"  # of 1, 4 and 9: 3/8 of the way is the fourth
    assert len(sparkline(range(1000), 37, ascii_only=False)) == 37


@pytest.mark.parametrize(
    ("values", "drawn"),
    [([], ""), ([5.0], "▄"), ([5.0] * 3, "▄▄▄"), ([math.nan, 1.0, math.inf, 2.0], "▁█"), ([-1e308, 1e308], "▄▄")],
)
def test_odd_values_are_drawn(values, drawn):
    assert sparkline(values, 9, ascii_only=False) == drawn


@pytest.mark.parametrize("width", [0, -3])
def test_without_columns_nothing_is_drawn(width):
    assert sparkline([1.0, 2.0], width, ascii_only=False) == ""


def test_a_long_series_keeps_its_means_and_little_memory():
    series = Series()
    for value in range(5000):
        series.add(float(value))
    assert 256 <= len(series.points) < 512
    size = (series.points[1] - series.points[0]) or 1
    assert series.points[0] == (size - 1) / 2, "the mean of the first values"
    assert (series.first, series.last) == (0.0, 4999.0)


def cost_of(records) -> float:
    ledger = Ledger(SPEC, prices.merged(None))
    for each in records:
        ledger.add(each)
    return ledger.total_usd(SPEC.bill.accounting)


def test_rows_at_80_columns():
    usd = cost_of(rounds(16))
    assert usd > 0
    assert course(count=16).rows(80, ascii_only=False) == [
        "return  ▁▁▂▂▃▃▄▄▅▅▆▆▇▇██  -20.50 → -5.50",
        "actors  ▁▂▃▄▅▆▇█████████  2 → 9",
        f"cost    {usd:.6f} USD ({SPEC.bill.accounting})",
    ]


def test_rows_of_a_narrow_terminal_without_unicode():
    found = course(count=16)
    found.left = "0:12 left"
    usd = f"cost    {cost_of(rounds(16)):.6f} USD ({SPEC.bill.accounting})"
    assert found.rows(36, ascii_only=True) == [
        "return  __.:--=+*##  -20.50 -> -5.50",
        "actors  _.:-=+*#########  2 -> 9",
        usd[:36],
        "time    0:12 left",
    ]
    assert found.rows(26, ascii_only=True)[:2] == ["return  -20.50 -> -5.50", "actors  _.-+######  2 -> 9"]
    assert found.rows(16, ascii_only=True)[:2] == ["return  -5.50", "actors  2 -> 9"]
    assert all(len(row) <= width for width in range(1, 90) for row in found.rows(width, ascii_only=False))


def test_greedy_returns_take_the_place_of_exploring_ones():
    found = course(count=3)
    found.add(record(3, evaluation=replace(RETURNS, mean=7.0)))
    assert found.rows(80, ascii_only=False)[0] == "return  ▄  7.00 → 7.00"


def test_the_cost_names_its_budget_and_since_when_it_counts():
    budget = spec.parse(GIVEN | {"stop": {"cost_usd": 0.5}}, "spec")
    *_, cost = course(budget, count=4, first=9).rows(80, ascii_only=False)
    assert cost == f"cost    {cost_of(rounds(4, 9)):.6f} of 0.5 USD ({SPEC.bill.accounting}, since round 10)"


@pytest.mark.parametrize("given", [None, spec.parse(GIVEN | {"bill": {"accounting": "machines"}}, "spec")])
def test_a_cost_that_is_unknown_is_not_shown(given):
    """Without the job's spec, and by machines where the records name none."""
    assert [row.split()[0] for row in course(given, count=4).rows(80, ascii_only=False)] == ["return", "actors"]


def test_before_the_first_round_nothing_is_shown():
    assert WatchedCourse(SPEC).rows(80, ascii_only=False) == []


class Ascii(io.StringIO):
    encoding = "ascii"


@pytest.mark.parametrize("out", [io.StringIO(), Ascii()])
def test_the_rows_stand_below_the_bar_and_go_at_the_end(out):
    screen, console = Screen(), Console(file=out, force_terminal=True, width=44, no_color=True)
    with TrainingProgress(console, "job", SPEC.stop, "", below=WatchedCourse(SPEC)) as progress:
        for each in rounds(6, idle_s=0.5):
            progress.show(each)
        progress._bar.refresh()
        screen.write(out.getvalue())
        bar, *rows = [line for line in screen._lines if line.strip()]
    assert bar.startswith("job ")
    assert "left" not in bar, "it has no room for it"
    assert [row.split()[0] for row in rows] == ["return", "actors", "cost", "time"]
    assert rows[0].split()[1] == ("_.-=*#" if isinstance(out, Ascii) else "▁▂▄▅▇█")
    assert "\x1b[3" not in out.getvalue(), "no colour"
    screen = Screen()
    screen.write(out.getvalue())
    assert not any(line.strip() for line in screen._lines)
