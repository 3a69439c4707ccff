"""The table of faults: lines that are measured again replace their own, and no others."""

from bench.harness import table
from bench.report import insert
from tests.faults.__main__ import CASES, merged

DOCUMENT = "before\n<!-- faults -->\nold\n<!-- /faults -->\nafter\n"


def row(case, result):
    return {"id": case.id, "attack": case.attack, "result": result, "measured": "2026-11-22"}


def test_lines_that_are_measured_again_replace_their_own():
    first, second, *_, last = CASES
    document = insert(DOCUMENT, "faults", table(merged(DOCUMENT, [row(first, "pass"), row(last, "FAIL")])))
    rows = merged(document, [row(last, "pass"), row(second, "pass")])
    assert rows == [row(first, "pass"), row(second, "pass"), row(last, "pass")]


def test_a_line_whose_case_is_gone_is_dropped():
    gone = {"id": "R99", "attack": "none", "result": "pass", "measured": "2026-11-22"}
    document = insert(DOCUMENT, "faults", table([gone, row(CASES[0], "pass")]))
    assert merged(document, []) == [row(CASES[0], "pass")]
