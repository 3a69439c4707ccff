"""What a person sees of a job: how far it is, its summary, its curve."""

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from marless.app.cli import output
from marless.app.cli import progress as progress_module
from marless.app.cli.options import Output
from marless.app.cli.picture import draw_curve
from marless.app.cli.progress import TrainingProgress, fraction_done, summary_table
from marless.app.client import Job, JobState
from marless.core.errors import CorruptError
from marless.jobs import spec
from marless.jobs.sections import StopSpec
from tests.unit.jobs.test_record import EARLIER, RETURNS, WON, record

SPEC = spec.parse({"env": {"name": "mpe/simple_spread"}, "algorithm": "ippo", "stop": {"rounds": 10}}, "spec")


@pytest.mark.parametrize(
    ("stop", "fraction"),
    [
        ({"rounds": 8}, 0.25),  # 2 of 8
        ({"env_steps": 400}, 0.5),  # 200 of 400
        ({"wall_s": 15.0}, 0.1),  # 1.5 of 15 s
        ({"rounds": 8, "env_steps": 400}, 0.5),  # whichever is nearer
        ({"rounds": 1}, 1.0),
        ({"return": -5.0}, 0.0),  # cannot be foreseen
    ],
)
def test_how_far_a_job_is(stop, fraction):
    assert fraction_done(StopSpec(**stop), record(1), trained_s=1.5) == pytest.approx(fraction)


def shown(records, *, terminal: bool, title: str = "job", width: int = 80) -> str:
    out = io.StringIO()
    with TrainingProgress(Console(file=out, force_terminal=terminal, width=width), title, SPEC.stop, "") as progress:
        for each in records:
            progress.show(each)
    return out.getvalue()


def test_a_log_gets_one_whole_line_for_each_evaluation():
    """Rounds of half a second and 100 env steps, with half a second between them."""
    records = [record(0), record(1, evaluation=RETURNS, idle_s=0.5), record(2, idle_s=0.5)]
    line = "round 2 of 10 · 200 env steps · 100/s · greedy return -20.50 · exploring -20.50 · 2 actors, 0 learners"
    assert shown(records, terminal=False).splitlines() == [f"{line} · 0:08 left"]


def test_the_time_left_is_not_told_from_one_round_in_the_middle():
    assert "left" not in shown([record(7, evaluation=RETURNS)], terminal=False)


@pytest.mark.parametrize(
    ("past", "new", "rate"),
    [
        ([], [record(0)], "200/s"),  # the first round, in half a second
        ([], [record(7)], None),  # no telling how many of 800 env steps it sampled
        ([record(6)], [record(7)], "200/s"),  # after a pause of any length
        ([record(6)], [record(7, started_s=5000.0, ended_s=5001.0)], "100/s"),
        ([record(5), record(6, idle_s=0.5)], [record(7)], "133/s"),
    ],
)
def test_a_rate_is_of_the_time_in_which_the_job_ran(past, new, rate):
    out = io.StringIO()
    with TrainingProgress(Console(file=out), "job", None, "") as progress:
        for each in past:
            progress.look_back(each)
        for each in new:
            progress.show(replace(each, evaluation=RETURNS))
    [line] = out.getvalue().splitlines()
    assert line.split(" · ")[2] == (rate or "greedy return -20.50")


def spoken(monkeypatch, lines: int, *, first_s: float = 0.0, **steps) -> list[str]:
    """What is printed without a terminal, where lines come every 50 ms: so many, after the progress was told this."""
    monkeypatch.setattr(progress_module, "EVERY_S", 0.05)
    out = io.StringIO()
    with TrainingProgress(Console(file=out, width=80), "job", SPEC.stop, "starting", first_s=first_s) as progress:
        for verb, argument in steps.items():
            getattr(progress, verb)(argument)
        give_up_s = time.monotonic() + 20
        while out.getvalue().count("\n") < lines and time.monotonic() < give_up_s:
            time.sleep(0.005)
    return [line.rpartition(" · ")[0] for line in out.getvalue().splitlines()[:lines]]


