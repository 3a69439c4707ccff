"""`list`, `get` and `logs` where no coordinator answers: what they read from run folders, and what they say of them."""

import fcntl
import json
from pathlib import Path

import pytest

from tests.unit.cost.comparison.synthetic import record, spec, write

NOTE = "marless: no coordinator answers; these are the runs in ./runs\n"


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MARLESS_COORDINATOR", raising=False)
    monkeypatch.delenv("MARLESS_RUNS", raising=False)
    return tmp_path / "runs"


def made(runs: Path, job: str, state: str = "SUCCEEDED", **status: object) -> Path:
    """A run of three rounds, of which the second was evaluated."""
    records = [record(number, job=job, greedy=-12.5 if number == 1 else None) for number in range(3)]
    folder = write(runs / job, spec(), records, state=state)
    known = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps(known | status))
    return folder


def test_a_run_is_shown_as_far_as_its_files_say(runs, marless):
    folder = made(runs, "old", reason="3 rounds done", accepted_s=9.0, ended_s=40.0, env="e", algorithm="a", resumes=2)
    code, out, err = marless("get", "old", "-o", "json")
    assert (code, err) == (0, NOTE)
    assert json.loads(out) == {
        "job": "old", "state": "SUCCEEDED", "reason": "3 rounds done", "env": "e", "algorithm": "a", "rounds": 3,
        "env_steps": 300, "greedy_return": -12.5, "random_return": -30.0, "accepted_s": 9.0, "ended_s": 40.0,
        "resumes": 2, "run_dir": str(folder), "summary": None, "win_rate": None, "random_win_rate": None,
    }  # fmt: skip


def test_runs_are_listed_newest_first_and_may_be_chosen_by_state(runs, marless):
    made(runs, "old", accepted_s=1.0)
    made(runs, "new", "FAILED", accepted_s=3.0)
    made(runs, "middle", accepted_s=2.0)
    code, table, err = marless("list")
    assert (code, err) == (0, NOTE)
    header, *rows = table.splitlines()
    assert header.split()[:3] == ["job", "state", "rounds"]
    assert [row.split()[:3] for row in rows] == [
        ["new", "FAILED", "3"], ["middle", "SUCCEEDED", "3"], ["old", "SUCCEEDED", "3"],
    ]  # fmt: skip
    assert marless("list", "-o", "name", "--state", "succeeded", "--limit", "1") == (0, "middle\n", NOTE)


@pytest.mark.parametrize(
    ("state", "attached", "shown", "reason"),
    [
        ("RUNNING", True, "INTERRUPTED", "interrupted; `marless train --resume j` continues it"),
        ("RUNNING", False, "INTERRUPTED", "interrupted; `marless up` continues it"),
        ("PENDING", False, "PENDING", "`marless up` starts it"),
    ],
)
def test_a_run_that_nobody_runs_any_more_says_how_it_continues(runs, marless, state, attached, shown, reason):
    folder = made(runs, "j", state, attached=attached, reason="training")
    job = json.loads(marless("get", "j", "-o", "json")[1])
    assert (job["state"], job["reason"]) == (shown, reason)
    assert marless("list", "-o", "name", "--state", shown)[1] == "j\n"
    with (folder / "owner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = json.loads(marless("get", "j", "-o", "json")[1])
        assert (job["state"], job["reason"]) == (state, "training")


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"job": "bad"}', '{"job": 1, "state": "RUNNING"}', '{"job":"b","state":"?"}']
)
def test_a_damaged_run_is_a_note_and_the_others_are_listed(runs, marless, damage):
    made(runs, "good")
    (made(runs, "bad") / "job.json").write_text(damage)
    code, out, err = marless("list", "-o", "name")
    assert (code, out) == (0, "good\n")
    assert err == f"{NOTE}marless: note: runs/bad: job.json is damaged; it is left out\n"
    code, out, err = marless("get", "bad", "good", "-o", "name")
    assert (code, out, err) == (1, "good\n", f"{NOTE}marless: runs/bad: job.json is damaged\n")


def test_damaged_records_are_a_note_too(runs, marless):
    (made(runs, "bad") / "rounds.jsonl").write_text("no record\n")
    made(runs, "good")
    code, out, err = marless("list", "-o", "name")
    assert (code, out, err.count("\n")) == (0, "good\n", 2)
    assert "runs/bad/rounds.jsonl" in err and "it is left out" in err


def test_a_named_coordinator_is_asked_alone(runs, marless, tmp_path, monkeypatch):
    monkeypatch.setattr("marless.app.cli.options.CONTACT_S", 0.05)
    made(runs, "old")
    address = f"unix:{tmp_path}/none.sock"
    for verb in (["list"], ["get", "old"], ["logs", "old"]):
        code, out, err = marless(*verb, "--coordinator", address)
        assert (code, out) == (1, "")
        assert err.startswith(f"marless: no coordinator at {address}")


def test_without_any_run_it_is_said_how_to_start_a_coordinator(runs, marless):
    assert marless("list")[2].startswith("marless: no coordinator is known")
    made(runs, "old")
    assert marless("get", "other") == (
        102, "", f"{NOTE}marless: there is no job 'other' in {runs}, and no coordinator answers\n",
    )  # fmt: skip


def test_a_log_is_read_to_its_last_whole_line(runs, marless):
    first, second = json.dumps({"level": "info", "event": "one"}), "no JSON"
    (made(runs, "old") / "log.jsonl").write_text(f'{first}\n{second}\n{{"level": "in')
    assert marless("logs", "old", "-o", "jsonl") == (0, f"{first}\n{second}\n", NOTE)
    code, out, _ = marless("logs", "old", "--tail", "1")
    assert (code, out.split()) == (0, ["no", "JSON"])
    assert marless("logs", "old", "--follow")[0] == 1
