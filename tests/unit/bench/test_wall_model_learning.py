"""The program of learned wall models: what is kept, what its gates ask for, and a small run from end to end."""

import json
import sys

import pytest

from bench import wall_model_learning
from bench.wall_model_learning import Examined, Kept, gates
from marless_wall_model.closed_loop import LoopResult
from tests.plugins.wall_model.conftest import SMALL, private_cache


def examined(name, earned, ratio=1.0, correlation=0.3):
    loops = {re_tau: LoopResult(ratio, correlation, (1.0,), (1.0,)) for re_tau in wall_model_learning.TESTED}
    return Examined(name, earned, loops)


def found(**changes):
    models = {
        "equilibrium": examined("equilibrium", None, 1.02, 0.99),
        "random": examined("random", -0.1),
        "no-op": examined("no-op", 0.0, 0.87, 0.0),
        "log-law": examined("log-law", 0.8),
        "first": examined("first", 0.9),
        "second": examined("second", 0.73, 1.02),
    }
    return {**models, **changes}


def test_gates_hold_for_models_that_learn():
    judged = gates(found(), ["first", "second"])
    assert [judged[gate]["holds"] for gate in ("G3", "G4", "G5")] == [True, True, True]
    assert judged["G4"]["largest error"]["20000"] == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"second": examined("second", 0.71)}, "G3"),  # less than 0.9 · 0.8
        ({"random": examined("random", 0.01)}, "G3"),  # above doing nothing
        ({"second": examined("second", 0.9, 0.965)}, "G4"),
        ({"second": examined("second", 0.9, correlation=0.61)}, "G5"),
        ({"equilibrium": examined("equilibrium", None, 1.0, 0.89)}, "G5"),
    ],
)
def test_a_gate_fails_for_the_worst_of_the_models(changes, failing):
    judged = gates(found(**changes), ["first", "second"])
    assert [gate for gate in ("G3", "G4", "G5") if not judged[gate]["holds"]] == [failing]


def test_a_row_names_each_reynolds_number_and_the_range_of_correlations():
    row = examined("first", 0.9, 1.0123).row()
    assert row["return"] == "0.90" and row["u_τ ratio, Re 20000"] == "1.012" and row["correlation"] == "0.30 – 0.30"


def test_finished_parts_are_not_made_again(tmp_path):
    path = tmp_path / "runs" / "parts.jsonl"
    assert Kept(path, {}).get({"a": 1}, lambda: {"x": 2.0}) == {"x": 2.0}
    again = Kept(path, {})
    assert again.get({"a": 1}, pytest.fail) == {"x": 2.0}
    assert again.get({"a": 2}, lambda: {"x": 3.0}) == {"x": 3.0} and len(path.read_text().splitlines()) == 2


def test_a_small_run_trains_examines_and_draws(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(private_cache(tmp_path_factory)))
    options = {**SMALL, "spin_up": 0.5}
    sets = {
        "env.options": options,
        "actors": {"count": 1, "envs": 2, "steps": 4},
        "evaluation": {"every": 1, "episodes": 2},
        "stop": {"rounds": 2},
    }
    words = [word for name, value in sets.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    monkeypatch.setattr(
        sys,
        "argv",
        [
            *("wall_model_learning", "--runs", "1", "--duration", "0.2", "--left-out", "0.05", "--episodes", "2"),
            *("--run-file", str(tmp_path / "parts.jsonl"), "--json", str(tmp_path / "found.json")),
            *("--picture", str(tmp_path / "found.png"), *words),
        ],
    )
    wall_model_learning.main()
    result = json.loads((tmp_path / "found.json").read_text())
    assert [row["model"] for row in result["rows"]] == [
        "equilibrium",
        "none",
        "no-op",
        "random",
        "log-law",
        "LLWM, seed 0",
    ]
    assert set(result["gates"]) == {"G3", "G4", "G5"} and (tmp_path / "found.png").stat().st_size > 10_000
    assert (tmp_path / "parts.policies" / "wall_model-0.safetensors").exists()
    parts = (tmp_path / "parts.jsonl").read_text()
    wall_model_learning.main()
    assert (tmp_path / "parts.jsonl").read_text() == parts