def test_a_log_gets_a_line_at_once_and_then_every_few_seconds(monkeypatch):
    """Red before: nothing was printed before the first round."""
    assert spoken(monkeypatch, 3) == ["starting"] * 3
    assert spoken(monkeypatch, 1, first_s=0.02, doing="starting learners") == ["starting learners"]


def test_a_log_says_what_a_long_round_does_and_else_how_far_the_job_is(monkeypatch):
    figures = "round 2 of 10 · 200 env steps · exploring -20.50 · 2 actors, 0 learners"
    for steps in ({"doing": "starting", "show": record(1)}, {"show": record(1), "doing": "training"}):
        [line] = spoken(monkeypatch, 1, first_s=0.1, **steps)
        assert line.startswith(figures)
    late = spoken(monkeypatch, 1, first_s=0.1, show=record(1), doing="round 3: learners update")
    assert late == ["round 3: learners update"]


def test_the_summary_says_how_precise_the_returns_are():
    out = io.StringIO()
    precision = {"random_return_standard_error": 0.25, "random_return_episodes": 1000}
    Console(file=out, width=60).print(summary_table({"return": -21.0, "random_return": -24.25, **precision}))
    rows = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "random policy -24.25 ± 0.25 (1,000 episodes)" in rows
    assert "greedy return per agent -21.00" in rows


def test_wins_are_shown_where_there_are_any():
    [line] = shown([record(0, evaluation=WON)], terminal=False).splitlines()
    assert "greedy return 7.00 · won 75% · exploring -20.50" in line
    out = io.StringIO()
    Console(file=out, width=60).print(summary_table({"win_rate": 0.75, "random_win_rate": 0.0}))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["greedy", "episodes", "won", "75%"] in rows
    assert ["random", "policy", "won", "0%"] in rows


def test_a_terminal_gets_a_bar():
    assert "round 2" in shown([record(0), record(1)], terminal=True)


@pytest.mark.parametrize("title", ["spread-20261120-143736", "a-comparison-of-spread-" + 70 * "x" + "-seed1"])
def test_at_80_columns_the_bar_shows_return_and_time_left_and_which_job(title):
    bar = shown([record(0), record(1, evaluation=WON, idle_s=0.5)], terminal=True, title=title)
    assert "return 7.00 · 0:08 left · won 75%" in bar
    assert title[:10] in bar and title[-10:] in bar


def test_a_wide_terminal_shows_the_rate_too():
    bar = shown([record(0), record(1, idle_s=0.5)], terminal=True, width=160)
    assert "0:08 left · round 2 of 10 · 200 env steps · 100/s" in bar


def test_the_bar_counts_training_time_from_the_first_round_however_many_there_are():
    progress = TrainingProgress(Console(file=io.StringIO()), "job", StopSpec(wall_s=200.0), "")
    for number in range(100):
        progress.show(record(number, idle_s=0.5 if number else None))
    assert progress._bar.tasks[0].completed == pytest.approx(99.5 / 200)


def test_the_summary_table_has_everything_and_no_none():
    out = io.StringIO()
    summary = {"job": "j", "state": "FAILED", "rounds": 0, "return": None, "random_return": -24.25, "run_dir": "/r/j"}
    Console(file=out, width=60).print(summary_table(summary))
    text = out.getvalue()
    for part in ("job", "FAILED", "random policy", "-24.25", "run folder", "/r/j", "greedy return per agent"):
        assert part in text
    assert "None" not in text
    assert "won" not in text


def test_the_summary_table_says_what_a_job_cost_by_which_accounting():
    out = io.StringIO()
    Console(file=out, width=60).print(summary_table({"cost_usd": 0.0123456, "accounting": "paper"}))
    assert "0.012346 USD (paper)" in out.getvalue()


