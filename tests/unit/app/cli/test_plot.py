"""`marless plot`: curves of one or several jobs in a picture; and which of a folder and a job a name is taken for."""

import dataclasses
import json
import shutil
import sys

import pytest
import yaml

pytest.importorskip("matplotlib")
from marless import load_policy
from marless.app.cli import picture
from marless.jobs.record import Evaluation
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.app.cli.test_explain import records
from tests.unit.cost.comparison.synthetic import ROUND_S, record, returns, spec, write


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


@pytest.fixture
def figures(monkeypatch) -> list:
    """What would have been written."""
    drawn: list = []
    monkeypatch.setattr(picture, "write", lambda figure, _: drawn.append(figure))
    return drawn


def legend(panel) -> list[str]:
    return [text.get_text() for text in panel.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("x", "places"),
    [("rounds", [1, 2, 3, 4, 5, 6]), ("env-steps", [record.env_steps for record in records()]), ("seconds", None),
     ("usd", None)],
)  # fmt: skip
def test_several_jobs_are_curves_of_one_picture(runs, marless, figures, x, places):
    """Each has a single evaluation, which is no curve."""
    assert marless("plot", "one", "two", "one", "runs/one", "--x", x, "--group", "job") == (0, "curves.png\n", "")
    [panel] = figures[0].axes
    one, two, chance = panel.get_lines()
    assert list(one.get_ydata()) == list(two.get_ydata()) == [-20.0, -19.0, -18.0, -17.0, -16.0, -15.0]
    assert list(chance.get_ydata()) == [-30.0, -30.0]
    assert places is None or list(one.get_xdata()) == places
    assert list(one.get_xdata()) == sorted(one.get_xdata())
    assert legend(panel) == ["one", "two", "random policy"]
    assert panel.get_ylabel() == "return per agent, while exploring"


@pytest.mark.parametrize(
    ("x", "places"), [("rounds", [2, 6]), ("env-steps", [200, 600]), ("seconds", [2 * ROUND_S, 6 * ROUND_S])]
)
def test_an_evaluation_is_drawn_where_its_policies_were_published(runs, marless, figures, x, places):
    """Round 3 evaluates the policies of round 2; each round takes ten seconds."""
    rounds = records()
    early = Evaluation(rounds=2, env_steps=200, returns=returns(-17.5))
    rounds[2] = dataclasses.replace(rounds[2], earlier_evaluation=early)
    (runs / "one/rounds.jsonl").write_text("".join(each.to_json() + "\n" for each in rounds))
    assert marless("plot", "one", "two", "--x", x, "--group", "job")[0] == 0
    greedy, *_ = figures[0].axes[0].get_lines()
    assert (list(greedy.get_ydata()), list(greedy.get_xdata())) == ([-17.5, -15.0], places)
    assert legend(figures[0].axes[0]) == ["one", "two, exploring", "random policy"]
    assert marless("plot", "one", "--x", x, "--returns", "exploring")[0] == 0
    assert len(figures[1].axes[0].get_lines()[0].get_ydata()) == 6


