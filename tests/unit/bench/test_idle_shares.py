"""Cells of the table of idle shares."""

from bench.idle_shares import MACHINES, cell, row


def test_a_cell_has_the_median_and_the_range():
    assert cell([0.71, 0.75, 0.72]) == "72% (71% to 75%)"
    assert cell([0.0, 0.0]) == "always"
    assert cell([0.0, 0.2]) == "10% (0% to 20%)"


def test_a_row_has_every_machine():
    assert row("x", {name: [0.5] for name in MACHINES}).keys() == {"task", "seeds", *MACHINES}
