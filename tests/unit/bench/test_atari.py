"""The benchmarks of Atari's games: stepping, next to two others, and training, next to another one."""

import numpy as np
import pytest
import torch

from bench import atari, atari_training, plain_atari
from bench.atari_training import Trained, kept, row
from bench.kept_rows import KeptRows


def test_all_three_step_and_ratios_are_those_of_the_rates():
    found = atari.compare("Pong", runs=1, cpu_s=0.05)
    ours, python, vector = (
        found[name]["median"] for name in ("marless, env steps/s", "AtariPreprocessing", "AtariVectorEnv")
    )
    assert min(ours, python, vector) > 0
    assert found["ratio to the first"]["median"] == pytest.approx(ours / python, abs=0.01)
    assert found["to the second"]["median"] == pytest.approx(ours / vector, abs=0.01)


def test_training_is_compared_by_rates_and_by_the_games_that_ended_last(tmp_path, monkeypatch):
    def train(points):
        games = ((500, 2, 0.0), (950, 1, points), (1000, 3, points + 4.0))
        return lambda game, env_steps, seed: made.append((game, seed)) or Trained(env_steps, 10.0 / points, games)

    made = []
    monkeypatch.setattr(atari_training, "SYSTEMS", {"marless": train(4.0), "Stable-Baselines3": train(2.0)})
    rows = KeptRows(tmp_path / "runs.jsonl", {})
    runs = {name: [kept(rows, name, "Pong", 1000, seed) for seed in range(2)] for name in atari_training.SYSTEMS}
    found = row("Pong", runs)
    assert found["marless / Stable-Baselines3"]["median"] == 2.0
    assert found["marless, return"]["median"] == (4.0 + 3 * 8.0) / 4
    assert made == [("Pong", 0), ("Pong", 1)] * 2
    again = KeptRows(tmp_path / "runs.jsonl", {})
    assert kept(again, "marless", "Pong", 1000, 1) == runs["marless"][1]
    assert len(made) == 4
    monkeypatch.setattr(atari_training, "JOB", tmp_path / "other.yaml")
    (tmp_path / "other.yaml").write_text("")
    kept(again, "marless", "Pong", 1000, 1)
    kept(again, "Stable-Baselines3", "Pong", 1000, 1)
    assert made[4:] == [("Pong", 1)]  # a run of another job is not this one
    assert Trained(1000, 1.0, ((500, 2, 0.0),)).final is None
    assert runs["marless"][0].curve(4) == [(375.0, 0.0), (875.0, 7.0)]


def test_curves_are_drawn_and_a_wrong_picture_is_refused_before_training(tmp_path, monkeypatch, capsys):
    runs = {"marless": [Trained(1000, 1.0, ((500, 2, 0.0), (900, 1, 3.0)))], "plain script": [Trained(1000, 1.0, ())]}
    atari_training.draw({"Pong": runs, "Qbert": runs}, tmp_path / "new" / "curves.png")
    assert (tmp_path / "new" / "curves.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("sys.argv", ["atari_training", "--plot", "curves.docx"])
    with pytest.raises(SystemExit):
        atari_training.main()
    assert "a picture's name ends with one of" in capsys.readouterr().err


def test_the_plain_script_learns_from_its_round(monkeypatch):
    monkeypatch.setattr(plain_atari, "STEPS", 8)
    monkeypatch.setattr(plain_atari, "MINIBATCH", 32)
    ppo = plain_atari.PlainPPO("Pong", 0)
    before = [each.clone() for each in ppo.net.parameters()]
    ppo.iterate()
    assert all(not torch.equal(a, b) for a, b in zip(before, ppo.net.parameters(), strict=True))
    shown = ppo.images.copy()
    ppo.step(torch.zeros(8, dtype=torch.int64))
    assert ppo.images.dtype == np.uint8
    assert np.array_equal(ppo.images[:, :-1], shown[:, 1:])


def test_the_plain_script_has_advantages_by_hand(monkeypatch):
    monkeypatch.setattr(plain_atari, "STEPS", 2)
    monkeypatch.setattr(plain_atari, "COPIES", 1)
    reward, value = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [1.5], [4.0]])
    going = plain_atari.advantages(reward, value, torch.tensor([[False], [False]]))
    last = 2 + 0.99 * 4 - 1.5
    assert going.flatten().tolist() == pytest.approx([1 + 0.99 * 1.5 - 0.5 + 0.99 * 0.95 * last, last])
    over = plain_atari.advantages(reward, value, torch.tensor([[True], [False]]))
    assert over.flatten().tolist() == pytest.approx([1 - 0.5, last])
