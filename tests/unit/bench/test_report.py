"""Results get into pages by a program, and pages choose which columns they show."""

import json

import pytest

from bench import report

MACHINE = {
    "measured": "2026-11-28",
    "cores": 2,
    "cpu": "a CPU",
    "memory_gib": 8.0,
    "python": "3.11.7",
    "versions": {"numpy": "2.4"},
    "load_before": 0.1,
}
RESULT = {"machine": MACHINE, "rows": [{"task": "a", "rate": 1, "runs": 5}, {"task": "b", "rate": 2, "runs": 5}]}


@pytest.fixture
def page(tmp_path, monkeypatch):
    found = tmp_path / "page.md"
    monkeypatch.setattr(report, "DOCUMENTS", (found,))
    return found


def table_of(page):
    return [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]


def test_a_new_section_gets_all_columns(page):
    page.write_text("before\n<!-- rates -->\n<!-- /rates -->\nafter\n")
    report.put("rates", RESULT)
    assert table_of(page)[0] == "| task | rate | runs |"
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "2 cores of a CPU" in text


def test_the_columns_of_the_present_table_stay_in_its_order(page):
    page.write_text("<!-- rates -->\n| rate | task |\n| --- | --- |\n| 9 | old |\n<!-- /rates -->\n")
    report.put("rates", RESULT)
    assert table_of(page) == ["| rate | task |", "| ---- | ---- |", "| 1    | a    |", "| 2    | b    |"]


def test_columns_that_are_no_more_are_left_out_and_none_left_means_all(page):
    page.write_text("<!-- rates -->\n| task | gone |\n| --- | --- |\n<!-- /rates -->\n")
    report.put("rates", RESULT)
    assert table_of(page)[0] == "| task |"
    page.write_text("<!-- rates -->\n| gone |\n| --- |\n<!-- /rates -->\n")
    report.put("rates", RESULT)
    assert table_of(page)[0] == "| task | rate | runs |"


def test_a_result_without_a_page_is_printed_whole(page, tmp_path, capsys, monkeypatch):
    page.write_text("nothing\n")
    file = tmp_path / "rates.json"
    file.write_text(json.dumps(RESULT))
    monkeypatch.setattr("sys.argv", ["report", str(file)])
    report.main()
    assert "| task | rate | runs |" in capsys.readouterr().out and page.read_text() == "nothing\n"


def test_pictures_are_named_from_the_page_that_shows_them():
    machine = {"measured": "today", "cores": 2, "cpu": "a CPU", "memory_gib": 1, "python": "3", "versions": {}}
    result = {"machine": machine | {"load_before": 0}, "rows": [{"a": 1}], "pictures": {"docs/images/x.png": "X"}}
    assert "![X](../images/x.png)" in report.render(result, folder=report.ROOT / "docs" / "environments")
    assert "![X](images/x.png)" in report.render(result, folder=report.ROOT / "docs")
