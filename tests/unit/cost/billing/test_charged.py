"""What a provider would charge for one run as functions and on a machine, against numbers worked out by hand."""

from dataclasses import replace
from decimal import Decimal

import pytest

from marless.cost.billing.bill import charged
from marless.cost.billing.ledger import Ledger
from marless.jobs.prices import load
from tests.unit.cost.billing.rounds import job
from tests.unit.cost.billing.test_ledger import GB_S, PLAIN, small_round

SERVICES_H = Decimal("0.032") + Decimal("0.0168")
"""The Redis node, and the host of the coordinator."""
WORK = GB_S * Decimal("1.5") * 1769 / 1024 + GB_S * 2 * Decimal("0.501") + 2 * Decimal("0.0000002")
"""Of the round's actor and policy on Lambda, as accounting *billed* has it."""


def machine(records):
    ledger = Ledger(job(), PLAIN)
    for record in records:
        ledger.add(record)
    return ledger.machine


def usd(records, prices=PLAIN, spec=None):
    return charged(records, spec or job(), prices, machine(records))


def test_both_sides_pay_for_the_modelled_time_and_for_the_same_services():
    """The actor takes 1 s and the policy 0.5004 s: 1,501 ms, not the 4 s that the round took where it ran. Redis is
    paid by whole seconds. c6a.large is the smallest machine.
    """
    found = usd([small_round()])
    services = Decimal("0.032") * 2 / 3600 + Decimal("0.0168") * Decimal("1.501") / 3600
    assert found["serverful"] == pytest.approx(float(Decimal("0.0765") * Decimal("1.501") / 3600 + services), rel=1e-6)
    assert found["billed"] == pytest.approx(float(WORK + services), rel=1e-6)


def test_how_long_rounds_took_where_the_job_ran_does_not_matter():
    slow = replace(small_round(), ended_s=small_round().ended_s + 1000)
    assert usd([slow]) == usd([small_round()])
    assert usd([slow], load()) == usd([small_round()], load())  # with actors that are kept ready
    kept_ready = Ledger(job(), load())
    measured = kept_ready.add(slow).usd("billed")
    assert measured > 10 * usd([slow], load())["billed"]


def test_both_sides_pay_for_the_time_between_rounds():
    close, apart = (usd([small_round(0), small_round(1, at=200.0, idle_s=idle_s)]) for idle_s in (0.0, 36.0))
    assert apart["billed"] - close["billed"] == pytest.approx(float(SERVICES_H / 100), rel=1e-6)
    assert apart["serverful"] - close["serverful"] == pytest.approx(
        float((Decimal("0.0765") + SERVICES_H) / 100), rel=1e-6
    )


def test_a_run_without_rounds_costs_nothing():
    assert charged([], job(), PLAIN, machine([small_round()])) == {"billed": 0.0, "serverful": 0.0}
