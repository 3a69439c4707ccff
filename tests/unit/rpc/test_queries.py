"""The dashboard and the alerts of deploy/: their form, and that their queries are PromQL.

tests/integration/test_metrics.py compares what they name with what the services export.
"""

from __future__ import annotations

import pytest

from tests.queries import Selected, alerts, dashboard, grouped, queries, selected

SEVERITIES = {"info", "warning", "critical"}


def test_selectors_are_found_wherever_they_stand():
    query = 'sum by (a) (rate(m{x="1"}[5m])) / on (b) n > -histogram_quantile(0.5, max_over_time((k{y!="2"})[5m:1m]))'
    assert selected(query) == {
        Selected("m", frozenset({"x"})),
        Selected("n", frozenset()),
        Selected("k", frozenset({"y"})),
    }
    assert grouped(query) == {"a"}
    with pytest.raises(ValueError, match="parenthesis"):
        selected("sum(m")


@pytest.mark.parametrize("title", queries())
def test_each_query_is_promql_and_selects_a_metric(title):
    assert selected(queries()[title])


def test_alerts_have_what_prometheus_and_people_need():
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) >= 8
    for rule in alerts():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["alert"].startswith("Marless") and rule["labels"]["severity"] in SEVERITIES
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["annotations"]["description"].endswith(".")


def test_panels_of_the_dashboard_do_not_overlap():
    taken: set[tuple[int, int]] = set()
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        x, y, w, h = (panel["gridPos"][name] for name in "xywh")
        cells = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
        assert x + w <= 24 and not cells & taken
        taken |= cells


def test_the_dashboard_asks_for_its_data_source():
    found = dashboard()
    assert {each["name"] for each in found["templating"]["list"]} == {"datasource", "instance"}
    sources = [target["datasource"] for panel in found["panels"] for target in panel["targets"]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
