"""The model of the control plane: lines that fit, and limits that are those of the code."""

import json
import sys

import pytest

from bench import report, scale, scale_model
from bench.scale_model import fit, limits, lines
from marless.core.limits import MAX_ACTORS


def result(**quantities) -> dict[str, object]:
    """As `bench.scale` writes it, for 10, 100 and 1,000 actors."""
    rows = [{"actors": n} | {name: value(n) for name, value in quantities.items()} for n in (10, 100, 1000)]
    return {"rows": scale.transposed(rows)}


QUANTITIES = {
    "hosts": lambda n: 4,
    "learner_pool CPU ms/round": lambda n: 10 + n,
    "actor_pool CPU ms/round": lambda n: 5 + 0.25 * n,
    "actor_pool MB": lambda n: 60 + 0.1 * n,
    "record kB": lambda n: 1 + 0.1 * n,
}


def test_a_line_is_found_again():
    line = fit([10, 100, 1000], [12.0, 30.0, 210.0])
    assert (line.fixed, line.each, line.error) == pytest.approx((10, 0.2, 0), abs=1e-9)
    assert line.at(20_000) == pytest.approx(4010)
    assert line.reaches(110) == pytest.approx(500)


def test_errors_count_in_proportion_and_nothing_is_negative():
    line = fit([10, 1000], [0.5, 1000.0])  # through both points, the intercept would be negative
    assert line.fixed == 0
    assert line.each == pytest.approx(_through_zero([10, 1000], [0.5, 1000.0]))
    assert fit([10, 100], [5.0, 5.0]).reaches(6) == float("inf")


def _through_zero(actors, values) -> float:
    ratios = [n / value for n, value in zip(actors, values, strict=True)]
    return sum(ratios) / sum(ratio**2 for ratio in ratios)


def test_the_model_is_of_what_was_measured():
    model = lines(result(**QUANTITIES))
    assert set(model) == set(QUANTITIES) - {"hosts"}
    assert model["actor_pool MB"].each == pytest.approx(0.1)


def test_limits_are_in_order_and_those_of_the_code():
    reached = limits(lines(result(**QUANTITIES)))
    at = {each["what"]: int(each["reached at actors"].replace(",", "")) for each in reached}
    assert list(at.values()) == sorted(at.values())
    assert at["learner_pool: 0.5 s a round"] == 490
    assert at["actor_pool: 0.5 s a round"] == 1980
    assert at["actor_pool: 1 GB"] == 9400
    assert at["an upload waits longer than its 60 s for its turn"] == 59_990
    assert MAX_ACTORS in at.values()


def test_a_picture_is_drawn_and_named_in_the_page(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    about = {"measured": "today", "cores": 2, "cpu": "a CPU", "memory_gib": 1, "python": "3", "versions": {}}
    measured = result(**QUANTITIES) | {"machine": about | {"load_before": 0}}
    (tmp_path / "scale.json").write_text(json.dumps(measured))
    arguments = ["--picture", f"{tmp_path}/scale.png", "--json", f"{tmp_path}/scale_model.json"]
    monkeypatch.setattr(sys, "argv", ["scale_model", f"{tmp_path}/scale.json", *arguments])
    scale_model.main()
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    page = report.render(json.loads((tmp_path / "scale_model.json").read_text()))
    assert f"![{scale_model.SHOWS}](" in page and "scale.png)" in page
    assert json.loads((tmp_path / "scale_limits.json").read_text())["rows"]
