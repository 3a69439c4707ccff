"""The table of many jobs against numbers worked out by hand, and the synthetic series of spot prices."""

import pytest

from bench.many_jobs import Done, machine_usd, rows_of
from bench.spot_series import rows
from marless.cost.billing.spot_files import read_spot_prices
from tests.docs.blocks import ROOT


def test_a_pool_is_one_machine_and_jobs_apart_are_one_each():
    # c6a.large: 21.25 microdollars a second, two vCPUs; jobs alone take 30 s, and pay a minute each
    pooled = [Done(0.0, 50.0 + 10 * number, 20.0, 0.004) for number in range(4)]
    alone = [Done(100.0 * number, 100.0 * number + 30.0, 15.0, 0.002) for number in range(3)]
    pool, apart = rows_of(pooled, alone, 2)
    assert (pool["on"], apart["on"]) == ("one pool on one c6a.large", "4 × c6a.large")
    assert (pool["makespan (s)"], apart["makespan (s)"]) == (80.0, 30.0)
    assert pool["machines (m$)"] == pytest.approx(80 * 0.02125)
    assert apart["machines (m$)"] == pytest.approx(4 * 60 * 0.02125)
    assert (pool["functions, a job (m$)"], apart["functions, a job (m$)"]) == (4.0, 2.0)
    assert (pool["utilisation (%)"], apart["utilisation (%)"]) == (50.0, 25.0)  # 80 of 160, 45 of 180 vCPU seconds


def test_the_machine_is_the_smallest_that_is_large_enough():
    assert [machine_usd(3600.0, vcpus) for vcpus in (1, 2, 3)] == [
        ("c6a.large", 0.0765), ("c6a.large", 0.0765), ("c6a.xlarge", 0.153),
    ]  # fmt: skip


def test_the_example_of_spot_prices_is_what_its_program_writes_and_says_that_it_is_made_up():
    path = ROOT / "examples" / "spot_synthetic.csv"
    lines = path.read_text("utf-8").splitlines()
    assert lines == list(rows(1, 360, 60.0))
    assert lines[0].startswith("# SYNTHETIC: made by `python -m bench.spot_series --seed 1`")
    found = read_spot_prices(path)
    assert sum(row.killed for row in found.rows) > 5
    assert list(rows(2, 360, 60.0)) != lines
