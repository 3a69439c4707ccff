"""The log of a job: whole lines from any cursor, bounded, and never in the job's way."""

import json

import pytest

from marless.core.errors import SpecError
from marless.services.coordinator.state import job_log
from marless.services.coordinator.state.job_log import JobLog, lines, tail
from marless.services.coordinator.state.ownership import Ownership, beat_of
from marless.services.coordinator.state.run_folder import RunFolder


@pytest.fixture
def told():
    return []


@pytest.fixture
def log(tmp_path, told):
    return JobLog(RunFolder(tmp_path), "j", lambda: told.append(1))


def read(path) -> list[dict]:
    return [json.loads(line.json) for line in lines(path, 0)]


def test_lines_say_when_how_bad_and_what(log, tmp_path, told):
    log.info("round.evaluated", round=3, φ="ü")
    log.warning("invocation.repeated", attempt=2)
    log.error("job.ended", reason="1/0", detail="Traceback\n  line")
    found = read(tmp_path / "log.jsonl")
    assert [(line["level"], line["event"]) for line in found] == [
        ("info", "round.evaluated"),
        ("warning", "invocation.repeated"),
        ("error", "job.ended"),
    ]
    assert (found[0]["φ"], found[2]["detail"]) == ("ü", "Traceback\n  line")
    assert found[0]["timestamp"] < found[1]["timestamp"] < found[2]["timestamp"]
    assert found[0]["timestamp"].endswith("Z")
    assert len(told) == 3


def test_reading_goes_on_from_every_cursor(log, tmp_path, monkeypatch):
    monkeypatch.setattr(job_log, "BATCH_BYTES", 300)  # some lines at a time
    path = tmp_path / "log.jsonl"
    assert lines(path, 0) == []
    for number in range(20):
        log.info("line", number=number)
    everything = []
    while batch := lines(path, everything[-1].cursor if everything else 0):
        everything += batch
    assert [json.loads(line.json)["number"] for line in everything] == list(range(20))
    assert everything[-1].cursor == path.stat().st_size
    for count in range(1, 21):
        assert json.loads(lines(path, tail(path, count))[0].json)["number"] == 20 - count
    assert (tail(path, 0), tail(path, 99)) == (path.stat().st_size, 0)
    for bad in (3, everything[0].cursor - 1, -1):
        with pytest.raises(SpecError, match=f"cursor {bad} is not the end of a line"):
            lines(path, bad)
    assert lines(path, path.stat().st_size + 5) == []  # of a longer log, that was deleted


def test_a_torn_line_is_skipped_and_those_after_it_are_whole(log, tmp_path):
    path = tmp_path / "log.jsonl"
    log.info("first")
    with path.open("ab") as file:
        file.write(b'{"event": "to')
    assert [line["event"] for line in read(path)] == ["first"]
    log.info("second")
    assert [line["event"] for line in read(path)] == ["first", "second"]


def test_a_log_is_bounded_and_keeps_what_matters_longest(log, tmp_path, monkeypatch):
    monkeypatch.setattr(job_log, "INFO_LIMIT_BYTES", 2000)
    monkeypatch.setattr(job_log, "LIMIT_BYTES", 4000)
    path = tmp_path / "log.jsonl"
    for _ in range(100):
        log.info("round.evaluated")
    assert 1500 < path.stat().st_size < 2000 + 300
    assert read(path)[-1]["event"] == "log.full"
    log.error("job.ended")
    assert read(path)[-1]["event"] == "job.ended"
    for _ in range(100):
        log.error("job.ended")
    assert path.stat().st_size < 4000 + 300


def test_a_disk_that_takes_no_line_costs_the_line(tmp_path, told):
    JobLog(RunFolder(tmp_path / "none"), "j", lambda: told.append(1)).error("job.ended")
    assert told == [1]


def test_a_replaced_coordinator_writes_no_line(tmp_path):
    """Its last measurements may end after its successor has ended the job."""
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    assert first.own()
    log = JobLog(first, "j", lambda: None)
    log.info("job.status")
    second.ownership = Ownership.seize(tmp_path, beat_of(tmp_path))
    log.info("baseline.measured")
    JobLog(second, "j", lambda: None).info("job.found")
    second.release()
    JobLog(second, "j", lambda: None).info("sink.closed")
    assert [line["event"] for line in read(tmp_path / "log.jsonl")] == ["job.status", "job.found", "sink.closed"]
