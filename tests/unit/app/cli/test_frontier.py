"""`marless frontier`: which runs it makes and repeats, what failed, its mistakes, its table, document and picture."""

import json
from pathlib import Path

import pytest
import yaml

from marless.app.cli import comparison_folder, frontier_picture, train
from marless.app.cli.comparison_folder import InterruptedRunError
from tests.unit.cost.comparison.synthetic import JOB, record, write

GRID = ("--actors", "4,1", "--schedules", "synchronous", "--presets", "no-sharing,marless-minus", "--seeds", 2)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path


class Processes:
    """Stands in for the processes that train: runs take no time and are counted; some of them fail."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fail: set[str] = set()
        self.interrupt = False

    def make(self, runs, missing) -> dict[str, str]:
        for run in missing:
            self.made.append(run.id)
            # Shared policies end at -20, others at -25, those of one actor 2 below.
            last = -20.0 if run.spec.sharing.groups == "shared" else -25.0
            last -= 2.0 * (run.spec.actors.count == 1)
            records = [
                record(
                    number, job=run.id, actors=run.spec.actors.count, mean=mean, greedy=-15.0 if number == 2 else None
                )
                for number, mean in enumerate((-30.0, last - 1.0, last))
            ]
            if run.id not in self.fail:
                write(runs / run.id, run.spec, records)
        if self.interrupt:
            raise InterruptedRunError("interrupted")
        return {run.id: "out of luck" for run in missing if run.id in self.fail}


@pytest.fixture
def processes(monkeypatch):
    stand_in = Processes()

    class Scripted:
        def __init__(self, runs: Path, logs: Path, at_once: int) -> None:
            self.runs = runs

        def make(self, missing, names):
            return stand_in.make(self.runs, missing)

    monkeypatch.setattr(comparison_folder, "RunProcesses", Scripted)
    return stand_in


@pytest.fixture
def unseen(monkeypatch):
    """Leave the picture out, which takes longer than all else."""
    monkeypatch.setattr(frontier_picture, "draw_frontier", lambda *_: None)


def test_the_grid_and_presets_are_trained_once_and_shown(place, processes, unseen, marless):
    code, out, err = marless("frontier", "job.yaml", *GRID, "--set", "stop.rounds=3")
    assert code == 0, err
    first = [f"tiny-{name}-synchronous-seed0" for name in ("1-independent", "1-shared", "4-independent", "4-shared")]
    assert processes.made[:5] == [*first, "tiny-no-sharing-seed0"]
    assert len(processes.made) == 10  # marless-minus trains as 4 independent synchronous does
    header, *rows = out.splitlines()
    assert header.split("  ")[-1].strip() == "actors"
    by_name = {row.partition("  ")[0]: row.split("  ") for row in rows}
    assert "2 of 2" in " ".join(by_name["4 shared synchronous"])
    assert "not reached" in " ".join(by_name["1 shared synchronous"])
    assert by_name["marless-minus"][-1].strip() == "4"
    # -30 + 0.9 · (-20 + 30), with -30 of the random policy
    assert "- Goal: a return of -21, nine tenths of the way from the random policy's (-30)" in out
    fields = json.loads((place / "runs/frontier-tiny/frontier.json").read_text())
    assert fields["env_steps"] == 3 * 4 * 4 * 5
    assert fields["settings"]["4 shared synchronous"]["to_the_goal"]["paper"]["usd"][0] > 0
    assert fields["command"] == (
        "marless frontier job.yaml --actors 1,4 --groups independent,shared --schedules synchronous --presets "
        "no-sharing,marless-minus --seeds 2 --slots 64 --set stop.rounds=3"
    )
    spec = yaml.safe_load((place / "runs/frontier-tiny/runs/tiny-1-shared-synchronous-seed1/spec.yaml").read_text())
    assert (spec["actors"]["count"], spec["seed"], spec["stop"]["env_steps"]) == (1, 1, 240)
    assert spec["stop"]["rounds"] is None


def test_what_is_finished_is_not_run_again_also_in_another_grid(place, processes, unseen, marless):
    out = marless("frontier", "job.yaml", *GRID)[1]
    processes.made.clear()
    code, again, err = marless("frontier", "job.yaml", *GRID, "--resume")
    assert (code, again, processes.made) == (0, out, [])
    assert "10 of 10 runs exist already" in err
    larger = ("--actors", "1,4,9", "--groups", "shared", "--schedules", "synchronous", "--presets", "", "--seeds", 2)
    marless("frontier", "job.yaml", *larger, "--resume")
    assert processes.made == ["tiny-9-shared-synchronous-seed0", "tiny-9-shared-synchronous-seed1"]


def test_a_goal_can_be_given(place, processes, unseen, marless):
    code, out, _ = marless("frontier", "job.yaml", *GRID, "--to", "-24", "-o", "json")
    found = json.loads(out)
    assert (code, found["goal"]["value"]) == (0, -24.0)
    assert found["settings"]["1 shared synchronous"]["seeds_reached"] == 2
    assert "--to -24" in found["command"]


def test_runs_that_fail_are_named_and_tried_again(place, processes, unseen, marless):
    processes.fail = {"tiny-4-independent-synchronous-seed1"}
    code, out, err = marless("frontier", "job.yaml", *GRID)
    assert code == 100
    assert "1 of 10 runs failed: tiny-4-independent-synchronous-seed1; --resume tries them again" in err
    assert "- 4 independent synchronous is left out of the goal and of regrets" in out
    assert "- marless-minus is left out" in out
    processes.fail, processes.made = set(), []
    assert marless("frontier", "job.yaml", *GRID, "--resume")[0] == 0
    assert processes.made == ["tiny-4-independent-synchronous-seed1"]


def test_without_a_goal_the_failure_counts(place, processes, unseen, marless):
    processes.fail = {f"tiny-{count}-shared-synchronous-seed0" for count in (1, 4)}
    shared = ("--actors", "1,4", "--groups", "shared", "--schedules", "synchronous", "--presets", "", "--seeds", 1)
    code, out, err = marless("frontier", "job.yaml", *shared)
    assert (code, out) == (100, "")
    assert "no static setting has finished with every seed" in err


def test_an_interrupt_says_how_it_goes_on(place, processes, unseen, marless):
    processes.interrupt = True
    code, out, err = marless("frontier", "job.yaml", *GRID, "--out", "there")
    assert (code, out) == (130, "")
    assert "interrupted; the same command with --resume --out there continues" in err


def test_runs_on_services_are_made_as_by_compare(place, unseen, marless, monkeypatch):
    begun = []

    def on_services(spec, *, job_id, runs, show):
        begun.append(job_id)
        raise_it = job_id.startswith("tiny-1-")
        records = [record(number, job=job_id, mean=-30.0 + number, greedy=-15.0) for number in range(3)]
        folder = write(runs / job_id, spec, records, state="FAILED" if raise_it else "SUCCEEDED")
        job = type(
            "Job", (), {"job": job_id, "state": json.loads((folder / "job.json").read_text())["state"], "reason": "bad"}
        )
        return train.JobOutcome(job, interrupted=False)

    monkeypatch.setattr(train, "train", on_services)
    code, out, err = marless("frontier", "job.yaml", *GRID, "--groups", "shared", "--presets", "", "--services")
    assert (code, len(begun)) == (100, 4)
    assert "run tiny-1-shared-synchronous-seed0 ended FAILED: bad" in err
    assert "marless: run 2 of 4: tiny-4-shared-synchronous-seed0 for 4 shared synchronous" in err
    assert "no starts" not in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--actors", "0"), "0 is less than 1"),
        (("--actors", "a"), "'a' is not a whole number"),
        (("--actors", ","), "the grid is empty"),
        (("--groups", "all"), "all"),
        (("--schedules", "sometimes"), "unknown schedule 'sometimes'"),
        (("--presets", "marles"), "did you mean 'marless'"),
        (("--slots", "1", "--set", "functions.actor.vcpus=2"), "1 vCPUs hold no actor of 2 vCPUs"),
        (("--services", "--processes", "2"), "one after another"),
        (("--set", "env={name: mpe/simple_adversary}"), "sides compete in mpe/simple_adversary"),
        (("--schedules", "stellaris"), "1 independent stellaris: schedule.name stellaris"),
        (("--document", "none.md"), "none.md: cannot be read"),
        (("--set", "stop={wall_s: 3}"), "set stop.env_steps or stop.rounds"),
    ],
)
def test_mistakes_are_said_before_anything_runs(place, processes, unseen, marless, options, said):
    code, out, err = marless("frontier", "job.yaml", *options)
    assert (code, out, processes.made) == (2, "", [])
    assert said in " ".join(err.replace("│", " ").split())


def test_a_folder_that_is_not_empty_is_not_mixed(place, processes, unseen, marless):
    marless("frontier", "job.yaml", *GRID)
    code, _, err = marless("frontier", "job.yaml", *GRID)
    assert (code, "is not empty; continue it with --resume" in err) == (2, True)
    code, _, err = marless("frontier", "job.yaml", *GRID, "--resume", "--set", "algorithm.epochs=9")
    assert code == 2
    assert "was run with other settings (algorithm)" in err


def test_a_document_gets_table_picture_and_sentences(place, processes, marless):
    pytest.importorskip("matplotlib")
    page = place / "page.md"
    page.write_text("before\n<!-- tiny-frontier -->\nold\n<!-- /tiny-frontier -->\nafter\n")
    code, _, err = marless("frontier", "job.yaml", *GRID, "--document", "page.md")
    assert code == 0, err
    text = page.read_text()
    assert text.startswith("before\n<!-- tiny-frontier -->\n```sh\nmarless frontier job.yaml --actors 1,4")
    assert "| 4 shared synchronous | 2 of 2 |" in text and "old" not in text
    assert "![Cost and return, cost and time to the goal, return over env steps](images/frontier-tiny.png)" in text
    assert "- Regret of no-sharing, by paper accounting" in text
    assert "11 runs of" not in text and text.endswith("<!-- /tiny-frontier -->\nafter\n")
    assert (place / "images/frontier-tiny.png").read_bytes() == (place / "runs/frontier-tiny/frontier.png").read_bytes()
