"""`marless compare`: runs made once and not again, whatever interrupts them; its mistakes, table, document, picture."""

import asyncio
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from marless.app.cli import picture, train
from marless.app.cli.train import JobOutcome
from marless.app.client import Job, JobState
from marless.jobs.spec import JobSpec
from tests.scripted_coordinator import ScriptedCoordinator
from tests.unit.cost.comparison.synthetic import JOB, record, write

THREE = ("--presets", "vanilla,marless-minus,no-sharing", "--seeds", 2, "--no-controls")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


class Machine:
    """Stands in for this machine: runs take no time and are counted; some of them are interrupted or fail."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.resumed: list[str] = []
        self.interrupt: set[str] = set()
        self.fail: set[str] = set()
        self.specs: dict[str, JobSpec] = {}
        self.metrics: dict[str, dict[str, float]] = {}
        self.groups: tuple[tuple[str, ...], ...] = (("agent_0",), ("agent_1",))

    def train(self, spec, *, job_id, runs, show):
        self.begun.append(job_id)
        self.specs[job_id] = spec
        fewer = spec.scaling.name == "marless"
        records = [
            replace(
                record(
                    number,
                    job=job_id,
                    actors=self._actors(spec, number),
                    mean=-25.0 + number,
                    greedy=-15.0 + spec.seed + 0.01 * fewer if number == spec.stop.rounds - 1 else None,
                    groups=self.groups,
                ),
                metrics=self.metrics,
            )
            for number in range(spec.stop.rounds)
        ]
        state = "CANCELLED" if job_id in self.interrupt else "FAILED" if job_id in self.fail else "SUCCEEDED"
        folder = write(runs / job_id, spec, records[: len(records) if state == "SUCCEEDED" else 1], state=state)
        self.rest = records[1:]
        return self._outcome(folder, state)

    def _actors(self, spec, number: int) -> int:
        """`marless` takes all actors in the first round, and one in each further round."""
        if spec.scaling.name == "given":
            return spec.scaling.at(number)
        return 1 if spec.scaling.name == "marless" and number else spec.actors.count

    def resume(self, job_id, *, runs, stop, show):
        self.resumed.append(job_id)
        folder = runs / job_id
        with (folder / "rounds.jsonl").open("a") as file:
            file.writelines(each.to_json() + "\n" for each in self.rest)
        status = json.loads((folder / "job.json").read_text())
        (folder / "job.json").write_text(json.dumps(status | {"state": "SUCCEEDED"}))
        return self._outcome(folder, "SUCCEEDED")

    def _outcome(self, folder: Path, state: str) -> JobOutcome:
        job = Job(
            job=folder.name, state=JobState(state), reason="out of luck", env="", algorithm="", rounds=3, env_steps=300,
            greedy_return=None, random_return=None, accepted_s=0.0, ended_s=1.0, resumes=0, run_dir=str(folder),
            summary=None,
        )  # fmt: skip
        return JobOutcome(job, interrupted=state == "CANCELLED")


@pytest.fixture
def machine(monkeypatch):
    stand_in = Machine()
    monkeypatch.setattr(train, "train", stand_in.train)
    monkeypatch.setattr(train, "resume", stand_in.resume)
    return stand_in


@pytest.fixture
def unseen(monkeypatch):
    """Leave the picture out, which takes longer than all else."""
    monkeypatch.setattr(picture, "draw_comparison", lambda *_: None)
    monkeypatch.setattr(picture, "draw_profiles", lambda *_: None)


def test_every_run_is_made_once_and_set_side_by_side(place, machine, unseen, marless):
    code, out, err = marless("compare", "job.yaml", *THREE)
    assert code == 0
    assert machine.begun == [
        "tiny-vanilla-seed0",
        "tiny-no-sharing-seed0",
        "tiny-no-sharing-seed1",
        "tiny-vanilla-seed1",
    ]
    assert "run 1 of 4: tiny-vanilla-seed0 for vanilla, marless-minus\n" in err
    header, *rows = out.splitlines()
    assert header.split() == ["vanilla", "marless-minus", "no-sharing"]
    by_name = {row.partition("  ")[0]: row for row in rows}
    # 14.5 ± 12.7062 · (1/√2)/√2
    assert by_name["greedy return per agent, at the end"].split("  ")[-1].strip() == "-14.49 ± 6.35"
    assert by_name["actors per round"].split()[-3:] == ["2.00", "±", "0.00"]
    assert "- vanilla and marless-minus train identically" in out
    assert "- no-sharing − vanilla: greedy return +0.01 [+0.01, +0.01]: equal within" in out


CONTROLS = ("--presets", "marless-minus,marless-lean", "--seeds", 2, "--set", "env.options.agents=4")
PAIRS = (("agent_0", "agent_1"), ("agent_2", "agent_3"))
MEASURED = {"agent_0": {"curvature": 0.5}, "agent_1": {"curvature": 77.0}, "agent_2": {"curvature": 2.0}}


@pytest.fixture
def sharing(machine):
    """The machine, whose runs share two policies, and measure the curvature of these and of one that nobody uses."""
    machine.metrics, machine.groups = MEASURED, PAIRS
    return machine


def test_a_variant_that_decides_has_controls(place, sharing, unseen, marless):
    machine = sharing
    code, out, err = marless("compare", "job.yaml", *CONTROLS)
    assert code == 0
    assert "marless: 4 runs, then up to 8 of controls of marless-lean; --no-controls leaves these out\n" in err
    assert err.index("then up to 8") < err.index("run 1 of 4")
    kinds = Counter(each.split("-")[3] for each in machine.begun[4:])
    assert kinds == {"mean2": 2, "shuffled": 2, "final": 2, "placebo": 2}
    assert len(set(machine.begun)) == 12
    folder = place / "runs/compare-tiny"
    assert {each.name for each in (folder / "controls").iterdir()} == set(machine.begun[4:])
    specs = {(each.split("-")[3], each[-1]): machine.specs[each] for each in machine.begun[4:]}
    # 4, 1 and 1 actors: 2 on average
    assert (specs["mean2", "0"].scaling.name, specs["mean2", "0"].actors.count) == ("fixed", 2)
    assert specs["mean2", "0"].sharing.name == "marless"
    assert sorted(specs["shuffled", "1"].scaling.actors) == [1, 1, 4]
    assert specs["final", "0"].sharing.groups == {pair[0]: pair for pair in PAIRS}
    assert specs["final", "0"].scaling.name == "marless"
    # the median of the logarithms of 0.5 and 2 is 0, their deviation ln 2
    assert specs["placebo", "0"].scaling.placebo.model_dump() == {"median": 1.0, "deviation": 0.6931}
    assert "control run 1 of 8: tiny-marless-lean-mean2-seed0 for marless-lean~mean" in err
    assert "- marless-lean beside marless-lean~mean (2 actors in every round): costs " in out
    columns = [line.split() for line in out.splitlines() if "~mean" in line]
    assert columns[0] == [
        "marless-lean",
        *(f"marless-lean~{kind}" for kind in ("mean", "shuffled", "final", "placebo")),
    ]


def test_what_is_finished_of_the_controls_is_not_run_again(place, sharing, unseen, marless):
    table = marless("compare", "job.yaml", *CONTROLS)[1]
    first, sharing.begun[:] = list(sharing.begun), []
    code, again, err = marless("compare", "job.yaml", *CONTROLS, "--resume")
    assert (code, again, sharing.begun) == (0, table, [])
    assert "4 of 4 runs exist already" in err and "8 of 8 control runs exist already" in err
    marless("compare", "job.yaml", *CONTROLS, "--presets", "marless-lean", "--resume")  # alone, it has the same ones
    assert sharing.begun == []
    marless("compare", "job.yaml", *CONTROLS, "--seeds", 3, "--resume")
    assert [each for each in sharing.begun if each in first] == []
    assert {each[-1] for each in sharing.begun} == {"2"}


def test_a_control_that_is_interrupted_goes_on(place, sharing, unseen, marless):
    undisturbed = marless("compare", "job.yaml", *CONTROLS, "--out", "calm")[1]
    sharing.begun.clear()
    sharing.interrupt = {"tiny-marless-lean-mean2-seed1"}
    code, out, err = marless("compare", "job.yaml", *CONTROLS)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        "marless: interrupted in run tiny-marless-lean-mean2-seed1; the same command with --resume --out "
        "runs/compare-tiny continues, and --no-controls leaves controls out"
    )
    sharing.interrupt.clear()
    assert marless("compare", "job.yaml", *CONTROLS, "--resume")[:2] == (0, undisturbed)
    assert sharing.resumed == ["tiny-marless-lean-mean2-seed1"]


def test_a_control_that_cannot_be_had_is_left_out_with_a_sentence(place, machine, unseen, marless):
    # nothing was measured, and the groups do not hold all of the four agents
    code, out, err = marless("compare", "job.yaml", *CONTROLS)
    assert code == 0
    assert "marless: note: marless-lean~placebo is left out: its runs measured no curvature\n" in err
    assert "note: marless-lean~final is left out: " in err
    assert "marless-lean~shuffled" in out and "~placebo" not in out and "~final" not in out


def test_variants_that_decide_nothing_have_no_controls(place, machine, unseen, marless):
    code, _, err = marless("compare", "job.yaml", "--presets", "vanilla,marless-minus", "--seeds", 1)
    assert (code, machine.begun) == (0, ["tiny-vanilla-seed0"])
    assert "control" not in err


def test_programs_get_the_verdicts(place, sharing, unseen, marless):
    found = json.loads(marless("compare", "job.yaml", *CONTROLS, "-o", "json")[1])
    assert list(found["variants"]) == ["marless-minus", "marless-lean"]
    verdict = found["verdicts"]["marless-lean"]
    assert verdict["reference"] == "marless-minus"
    assert list(verdict["controls"]) == ["mean", "shuffled", "final", "placebo"]
    assert verdict["controls"]["mean"]["about"] == "2 actors in every round"
    assert [each["run"] for each in verdict["controls"]["mean"]["runs"]] == [
        "tiny-marless-lean-mean2-seed0",
        "tiny-marless-lean-mean2-seed1",
    ]
    assert found["statements"][-1] != verdict["sentences"][-1] in found["statements"]


ALGORITHMS = ("--sweep", "algorithm.name=ippo,vdn", "--seeds", 2)


def test_algorithms_are_compared_under_the_names_that_the_user_gave(place, machine, unseen, marless):
    code, out, err = marless("compare", "job.yaml", *ALGORITHMS, "--set", "algorithm={name: ippo, gamma: 0.9}")
    assert code == 0
    assert machine.begun == ["tiny-ippo-seed0", "tiny-vdn-seed0", "tiny-vdn-seed1", "tiny-ippo-seed1"]
    assert "run 2 of 4: tiny-vdn-seed0 for algorithm.name=vdn\n" in err
    header, *rows = out.splitlines()
    assert header.split() == ["algorithm.name=ippo", "algorithm.name=vdn"]
    by_name = {row.partition("  ")[0]: row.split("  ")[-1].strip() for row in rows}
    assert by_name["probability of improvement over algorithm.name=ippo"] == "0.50 [0.00, 1.00]"
    assert by_name["that / algorithm.name=ippo's"].startswith("1.00 [")
    assert not any("as charged" in row for row in rows)  # that is what counts
    assert "- algorithm.name=vdn − algorithm.name=ippo: greedy return +0.00 [+0.00, +0.00]: equal" in out
    found = json.loads((place / "runs/compare-tiny/comparison.json").read_text())
    assert list(found["variants"]) == ["algorithm.name=ippo", "algorithm.name=vdn"]
    vdn = found["variants"]["algorithm.name=vdn"]
    assert vdn["probability_of_improvement_over_algorithm.name=ippo"]["greedy return"]["mean"] == 0.5
    assert vdn["profile"]["greedy return"]["fraction"] == [1.0, 0.5]
    assert found["command"].startswith("marless compare job.yaml --sweep algorithm.name=ippo,vdn --seeds 2")
    spec = yaml.safe_load((place / "runs/compare-tiny/runs/tiny-vdn-seed1/spec.yaml").read_text())
    assert (spec["algorithm"]["name"], spec["algorithm"]["gamma"], spec["seed"]) == ("vdn", 0.9, 1)


def test_several_settings_are_combined(place, machine, unseen, marless):
    sweep = ("--sweep", "algorithm.lr=1e-3,2e-3", "--sweep", "actors.count=2,4", "--seeds", 1)
    out = marless("compare", "job.yaml", *sweep)[1]
    assert machine.begun[0] == "tiny-lr1e-3-count2-seed0" and len(machine.begun) == 4
    assert out.splitlines()[0].strip().startswith("algorithm.lr=1e-3 actors.count=2")


def test_what_is_finished_is_not_run_again(place, machine, unseen, marless):
    table = marless("compare", "job.yaml", *THREE)[1]
    machine.begun.clear()
    code, again, err = marless("compare", "job.yaml", *THREE, "--resume")
    assert (code, again, machine.begun) == (0, table, [])
    assert "4 of 4 runs exist already" in err
    marless("compare", "job.yaml", "--presets", "marless-minus,no-sharing", "--seeds", 3, "--resume", "--no-controls")
    assert machine.begun == ["tiny-vanilla-seed2", "tiny-no-sharing-seed2"]


def test_an_interrupt_says_how_it_goes_on_and_it_does(place, machine, unseen, marless):
    undisturbed = marless("compare", "job.yaml", *THREE, "--out", "calm")[1]
    machine.begun.clear()
    machine.interrupt = {"tiny-no-sharing-seed0"}
    code, out, err = marless("compare", "job.yaml", *THREE)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1] == (
        "marless: interrupted in run tiny-no-sharing-seed0; the same command with --resume --out runs/compare-tiny "
        "continues"
    )
    assert machine.begun == ["tiny-vanilla-seed0", "tiny-no-sharing-seed0"]
    machine.interrupt.clear()
    assert marless("compare", "job.yaml", *THREE, "--resume")[:2] == (0, undisturbed)
    assert machine.resumed == ["tiny-no-sharing-seed0"]
    assert machine.begun[2:] == ["tiny-no-sharing-seed1", "tiny-vanilla-seed1"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_an_interrupt_at_any_moment_is_a_sentence(place, machine, unseen, marless, monkeypatch, kind):
    def interrupted(*_, **__):
        raise kind

    monkeypatch.setattr(train, "train", interrupted)
    code, out, err = marless("compare", "job.yaml", *THREE)
    assert (code, out) == (130, "")
    assert err.endswith("marless: interrupted; the same command with --resume --out runs/compare-tiny continues\n")


def test_a_run_that_never_became_a_job_is_begun_again(place, machine, unseen, marless):
    (place / "runs/compare-tiny/runs/tiny-vanilla-seed0/logs").mkdir(parents=True)
    assert marless("compare", "job.yaml", *THREE, "--resume")[0] == 0
    assert machine.begun[0] == "tiny-vanilla-seed0"


def test_a_run_that_fails_ends_the_comparison(place, machine, unseen, marless):
    machine.fail = {"tiny-vanilla-seed0"}
    code, _, err = marless("compare", "job.yaml", *THREE)
    assert code == 1
    assert "marless: run tiny-vanilla-seed0 ended FAILED: out of luck; the same command with --resume" in err


def test_a_folder_that_holds_something_is_left_alone(place, machine, unseen, marless):
    marless("compare", "job.yaml", *THREE)
    machine.begun.clear()
    code, _, err = marless("compare", "job.yaml", *THREE)
    assert (code, machine.begun) == (2, [])
    assert "runs/compare-tiny is not empty; continue it with --resume, or choose another --out" in err
    code, _, err = marless("compare", "job.yaml", *THREE, "--resume", "--set", "algorithm.epochs=2")
    assert (code, machine.begun) == (2, [])
    assert "was run with other settings (algorithm); choose another --out" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--presets", "marles"), "unknown preset 'marles'; did you mean 'marless'?"),
        (("--presets", "vanilla,vanilla"), "preset vanilla is named twice"),
        (("--presets", "marless"), "variant marless: sharing.name: marless would never share"),
        (("--document", "nowhere.md", "--presets", "vanilla"), "nowhere.md: cannot be read"),
        (("--set", "actors.coun=3"), "job.yaml: actors.coun: unknown field"),
        ((*ALGORITHMS, "--presets", "vanilla"), "--presets and --sweep exclude each other"),
        (("--sweep", "seed=1,2"), "--sweep seed=…: every variant is run with the same seeds"),
        (
            ("--sweep", "env.name=mpe/simple_spread,mpe/simple_tag"),
            "--sweep env.name=…: returns of different environments",
        ),
        (
            ("--sweep", "algorithm.name=ippo,vnd"),
            "job.yaml: algorithm: unknown algorithm 'vnd'; did you mean 'vdn'?",
        ),
        (ALGORITHMS, "job.yaml: algorithm.name=vdn has no setting epochs, minibatches, which the job sets for ippo"),
        (("--sweep", "sharing.groups=independent,{all: [agent_7]}"), "variant sharing.groups={all: [agent_7]}: "),
    ],
)
def test_mistakes_are_told_before_anything_runs(place, machine, marless, arguments, said):
    code, out, err = marless("compare", "job.yaml", *arguments)
    assert (code, out, machine.begun) == (2, "", [])
    assert f"marless: {said}" in err
    assert not (place / "runs").exists()


def test_a_document_gets_table_and_picture(place, machine, marless):
    image = pytest.importorskip("matplotlib.image")
    (place / "docs").mkdir()
    page = place / "docs" / "results.md"
    page.write_text("# Results\n<!-- tiny -->\n<!-- /tiny -->\n")
    code, _, _ = marless("compare", place / "job.yaml", *THREE, "--rounds", 4, "--document", page)
    assert code == 0
    text = page.read_text()
    assert text.startswith("# Results\n<!-- tiny -->\n```sh\nmarless compare job.yaml --presets vanilla,")
    assert "--seeds 2 --slots 64 --set stop.rounds=4 --no-controls\n```" in text
    assert "](images/compare-tiny.png)" in text
    assert str(place) not in text
    pictures = [place / "runs/compare-tiny" / name for name in ("comparison.png", "profile.png")]
    for drawn in (place / "docs/images/compare-tiny.png", *pictures):
        assert image.imread(drawn)[..., :3].std() > 0.05


def test_programs_get_everything(place, machine, unseen, marless):
    found = json.loads(marless("compare", "job.yaml", *THREE, "-o", "json")[1])
    assert list(found["variants"]) == ["vanilla", "marless-minus", "no-sharing"]
    assert found["variants"]["vanilla"]["runs"] != found["variants"]["no-sharing"]["runs"]
    assert found == json.loads((place / "runs/compare-tiny/comparison.json").read_text())


def test_without_matplotlib_there_is_a_table_still(place, machine, marless, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, err = marless("compare", "job.yaml", *THREE)
    assert code == 0
    assert "learners invoked per round" in out
    assert "not drawn: pictures need matplotlib; install it with: pip install 'marless[plot]'" in err


def test_a_coordinator_may_run_it(place, machine, unseen, marless, tmp_path):
    assert marless("compare", "job.yaml", "--presets", "vanilla", "--seeds", 1, "--out", "here")[0] == 0
    made = tmp_path / "here/runs/tiny-vanilla-seed0"
    machine.begun.clear()
    with ScriptedCoordinator(tmp_path) as coordinator:
        coordinator.add("tiny-vanilla-seed0", "SUCCEEDED")
        job = coordinator.servicer.jobs["tiny-vanilla-seed0"]
        job.files = {name: (made / name).read_bytes() for name in ("spec.yaml", "job.json", "rounds.jsonl")}
        there = ("--presets", "vanilla", "--seeds", 1, "--coordinator", coordinator.address)
        code, out, _ = marless("compare", "job.yaml", *there, "--out", "there")
        assert (code, machine.begun) == (0, [])
        assert "greedy return" in out
        assert (tmp_path / "there/runs/tiny-vanilla-seed0/rounds.jsonl").read_bytes() == job.files["rounds.jsonl"]
        code, _, err = marless("compare", "job.yaml", *there, "--out", "other", "--set", "env.options.agents=3")
        assert code == 2
        assert "the coordinator's job tiny-vanilla-seed0 was run with other settings (env)" in err


def test_a_coordinator_may_run_the_controls_too(place, machine, unseen, marless, tmp_path):
    chosen = ("--presets", "no-sharing", "--seeds", 1)
    assert marless("compare", "job.yaml", *chosen, "--out", "here")[0] == 0
    made, machine.begun[:] = list(machine.begun), []
    folders = {each.name: each for folder in ("runs", "controls") for each in (tmp_path / "here" / folder).iterdir()}
    assert set(made) == set(folders) and len(made) == 3
    with ScriptedCoordinator(tmp_path) as coordinator:
        for name, folder in folders.items():
            coordinator.add(name, "SUCCEEDED")
            files = {file: (folder / file).read_bytes() for file in ("spec.yaml", "job.json", "rounds.jsonl")}
            coordinator.servicer.jobs[name].files = files
        code, out, _ = marless("compare", "job.yaml", *chosen, "--coordinator", coordinator.address, "--out", "there")
        assert (code, machine.begun) == (0, [])
        assert "no-sharing~mean" in out
        assert {each.name for each in (tmp_path / "there/controls").iterdir()} == set(made[1:])
