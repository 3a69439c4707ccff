"""What the benchmark of decisions makes of its measurements, and one round of it."""

import pytest

from bench import decisions
from bench.decisions import JOB, Rounds, Seconds
from marless.jobs import spec
from marless.jobs.job import prepare

SECONDS = Seconds(
    {
        "rollout": [0.1, 0.1, 0.3],
        "update": [0.9, 0.9, 0.5],
        "update, all measured beside it": [0.95, 0.92, 0.97],
        "curvature": [0.04, 0.02, 0.04],
        "similarity": [0.3, 0.2, 0.3],
        "trend": [0.001, 0.001, 0.002],
        "scaling": [0.002, 0.002, 0.001],
    }
)


def test_shares_are_of_a_round_with_nothing_measured():
    found = {row["what"]: row for row in decisions.rows(SECONDS)}
    assert found["curvature"]["median (ms)"] == {"median": 40.0, "min": 20.0, "max": 40.0}
    assert found["curvature"]["% of a round"] == 4.0
    headline = decisions.headline(SECONDS)
    assert headline["round_ms"] == 1000.0
    assert headline["update_longer_ms"] == pytest.approx(50.0)
    assert headline["share_of_every_round"] == pytest.approx(0.043)  # 40 + 1 + 2 ms of 1000
    assert headline["share_where_sharing_begins"] == pytest.approx(0.343)  # and 300 ms of similarity
    assert [found[part]["when"] for part in ("trend", "similarity", "update")] == [
        decisions.ALWAYS,
        decisions.SHARING,
        "",
    ]


def test_a_round_measures_everything():
    job = prepare(spec.load(JOB, ["scaling=marless", "sharing=marless", "actors.envs=4", "actors.steps=10"]))
    run, seconds = Rounds(job, 0), Seconds()
    run.next(seconds)
    assert seconds.parts.keys() == {*SECONDS.parts, "noise", "grouping"}
    assert run.history[0].metrics["agent_0"].keys() >= {"curvature", "lambda_max", "lambda_min"}
    assert run.history[0].decisions[0].inputs["window"] == []
