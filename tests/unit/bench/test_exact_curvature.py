"""What `bench.exact_curvature` runs, and its table."""

import itertools
from argparse import Namespace
from pathlib import Path

import pytest

from bench.exact_curvature import HELD, command, main, rows, spanned
from marless.jobs import presets, spec
from marless.jobs.job import prepare


@pytest.mark.parametrize("held", HELD, ids=lambda held: held.name)
def test_every_comparison_is_of_a_task_and_of_a_preset_that_reads_all_samples(held, tmp_path):
    words = command(held, Namespace(runs=tmp_path, seeds=5))
    chosen = presets.preset(words[words.index("--presets") + 1])
    settings = [value for name, value in itertools.pairwise(words) if name == "--set"]
    settings = [each for each in settings if not each.startswith("env.name=growing")]  # only a benchmark finds it
    job = chosen.applied(spec.load(Path(words[words.index("compare") + 1]), settings))
    a_round = job.actors.count * job.actors.envs * job.actors.steps
    assert (job.scaling.name, job.actors.count) == ("marless", 16)
    sharing = 1 if held.preset.endswith("apart") else len(prepare(job).spaces.agents)
    assert job.curvature.samples >= a_round * sharing
    assert (job.stop.rounds, job.stop.env_steps) == (held.rounds, None)


def test_a_started_comparison_goes_on(tmp_path):
    (tmp_path / HELD[0].name).mkdir()
    assert command(HELD[0], Namespace(runs=tmp_path, seeds=5))[-1] == "--resume"


def test_a_line_for_each_control():
    found = {"mean": 1.0, "low": 0.5, "high": 1.5}
    control = {"runs": [{"actors": 3.0}, {"actors": 4.0}], "returns": {"greedy return": found}, "cost_ratio": found}
    verdict = {"controls": {"shuffled": {**control, "outcome": "learns more"}}}
    (row,) = rows(HELD[0], {"verdicts": {"exact-shared": verdict}})
    assert row == {
        "task": "spread6",
        "preset": "exact-shared",
        "control": "shuffled",
        "actors": "3.5",
        "greedy return, preset − control": "1.00 (0.50 to 1.50)",
        "cost, preset / control": "1.00 (0.50 to 1.50)",
        "outcome": "learns more",
    }
    assert spanned({"mean": 2.0, "low": None, "high": None}) == "2.00"


def test_an_unknown_comparison_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["exact_curvature", "--held", "spread7"])
    with pytest.raises(SystemExit):
        main()
    assert "unknown comparison 'spread7'; known: spread6-exact-shared" in capsys.readouterr().err
