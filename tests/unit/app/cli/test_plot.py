"""`marless plot`: curves of one or several jobs in a picture; and which of a folder and a job a name is taken for."""

import dataclasses
import json
import shutil

import pytest
import yaml

pytest.importorskip("matplotlib")
from marless import load_policy
from marless.app.cli import picture
from marless.jobs.record import Evaluation
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.app.cli.test_explain import records
from tests.unit.cost.comparison.synthetic import ROUND_S, returns, spec, write


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    for name in ("one", "two"):
        write(tmp_path / "runs" / name, spec(), records())
        status = tmp_path / "runs" / name / "job.json"
        status.write_text(json.dumps(json.loads(status.read_text()) | {"job": name}))
    return tmp_path / "runs"


def test_one_job_is_drawn_under_its_own_name(runs, marless, tmp_path):
    assert marless("plot", "one") == (0, "one.png\n", "")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    assert marless("plot", runs / "one", "--to", "new/a.svg")[1] == "new/a.svg\n"
    assert "<svg" in (tmp_path / "new/a.svg").read_text()


@pytest.mark.parametrize(
    ("over", "places"),
    [("rounds", [1, 2, 3, 4, 5, 6]), ("env-steps", [record.env_steps for record in records()]), ("seconds", None)],
)
def test_several_jobs_are_curves_of_one_picture(runs, marless, monkeypatch, over, places):
    figures = []
    monkeypatch.setattr(picture, "_write", lambda figure, _: figures.append(figure))
    assert marless("plot", "one", "two", "one", "--over", over)[:2] == (0, "curves.png\n")
    [panel] = figures[0].axes
    exploring, greedy, again, _, *chance = panel.get_lines()
    assert list(exploring.get_ydata()) == list(again.get_ydata()) == [-20.0, -19.0, -18.0, -17.0, -16.0, -15.0]
    assert list(greedy.get_ydata()) == [-15.0] and len(chance) == 1
    assert places is None or list(exploring.get_xdata()) == places
    assert list(exploring.get_xdata()) == sorted(exploring.get_xdata())
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["one", "two", "random policy"]


@pytest.mark.parametrize(
    ("over", "places"), [("rounds", [2, 6]), ("env-steps", [200, 600]), ("seconds", [2 * ROUND_S, 6 * ROUND_S])]
)
def test_an_evaluation_is_drawn_where_its_policies_were_published(runs, marless, monkeypatch, over, places):
    """Round 3 evaluates the policies of round 2; each round takes ten seconds."""
    figures, rounds = [], records()
    early = Evaluation(rounds=2, env_steps=200, returns=returns(-17.5))
    rounds[2] = dataclasses.replace(rounds[2], earlier_evaluation=early)
    (runs / "one/rounds.jsonl").write_text("".join(each.to_json() + "\n" for each in rounds))
    monkeypatch.setattr(picture, "_write", lambda figure, _: figures.append(figure))
    assert marless("plot", "one", "two", "--over", over)[0] == 0
    _, greedy, *_ = figures[0].axes[0].get_lines()
    assert (list(greedy.get_ydata()), list(greedy.get_xdata())) == ([-17.5, -15.0], places)


def test_a_job_of_a_coordinator_is_drawn_too(runs, marless, tmp_path, monkeypatch):
    with ScriptedCoordinator(tmp_path) as coordinator:
        files = {path.name: path.read_bytes() for path in (runs / "one").iterdir() if path.is_file()}
        coordinator.add("there", files=files)
        assert marless("plot", "there", "--coordinator", coordinator.address)[:2] == (0, "one.png\n")


@pytest.mark.parametrize(
    ("verb", "option", "file", "message"),
    [
        ("plot", "--to", "x.gif", "x.gif: a picture's name ends with one of .png, .svg, .pdf"),
        ("explain", "--picture", "x.jpg", "x.jpg: a picture's name ends with one of"),
        ("evaluate", "--render", "x.mp4", "x.mp4: a film is an animated GIF"),
    ],
)
def test_a_suffix_that_cannot_be_written_is_refused_before_any_work(runs, marless, verb, option, file, message):
    code, out, err = marless(verb, "there-is-no-such-job", option, file)
    assert (code, out) == (2, "") and message in err


