"""The table of a round's CPU time: a row for each process, the largest first, and one for all."""

from __future__ import annotations

from bench.round_cpu import CASES, TOTAL, rows


def test_rows_are_sorted_by_the_first_case_and_end_with_the_sum() -> None:
    before, after, other = CASES
    found = {
        before: [{"store": 10.0, "worker": 90.0, TOTAL: 100.0}, {"store": 12.0, "worker": 92.0, TOTAL: 104.0}],
        after: [{"store": 10.0, "worker": 60.0, "relay": 1.0, TOTAL: 71.0}],
        other: [{"store": 9.0, "worker": 61.0, TOTAL: 70.0}],
    }
    table = rows(found)
    assert [row["process"] for row in table] == ["worker", "store", "relay", TOTAL]
    assert table[0][str(before)] == {"median": 91.0, "min": 90.0, "max": 92.0}
    assert table[2][str(before)]["median"] == 0.0
    assert table[3][str(after)]["median"] == 71.0
