"""The table of PettingZoo's environments: what is run, and what a row says of an environment that learned nothing."""

import json

import pytest

from bench import environments
from bench.environments import why_not


@pytest.mark.parametrize(
    ("name", "above", "said"),
    [
        ("mpe2.simple_v3", 0.01, ""),
        ("mpe2.simple_v3", 0.0, "too few env steps"),
        ("pettingzoo.classic.rps_v2", -0.1, "nothing can be won from random opponents"),
        ("mpe2.simple_v3", None, "no episode ended within 15 s"),
        ("pettingzoo.sisl.pursuit_v5", None, "no episode ended within 120 s"),
    ],
)
def test_a_row_says_why_nothing_was_gained(name, above, said):
    assert why_not(name, above) == said


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    file, made = tmp_path / "environments.json", []
    monkeypatch.setattr(environments, "installed", lambda: ["mpe2.a_v1", "mpe2.b_v1", "pettingzoo.atari.c_v1"])
    monkeypatch.setattr(
        environments,
        "measured",
        lambda name, seconds, limit_s: made.append(name) or {"environment": name, "trains": "yes"},
    )
    environments.main(["--json", str(file), "--stop-after-s", "0"])
    assert not made
    environments.main(["--json", str(file), "--only", "b_v1"])
    environments.main(["--json", str(file)])
    assert made == ["mpe2.b_v1", "mpe2.a_v1"]
    assert [row["environment"] for row in json.loads(file.read_text())["rows"]] == ["mpe2.a_v1", "mpe2.b_v1"]
    assert "mpe2.b_v1" in capsys.readouterr().out
