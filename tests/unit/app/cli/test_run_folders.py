"""`list`, `get` and `logs` where no coordinator answers: what they read from run folders, and what they say of them."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marless.app.cli import recorded
from marless.app.cli.options import CoordinatorOptions
from marless.app.client import LogLine
from marless.core.errors import UnreachableError
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


def test_a_run_that_has_ended_is_shown_as_its_summary_says(runs, marless):
    """As a coordinator does, also where the newest evaluation is older than those that it looks for in the records."""
    summary = {"rounds": 9, "env_steps": 900, "return": -2.5, "random_return": -7.0, "win_rate": 0.75}
    made(runs, "old", summary_json=json.dumps(summary))
    job = json.loads(marless("get", "old", "-o", "json")[1])
    shown = {name: job[name] for name in ("rounds", "env_steps", "greedy_return", "random_return", "win_rate")}
    assert shown == {
        "rounds": 9, "env_steps": 900, "greedy_return": -2.5, "random_return": -7.0, "win_rate": 0.75,
    }  # fmt: skip
    assert (job["random_win_rate"], job["summary"]) == (None, summary)


def test_equals_keep_the_order_of_a_coordinator(runs, marless):
    for job, accepted_s in (("a", 1.0), ("b", 3.0), ("c", 2.0), ("d", 3.0)):
        made(runs, job, accepted_s=accepted_s)
    assert marless("list", "-o", "name", "--sort", "state")[1].split() == ["d", "b", "c", "a"]
    assert marless("list", "-o", "name", "--limit", "2")[1].split() == ["d", "b"]


def test_a_copy_has_the_name_of_its_folder_and_what_is_being_deleted_is_no_run(runs, marless):
    made(runs, "old")
    shutil.copytree(runs / "old", runs / "copy")
    (runs / "old").rename(runs / ".deleted-old.0000")
    (runs / "notes.txt").write_text("")
    assert marless("list", "-o", "name") == (0, "copy\n", NOTE)
    for name in (".", "..", "copy/../copy", ""):
        assert marless("get", name)[0] == 102


def test_a_job_that_cannot_be_opened_is_a_note(runs, marless):
    made(runs, "good")
    path = made(runs, "bad") / "job.json"
    path.unlink()
    path.symlink_to("job.json")
    code, out, err = marless("list", "-o", "name")
    assert (code, out) == (0, "good\n")
    assert "runs/bad/job.json: Too many levels of symbolic links" in err and "it is left out" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may look into everything")
def test_a_folder_that_may_not_be_looked_into_is_a_note(runs, marless):
    made(runs, "good")
    closed = made(runs, "closed")
    closed.chmod(0)
    try:
        code, out, err = marless("list", "-o", "name")
    finally:
        closed.chmod(0o755)
    assert (code, out) == (0, "good\n")
    assert err == f"{NOTE}marless: note: runs/closed/job.json: Permission denied; it is left out\n"


def test_a_run_that_ends_while_it_is_read_was_not_interrupted(runs, marless, monkeypatch):
    folder = made(runs, "j", "RUNNING", attached=True)

    def ended(lock: Path) -> bool:
        status = json.loads((folder / "job.json").read_text())
        (folder / "job.json").write_text(json.dumps(status | {"state": "SUCCEEDED", "reason": "3 rounds done"}))
        return False

    monkeypatch.setattr(recorded, "_is_locked", ended)
    job = json.loads(marless("get", "j", "-o", "json")[1])
    assert (job["state"], job["reason"]) == ("SUCCEEDED", "3 rounds done")


def test_a_run_whose_cancellation_was_interrupted_is_not_said_to_continue(runs, marless):
    made(runs, "j", "RUNNING", cancelling=True)
    job = json.loads(marless("get", "j", "-o", "json")[1])
    assert (job["state"], job["reason"]) == (
        "INTERRUPTED", "its cancellation was interrupted; `marless up` ends it",
    )  # fmt: skip


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


def test_a_run_without_a_log_has_no_lines(runs, marless):
    made(runs, "old")
    assert marless("logs", "old") == (0, "", NOTE)
    assert marless("logs", "other")[0] == 102


@pytest.mark.parametrize("tail", [0, 2])
def test_what_a_coordinator_answered_of_a_log_before_it_went_away_is_not_repeated(runs, marless, monkeypatch, tail):
    lines = [json.dumps({"level": "info", "event": event}) for event in ("one", "two", "three")]
    (made(runs, "old") / "log.jsonl").write_text("".join(f"{line}\n" for line in lines))
    cursors = [sum(len(line) + 1 for line in lines[: number + 1]) for number in range(3)]

    class GoesAway:
        def logs(self, job: str, *, tail: int) -> Iterator[LogLine]:
            at = 1 if tail else 0
            yield LogLine(cursor=cursors[at], text=lines[at])
            raise UnreachableError("it has gone away")

    @contextmanager
    def client(to: CoordinatorOptions) -> Iterator[GoesAway]:
        yield GoesAway()

    monkeypatch.setattr(CoordinatorOptions, "client", client)
    code, out, err = marless("logs", "old", "-o", "jsonl", "--tail", tail)
    assert (code, out.splitlines(), err) == (0, lines[1:] if tail else lines, NOTE)
