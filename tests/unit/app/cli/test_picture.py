"""What is drawn of compared variants: means, ranges, costs that count, the random policy, and profiles."""

import dataclasses

import pytest

pytest.importorskip("matplotlib")
from marless.app.cli import picture
from marless.cost.comparison import table
from tests.unit.cost.comparison.synthetic import spec
from tests.unit.cost.comparison.test_table import run, ways


def lines(panel) -> list[list[float]]:
    return [list(line.get_ydata()) for line in panel.get_lines()]


def test_each_preset_is_a_mean_and_a_range_in_each_panel(tmp_path, monkeypatch):
    runs = []
    for preset, scale in (("vanilla", 4.0), ("marless", 1.0)):
        for seed, greedy in enumerate((-20.0, -22.0)):
            known = run(preset, seed, greedy=greedy)
            costs = {
                "paper": (scale + seed, 2 * scale + seed),
                "serverful": (3 * scale, 4 * scale),
                "billed": (0.0, 0.0),
            }
            line = dataclasses.replace(known.curves, exploring=(None if seed else -25.0, -20.0 - seed), cost_usd=costs)
            runs.append(dataclasses.replace(known, curves=line))
    figures = []
    monkeypatch.setattr(picture, "_save", lambda figure, _: figures.append(figure))
    picture.draw_comparison(table.compared("tiny", 64, ways("vanilla,marless"), runs), tmp_path / "x.png")
    learners, actors, returns, cost = figures[0].axes
    assert lines(learners) == [[4.0, 4.0]] * 2
    assert lines(actors) == [[8.0, 8.0]] * 2
    assert lines(returns) == [[-20.5], [-20.5], [-30.0, -30.0]]  # a round without a return of every seed is left out
    assert lines(cost) == [[12.0, 16.0], [1.5, 2.5]]
    ranges = [
        (band.get_datalim(cost.transData).ymin, band.get_datalim(cost.transData).ymax) for band in cost.collections
    ]
    assert ranges == [(12.0, 16.0), (1.0, 3.0)]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        "vanilla (serverful, modelled)",
        "marless (paper accounting)",
    ]


def test_each_environment_has_its_own_random_policy(tmp_path, monkeypatch):
    runs = []
    for name, random in (("vanilla", -30.0), ("marless", -50.0)):
        known = run(name, 0, greedy=-2.0, random=random)
        costs = dict.fromkeys(("paper", "serverful"), (1.0, 2.0))
        runs.append(dataclasses.replace(known, curves=dataclasses.replace(known.curves, cost_usd=costs)))
    one, other = ways("vanilla,marless")
    three = dataclasses.replace(other, spec=spec(env={"name": "mpe/simple_spread", "options": {"agents": 3}}))
    figures = []
    monkeypatch.setattr(picture, "_save", lambda figure, _: figures.append(figure))
    comparison = table.compared("tiny", 64, (one, three), runs)
    picture.draw_comparison(comparison, tmp_path / "x.png")
    returns = figures[0].axes[2]
    assert lines(returns)[-2:] == [[-30.0, -30.0], [-50.0, -50.0]]
    assert [text.get_text() for text in returns.get_legend().get_texts()] == [
        "random policy, vanilla", "random policy, marless",
    ]  # fmt: skip


def test_a_profile_is_a_step_down_at_each_result(tmp_path, monkeypatch):
    runs = [run("vanilla", 0, greedy=-2.0), run("vanilla", 1, greedy=-1.0)]
    runs += [run("marless", 0, greedy=-2.0), run("marless", 1, greedy=0.0)]
    figures = []
    monkeypatch.setattr(picture, "write", lambda figure, _: figures.append(figure))
    picture.draw_profiles(table.compared("tiny", 64, ways("vanilla,marless"), runs), tmp_path / "x.png")
    [panel] = figures[0].axes
    vanilla, marless = panel.get_lines()
    assert list(vanilla.get_xdata()) == [-2.1, -2.0, -1.0, 0.0, 0.1]
    assert (list(vanilla.get_ydata()), list(marless.get_ydata())) == ([1, 1, 0.5, 0, 0], [1, 1, 0.5, 0.5, 0])
    assert vanilla.get_drawstyle() == "steps-pre"  # up to and with its own result, a run counts
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["vanilla", "marless"]


def test_sides_that_compete_have_a_panel_each(tmp_path, monkeypatch):
    runs = [run(name, 0, greedy=0.0, sides={"hunter": 1.0, "prey": 2.0}) for name in ("vanilla", "marless")]
    figures = []
    monkeypatch.setattr(picture, "write", lambda figure, _: figures.append(figure))
    picture.draw_profiles(table.compared("tiny", 64, ways("vanilla,marless"), runs), tmp_path / "x.png")
    assert [panel.get_xlabel() for panel in figures[0].axes] == ["hunter against chance, τ", "prey against chance, τ"]