def test_the_summary_table_tells_training_time_from_the_time_since_submission():
    out = io.StringIO()
    summary = {"wall_s": 12.5, "elapsed_s": 300.25, "env_steps_per_s": 1000.0}
    Console(file=out, width=60).print(summary_table(summary))
    rows = [line.split() for line in out.getvalue().splitlines()]
    assert ["training", "time,", "s", "12.50"] in rows
    assert ["since", "submission,", "s", "300.25"] in rows


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"job": "j", "random": {"mean": -24.0}}))
    return tmp_path


def test_a_curve_is_drawn_even_if_the_last_line_was_cut_short(folder):
    whole = [record(n, evaluation=RETURNS if n % 2 else None).to_json() for n in range(4)]
    (folder / "rounds.jsonl").write_text("\n".join([*whole, whole[0][:50]]))
    target = draw_curve(folder)
    assert target == folder / "curve.png"
    assert target.read_bytes().startswith(b"\x89PNG")


def test_a_curve_has_each_evaluation_at_the_env_steps_of_its_policies(folder, monkeypatch):
    """Round 4 evaluates what round 3 has published, and itself."""
    rounds = [record(0), record(1), record(2), record(3, earlier_evaluation=EARLIER, evaluation=RETURNS)]
    (folder / "rounds.jsonl").write_text("".join(each.to_json() + "\n" for each in rounds))
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_curve(folder)
    _, greedy, *_ = drawn[0].axes[0].get_lines()
    assert greedy.get_xydata().tolist() == [[300, 7.0], [400, -20.5]]


def test_a_log_gets_a_line_for_an_evaluation_of_an_earlier_round():
    line = "round 4 of 10 · 400 env steps · 200/s · greedy return 7.00 · won 75% · exploring -20.50 · 2 actors, "
    [shown_line] = shown([record(2), record(3, earlier_evaluation=EARLIER)], terminal=False).splitlines()
    assert shown_line.startswith(line)


def test_without_records_there_is_no_curve(folder):
    assert draw_curve(folder) is None
    (folder / "rounds.jsonl").touch()
    assert draw_curve(folder) is None
    assert not (folder / "curve.png").exists()


def test_records_that_cannot_be_read_are_named(folder):
    (folder / "rounds.jsonl").write_text("{}\n")
    with pytest.raises(CorruptError, match="line 1"):
        draw_curve(folder)


def test_a_list_says_what_jobs_wait_for(capsys):
    def job(name: str, reason: str, state: JobState = JobState.RUNNING) -> Job:
        return Job(
            job=name, state=state, reason=reason, env="mpe", algorithm="ippo", rounds=0, env_steps=0, resumes=0,
            greedy_return=None, random_return=None, accepted_s=1.0, ended_s=None, run_dir="runs", summary=None,
        )  # fmt: skip

    engine = "waits for actor workers: cannot inspect image workers: no container engine answers; start it"
    jobs = [job("a", engine), job("b", "training"), job("c", engine), job("d", engine, JobState.CANCELLED)]
    output.show_jobs([*jobs, job("e", "waits for its turn: 4 jobs run", JobState.PENDING)], Output.table)
    assert capsys.readouterr().err.splitlines() == [
        f"marless: a, c: {engine}",
        "marless: e: waits for its turn: 4 jobs run",
    ]


def test_what_an_environment_says_does_not_steer_the_terminal(capsys):
    said = "no display\x1b]0;mine\x07\x1b[2J\x9b31m"
    job = Job(
        job="a", state=JobState.FAILED, reason=said, env=said, algorithm=said, rounds=0, env_steps=0, resumes=0,
        greedy_return=None, random_return=None, accepted_s=1.0, ended_s=None, run_dir=said, summary=None,
    )  # fmt: skip
    output.show_job(job, Output.table)
    output.show_jobs([job], Output.table)
    TrainingProgress(Console(width=200), "a", None, "").note(said)
    shown = capsys.readouterr().out
    assert shown.count(r"no display\x1b]0;mine\x07\x1b[2J") == 7  # four of one job, two of the list, one note
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
