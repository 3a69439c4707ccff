"""What is drawn of a frontier: points by cost and return, by cost and time, frontiers, and returns over env steps."""

import pytest

pytest.importorskip("matplotlib")
from marless.app.cli import frontier_picture
from marless.cost.frontier.contenders import Goal
from marless.cost.frontier.table import Frontier
from tests.unit.cost.frontier.synthetic import preset, seed_run, static


def drawn(monkeypatch, tmp_path, *contenders):
    figures = []
    monkeypatch.setattr(frontier_picture, "write", lambda figure, _: figures.append(figure))
    known = Frontier(
        job="tiny", env_steps=2000, seeds=(0,), slots=64, time="cpu", goal=Goal(value=-20.0), contenders=contenders
    )
    frontier_picture.draw_frontier(known, tmp_path / "x.png", "paper")
    return figures[0].axes


def points(panel) -> list[list[float]]:
    return [pytest.approx(place) for each in panel.collections for place in each.get_offsets().tolist()]


def test_the_panels_have_each_contender_and_the_frontiers(monkeypatch, tmp_path):
    ends, goal, efficiency = drawn(
        monkeypatch,
        tmp_path,
        static(1, seed_run([-30.0, -20.0], s=5.0, machines={"own": (2.0, 0.5)})),
        static(4, seed_run([-20.0, -18.0], s=1.0, paper=3.0)),
        static(9, seed_run([-30.0, None])),
        preset("marless", seed_run([-20.0], s=4.0, paper=5.0)),
    )
    assert points(ends) == [[2.0, -20.0], [6.0, -18.0], [5.0, -20.0]]
    assert points(goal) == [[2.0, 10.0], [3.0, 1.0], [5.0, 4.0], [1.0, 4.0]]
    functions, machines = goal.get_lines()
    assert functions.get_xydata().tolist() == [pytest.approx([2.0, 10.0]), pytest.approx([3.0, 1.0])]
    assert machines.get_xydata().tolist() == [pytest.approx([1.0, 4.0]), pytest.approx([3.0, 1.0])]
    assert [each.get_text() for each in goal.texts] == ["marless"]
    *lines, across = efficiency.get_lines()
    assert [each.get_xydata().tolist() for each in lines] == [
        [[100.0, -30.0], [200.0, -20.0]],
        [[100.0, -20.0], [200.0, -18.0]],
    ]
    assert set(across.get_ydata()) == {-20.0}


def test_a_goal_that_nobody_reaches_is_drawn_all_the_same(monkeypatch, tmp_path):
    _, goal, _ = drawn(monkeypatch, tmp_path, static(1, seed_run([-30.0])))
    assert points(goal) == []