@pytest.fixture
def seeds(tmp_path, monkeypatch):
    """A sweep's folder: two algorithms with two seeds each; the second seed of each has a round less."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    for algorithm, better in (("ippo", 0.0), ("vdn", 4.0)):
        for seed in (0, 1):
            rounds = [record(n, mean=-50.0, greedy=-20.0 + better + 2 * seed + n) for n in range(4 - seed)]
            job = spec(seed=seed, algorithm={"name": algorithm})
            write(tmp_path / "sweep" / f"spread-{algorithm}-seed{seed}", job, rounds, random=-30.0 - seed)
    return tmp_path


def test_seeds_are_a_line_with_a_band(seeds, marless, figures):
    code, out, err = marless("plot", "sweep")
    assert (code, out) == (0, "curves.png\n")
    assert err == "marless: lines: mean of the seeds; bands: 95 % confidence interval\n"
    [panel] = figures[0].axes
    ippo, vdn, chance = panel.get_lines()
    assert list(ippo.get_xdata()) == [100, 200, 300]  # as long as the shortest
    assert list(ippo.get_ydata()) == [-19.0, -18.0, -17.0]
    assert list(vdn.get_ydata()) == [-15.0, -14.0, -13.0]
    assert list(chance.get_ydata()) == [-30.5, -30.5]
    band = panel.collections[0].get_datalim(panel.transData)
    assert (band.ymin, band.ymax) == pytest.approx((-19 - 12.7062, -17 + 12.7062), abs=1e-3)
    assert legend(panel) == ["ippo (2 seeds)", "vdn (2 seeds)", "random policy"]


def test_what_a_paper_wants_to_say_otherwise(seeds, marless, figures):
    options = ("--band", "range", "--center", "median", "--smooth", 2, "--title", "Spread", "--y-label", "score")
    said = marless("plot", "sweep", *options, "--label", "vdn=VDN (ours)", "--size", "4x3")[2]
    assert said == "marless: lines: median of the seeds; bands: range\n"
    [panel] = figures[0].axes
    assert list(panel.get_lines()[0].get_ydata()) == [-19.0, -18.5, -17.5]
    assert (panel.get_title(), panel.get_ylabel()) == ("Spread", "score")
    assert legend(panel)[:2] == ["ippo (2 seeds)", "VDN (ours) (2 seeds)"]
    assert figures[0].get_size_inches().tolist() == [4.0, 3.0]
    marless("plot", "sweep", "--band", "none", "--label", "A", "--label", "B")
    assert legend(figures[1].axes[0])[:2] == ["A (2 seeds)", "B (2 seeds)"]
    assert not figures[1].axes[0].collections


def test_groups_are_chosen(seeds, marless, figures):
    marless("plot", "sweep", "--group", "id")
    assert legend(figures[0].axes[0])[:2] == ["spread-ippo (2 seeds)", "spread-vdn (2 seeds)"]
    marless("plot", "sweep", "--group", "job")
    assert len(figures[1].axes[0].get_lines()) == 5
    err = marless("plot", "sweep", "--group", "env.name")[2]
    assert legend(figures[2].axes[0])[0] == "mpe/simple_spread (4 seeds)"
    assert "note: mpe/simple_spread has several runs of seed 0, 1, which are not independent; see --group" in err
    assert "note: mpe/simple_spread joins jobs that differ in algorithm.name, " in err
    assert "more, not in the seed alone; see --group" in err


def test_points_are_written_also_without_matplotlib(seeds, marless, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = marless("plot", "sweep", "--csv", "data/curves.csv", "--band", "range")
    assert (code, out) == (0, "data/curves.csv\n")
    assert "not drawn: pictures need matplotlib" in err
    header, *rows = (seeds / "data/curves.csv").read_text().splitlines()
    assert header == "group,run,seed,x,env_steps,value,center,low,high"
    assert rows[0] == "ippo,spread-ippo-seed0,0,100,100,-20.0,,,"
    assert rows[7] == "ippo,,,100,100,,-19.0,-20.0,-18.0"
    assert len(rows) == 2 * (4 + 3 + 3)
    code, out, err = marless("plot", "sweep", "--csv", "x.csv", "--to", "x.png")
    assert (code, out) == (1, "") and "pictures need matplotlib" in err


def test_the_folder_of_a_comparison_and_unfinished_runs(seeds, marless, figures):
    (seeds / "runs/compared").mkdir(parents=True)
    shutil.move(seeds / "sweep", seeds / "runs/compared/runs")
    write(seeds / "runs/compared/runs/begun", spec(), [], state="RUNNING")  # nothing to draw yet
    status = seeds / "runs/compared/runs/spread-vdn-seed1/job.json"
    status.write_text(status.read_text().replace("SUCCEEDED", "RUNNING"))
    code, _, err = marless("plot", "compared")
    assert code == 0
    assert "note: spread-vdn-seed1 has not ended: the line of vdn ends with its shortest run" in err
    assert legend(figures[0].axes[0])[:2] == ["ippo (2 seeds)", "vdn (2 seeds)"]


def test_a_folder_without_a_round_says_so(seeds, marless):
    shutil.rmtree(seeds / "sweep")
    write(seeds / "sweep/begun", spec(), [], state="RUNNING")
    assert marless("plot", "sweep")[::2] == (
        2, "marless: sweep: no round has been recorded yet: there is nothing to draw\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--group", "algorithm.nmae"), "--group: no job has a field 'algorithm.nmae'; did you mean algorithm.name?"),
        (("--size", "8"), "--size '8': write width and height in inches, 1 to 100, as in 8x4.5"),
        (("--size", "0x4"), "--size '0x4'"),
        (("--x", "usd", "--accounting", "biled"), "--accounting: unknown accounting 'biled'; did you mean 'billed'?"),
        (("--y", "win-rate"), "spread-ippo-seed0: mpe/simple_spread does not report wins; omit --y win-rate"),
        (("--label", "ipo=IPPO"), "a TEXT for each of the 2 lines; they are called: ippo, vdn"),
        (("--label", "ippo=A", "--label", "vdn=A"), "--label: several lines would be called 'A'"),
        (("--label", "ippo=vdn"), "--label: several lines would be called 'vdn'"),
        (("--label", "ippo=_A"), "--label: '_A' is no text of a legend; begin with a character other than _"),
        (("--csv", "/proc/no/a.csv"), "/proc/no/a.csv: cannot be written"),
        (("--csv", "./a.png", "--to", "a.png"), "--csv a.png is the file of the picture, too; choose another"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(seeds, marless, figures, arguments, said):
    code, out, err = marless("plot", "sweep", *arguments)
    assert code != 0
    assert (out, figures) == ("", [])
    assert said in err


@pytest.mark.parametrize("option", [("--title",), ("--y-label",), ("--label", "B", "--label")])
def test_a_formula_that_cannot_be_drawn_is_a_sentence(seeds, marless, option):
    code, out, err = marless("plot", "sweep", *option, "$a_{$")
    assert (code, out) == (2, "")
    assert "a title or label has a formula, between two $, that matplotlib cannot draw" in err
    assert marless("plot", "sweep", *option, r"$\gamma$")[:2] == (0, "curves.png\n")


def test_random_policies_are_told_apart(seeds, marless, figures):
    write(seeds / "tag", spec(env={"name": "mpe/simple_tag"}), records())
    assert marless("plot", "tag", "sweep")[0] == 0
    assert legend(figures[0].axes[0])[-2:] == ["random policy, mpe/simple_tag", "random policy, mpe/simple_spread"]
    assert len({line.get_linestyle() for line in figures[0].axes[0].get_lines()[-2:]}) == 2


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