def test_a_job_without_a_round_is_named(runs, marless):
    (runs / "two/rounds.jsonl").write_text("")
    code, _, err = marless("plot", "one", "two")
    assert (code, err) == (2, "marless: two: no round has been recorded yet: there is nothing to draw\n")


# A folder here that has the name of a job.


@pytest.mark.parametrize("verb", ["cost", "explain", "simulate", "plot"])
def test_a_folder_that_shadows_a_job_is_said(runs, marless, tmp_path, verb):
    assert "note" not in marless(verb, "one")[2]
    shutil.copytree(runs / "one", tmp_path / "one")
    note = (
        "marless: note: one is read from ./one, not from the job of that id; `runs/one` names the job, and `./one` "
        "what is here\n"
    )
    assert note in marless(verb, "one")[2]
    for clear in ("runs/one", "./one"):
        assert "note" not in marless(verb, clear)[2]


def test_a_folder_that_is_no_run_shadows_nothing(runs, marless, tmp_path):
    (tmp_path / "one").mkdir()
    assert "note" not in marless("cost", "one")[2]


def test_a_folder_that_may_shadow_a_coordinators_job_is_said(runs, marless, tmp_path):
    shutil.copytree(runs / "one", tmp_path / "one")
    coordinator = ("--coordinator", f"unix:{tmp_path}/none.sock", "--runs", "elsewhere")
    assert "not from a job of the coordinator" in marless("cost", "one", *coordinator)[2]
    assert "note" not in marless("cost", "./one", *coordinator)[2]


def test_a_policy_that_shadows_a_jobs_is_said(runs, marless, tmp_path):
    from marless.learning.envs.base import Discrete
    from tests.unit.learning.policies.saved import save, state

    policies = {"agent": state(12, Discrete(5), seed=0)}, {"agent": ("agent_0", "agent_1")}
    for folder in (runs / "team", tmp_path / "team"):
        save(folder, *policies)
    code, out, err = marless("export", "team", "--to", "one.policy")
    assert (code, out) == (0, "one.policy\n") and "note: team is read from ./team" in err
    with pytest.warns(UserWarning, match="`runs/team` names the job"):
        load_policy("team")


# Every format that the help offers.


@pytest.mark.parametrize("argv", [("cost", "one"), ("explain", "one"), ("explain", "one", "--round", "1e0"),
                                  ("simulate", "one"), ("doctor",)])  # fmt: skip
@pytest.mark.parametrize("output", ["json", "jsonl", "yaml", "name"])
def test_every_format_is_one_or_is_refused(runs, marless, argv, output):
    code, out, err = marless(*argv, "-o", output)
    if code == 2:
        assert (argv[-1], output, out) == ("1e0", "jsonl", "") and "-o table, json or yaml" in err
        return
    reads = {"json": json.loads, "yaml": lambda text: list(yaml.safe_load_all(text)), "name": str.split}
    assert reads.get(output, lambda text: [json.loads(line) for line in text.splitlines()])(out)


@pytest.mark.parametrize("output", ["json", "jsonl", "yaml", "name"])
def test_train_prints_its_summary_in_every_format(marless, monkeypatch, tmp_path, output):
    from marless.app.cli import local
    from marless.app.cli.train import JobOutcome
    from marless.app.client import Job, JobState

    job = Job(
        job="one", state=JobState.SUCCEEDED, reason="", env="", algorithm="", rounds=3, env_steps=300,
        greedy_return=None, random_return=None, accepted_s=0.0, ended_s=1.0, resumes=0, run_dir=str(tmp_path),
        summary={"job": "one", "rounds": 3},
    )  # fmt: skip
    done = JobOutcome(job, interrupted=False)
    monkeypatch.setattr(local, "_begin", lambda *_: done)
    code, out, _ = marless("train", "job.yaml", "-o", output)
    read = {"json": json.loads, "jsonl": json.loads, "yaml": yaml.safe_load, "name": str.strip}[output]
    assert code == 0 and len(out.splitlines()) == (1 if output in ("jsonl", "name") else len(out.splitlines()))
    assert read(out) == ("one" if output == "name" else {"job": "one", "rounds": 3})
