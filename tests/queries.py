"""The queries of deploy/grafana and deploy/prometheus, and which metrics and labels they name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"
DASHBOARD, ALERTS = DEPLOY / "grafana" / "marless.json", DEPLOY / "prometheus" / "alerts.yaml"
OF_SCRAPES = {"instance", "job"}
"""Labels that Prometheus adds."""
_VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}
"""What Grafana puts in."""


@dataclass(frozen=True)
class Selected:
    """A metric that a query selects, and the labels by which it does."""

    metric: str
    labels: frozenset[str]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def queries() -> dict[str, str]:
    """All queries, by the title of their panel or alert."""
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in _VARIABLES.items():
                text = text.replace(name, value)
            found[f"{panel['title']} {panel['id']}{target['refId']}"] = text
    return found


def recording_rules() -> str:
    """All queries as a file of rules, which promtool checks."""
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries().values())]
    return yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]})


def selected(query: str) -> set[Selected]:
    """What a query selects; raises ValueError for one that is no PromQL."""
    return set(_below(promql_parser.parse(query)))


def grouped(query: str) -> set[str]:
    """The labels by which a query sums."""
    return set(_groups(promql_parser.parse(query)))


def _below(expression: Any) -> Iterator[Selected]:
    if isinstance(expression, promql_parser.VectorSelector):
        labels = frozenset(each.name for each in expression.matchers.matchers)
        yield Selected(expression.name, labels)
    for inner in _parts(expression):
        yield from _below(inner)


def _groups(expression: Any) -> Iterator[str]:
    if isinstance(expression, promql_parser.AggregateExpr) and expression.modifier:
        yield from expression.modifier.labels
    for inner in _parts(expression):
        yield from _groups(inner)


def _parts(expression: Any) -> list[Any]:
    names = ("lhs", "rhs", "expr", "vector_selector")
    return [getattr(expression, name) for name in names if hasattr(expression, name)] + list(
        getattr(expression, "args", [])
    )


if __name__ == "__main__":
    print(recording_rules())  # noqa: T201  # a file for promtool
