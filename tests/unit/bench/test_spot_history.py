"""Runs of known prices."""

from decimal import Decimal

from bench.spot_history import row
from marless.cost.billing.spot import SpotPrice, SpotSeries

MINUTE = 60 * 10**6


def test_a_run_costs_a_part_of_the_list_price_and_loses_what_a_kill_takes():
    # Ten hours at 3.6 USD/h; in each hour one minute in which no machine can be had.
    rows = [SpotPrice(time_us=minute * MINUTE, usd_h=Decimal("3.6"), killed=minute % 60 == 30) for minute in range(600)]
    cheap = row("1 min", 60, SpotSeries(tuple(rows)), 7.2)
    assert 0.5 <= float(cheap["cost / at list price"]) < 0.53
    long = row("1 h", 3600, SpotSeries(tuple(rows)), 7.2)
    assert long["killed at least once"] == "100.0%"
    assert 1 <= float(long["kills"]) < 1.1
    # A minute of waiting, 15 s of starts, and at most a round of 10 s.
    assert 75 / 3600 <= float(long["longer by"].rstrip("%")) / 100 < 90 / 3600
