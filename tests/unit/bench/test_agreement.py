"""What the table of agents' gradients is made of: measurements of each round where policies are shared, in thirds."""

from dataclasses import replace

import pytest

from bench.agreement import Trained, ahead, error, job_of, main, row, third, trained
from bench.frontiers import TASKS


@pytest.mark.parametrize("name", ["mappo", "spread6"])
def test_gradients_are_measured_in_each_round_where_they_are_shared(name):
    task = replace(next(each for each in TASKS if each.name == name), env_steps=5000)
    shared, apart = (trained(job_of(task, sharing), 0) for sharing in ("shared", "independent"))
    assert (len(shared.own), len(shared.common), len(shared.returns)) == (2, 2, 2)  # 2,000 or 2,500 env steps each
    assert (len(apart.own), len(apart.returns)) == (0, 2)
    assert apart.returns[1] != shared.returns[1]


def test_a_row_has_thirds_and_the_ends_of_runs():
    known = Trained([0.0] * 18 + [3.0, 5.0], [1e-4, 3e-4, 2e-4, 2e-4, 0.0, -2e-4], [0.0] * 6)
    other = replace(known, returns=[9.0] * 20)
    found = row("task", [known, known], [known, other])
    assert found["own, first third"] == "2.0 ± 0.6"  # of 1, 3, 1, 3: deviation 1.155, halved
    assert found["own, last third"] == "-1.0 ± 0.6"
    assert found["return, shared"] == "4 (4 to 4)"
    assert found["return, apart"] == "6.5 (4 to 9)"


def test_thirds_cover_all():
    assert [list(third(range(7), part)) for part in range(3)] == [[0, 1], [2, 3], [4, 5, 6]]
    assert error([1.0, 3.0]) == pytest.approx(1.0)


def test_apart_is_ahead_from_where_it_is_never_behind_again():
    shared = Trained([1.0] * 40, [], [])
    assert ahead([shared], [replace(shared, returns=[0.0] * 10 + [2.0] * 30)]) == "25%"
    assert ahead([shared], [replace(shared, returns=[2.0] * 38 + [0.0] * 2)]) == "never"
    assert ahead([shared], [replace(shared, returns=[2.0] * 40)]) == "0%"


def test_a_task_that_is_not_known_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["agreement", "--tasks", "spread7"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown task 'spread7'; known: spread6, battle8m, mappo, growing" in capsys.readouterr().err
