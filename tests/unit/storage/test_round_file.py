"""Reading rounds.jsonl: from any round on, backwards, in batches; a torn line is no record."""

import json
import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import CorruptError
from marless.jobs.record import Decision
from marless.storage import round_file
from marless.storage.round_file import RoundReader, may_be_evaluated, read, read_backwards, spent_s
from tests.unit.jobs.test_record import EARLIER, RETURNS, record


class Growing:
    """A file that has just these pieces to give, one after the other."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    def __enter__(self) -> "Growing":
        return self

    def __exit__(self, *_: object) -> None: ...

    def seek(self, _at: int) -> None: ...

    def readline(self, _most: int) -> bytes:
        return next(self._pieces, b"")


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(record(n).to_json() + "\n" for n in range(3)))
    return path


def test_a_file_is_read_from_any_round_on(lines):
    assert list(read(lines)) == [record(0), record(1), record(2)]
    assert list(read(lines, 2)) == [record(2)]
    assert list(read(lines, 3)) == []


def test_a_file_that_is_not_there_yet_holds_no_records(tmp_path):
    assert list(read(tmp_path / "rounds.jsonl")) == []


def test_a_last_line_that_a_crash_cut_short_is_no_record_wherever_it_was_cut(lines):
    whole = lines.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        lines.write_bytes(whole[:cut])
        assert [each.round for each in read(lines)] == [0, 1]


def test_the_rest_of_a_line_that_was_being_written_is_not_taken_for_the_next_one(lines, monkeypatch):
    first, second, *_ = lines.read_text().splitlines(keepends=True)
    grew = [
        first.encode(),
        second[:9].encode(),
        second[9:].encode(),
    ]  # what a reader gets who looks again after the end of the file
    monkeypatch.setattr(round_file.regular_files, "opened", lambda _path: Growing(grew))
    assert [each.round for each in read(lines)] == [0]


@pytest.mark.parametrize("line", ["{}", "[]", "3", "{", "", '{"job": "j"}'])
def test_any_other_line_that_is_no_record_is_named(lines, line):
    with lines.open("a") as file:
        file.write(line + "\n" + record(4).to_json() + "\n")
    with pytest.raises(CorruptError, match=r"rounds\.jsonl, line 4: this is not a round record"):
        list(read(lines))


@given(st.lists(st.integers(0, 3000), max_size=12), st.sampled_from(["", "x" * 40, '{"job": "torn"}']))
def test_records_are_read_backwards_whatever_their_length(tmp_path_factory, lengths, torn):
    path = tmp_path_factory.mktemp("backwards") / "rounds.jsonl"
    written = [
        record(index, decisions=(Decision(kind="scaling", rule="r", outcome="", reason="." * length),))
        for index, length in enumerate(lengths)
    ]
    path.write_text("".join(each.to_json() + "\n" for each in written) + torn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_file, "_STEP_BYTES", 777)
        assert list(read_backwards(path)) == written[::-1]


def test_reading_backwards_names_the_file_that_is_broken(tmp_path):
    assert list(read_backwards(tmp_path / "rounds.jsonl")) == []
    (tmp_path / "rounds.jsonl").write_text("{}\n")
    with pytest.raises(CorruptError, match=r"rounds.jsonl: a line is not a round record: b'\{\}'"):
        list(read_backwards(tmp_path / "rounds.jsonl"))


def long_record(round_: int, length: int = 0):
    return record(round_, decisions=(Decision(kind="scaling", rule="r", outcome="", reason="." * length),))


@given(lengths=st.lists(st.integers(0, 3000), max_size=12), first=st.integers(0, 13), torn=st.booleans())
def test_any_round_is_found_whatever_the_length_of_the_lines(tmp_path_factory, lengths, first, torn):
    path = tmp_path_factory.mktemp("seek") / "rounds.jsonl"
    written = [long_record(index, length) for index, length in enumerate(lengths)]
    unfinished = record(len(lengths)).to_json()[:40] if torn else ""
    path.write_text("".join(each.to_json() + "\n" for each in written) + unfinished)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_file, "_SEEK_BYTES", 777)
        patch.setattr(round_file, "BATCH_BYTES", 2000)
        assert list(read(path, first)) == written[first:]
        reader, lines = RoundReader(path), []
        while batch := reader.batch(first + len(lines)):
            assert len(batch) == 1 or sum(map(len, batch)) < 2000
            lines += batch
        assert lines == [each.to_json() for each in written[first:]]


def test_the_end_of_a_long_file_is_found_without_reading_all_of_it(tmp_path, monkeypatch):
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(long_record(number, 5000).to_json() + "\n" for number in range(2000)))
    taken, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *where: taken.append(len(data := pread(*where))) or data)
    assert [each.round for each in read(path, 1998)] == [1998, 1999]
    assert 0 < sum(taken) < path.stat().st_size / 5


def test_a_reader_finds_its_place_again_in_another_file_of_the_same_name(lines):
    reader = RoundReader(lines)
    assert reader.batch(0) == [record(number).to_json() for number in range(3)]
    longer = [replace(record(number), job="a-longer-name") for number in range(5)]
    lines.unlink()
    assert reader.batch(3) == []
    lines.write_text("".join(each.to_json() + "\n" for each in longer))
    assert reader.batch(3) == [each.to_json() for each in longer[3:]]


def test_lines_of_other_programs_are_found_by_counting(lines):
    shuffled = [dict(sorted(json.loads(line).items())) for line in lines.read_text().splitlines()]
    lines.write_text("".join(json.dumps(each) + "\n" for each in shuffled))
    assert list(read(lines, 2)) == [record(2)]
    assert [json.loads(line) for line in RoundReader(lines).batch(1)] == shuffled[1:]


LONG_NUMBER = b'{"job":"j","round":' + 5000 * b"1" + b"}"  # beyond what Python turns into an int


@pytest.mark.parametrize(
    "line",
    [b"{}", b"", b'{"job":"j","round":7,}', b'{"job":"j","round":3,', b'{"job":"j","round":3,"\xff"}', LONG_NUMBER],
)
def test_a_line_that_is_not_its_rounds_record_ends_a_batch_with_its_name(lines, line):
    with lines.open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(CorruptError, match=r"rounds\.jsonl, line 4: this is not the record of round 4"):
        RoundReader(lines).batch(2)


def test_what_is_known_of_a_line_without_parsing_it():
    plain, evaluated = (record(2, evaluation=each).to_json().encode() for each in (None, RETURNS))
    assert (may_be_evaluated(plain), may_be_evaluated(evaluated)) == (False, True)
    assert may_be_evaluated(record(2, earlier_evaluation=EARLIER).to_json().encode())
    for changes, seconds in (
        ({}, 0.5),
        ({"idle_s": 0.25}, 0.75),
        ({"idle_s": 2.5e-05}, 0.500025),
        ({"idle_s": -1.0}, 0.5),
        ({"started_s": 2000.0}, 0.0),  # the clock was set back
    ):
        known = record(2, **changes)
        line = known.to_json().encode()
        assert spent_s("rounds.jsonl", line) == known.spent_s == pytest.approx(seconds)
        other = json.dumps(dict(sorted(json.loads(line).items()))).encode()
        assert spent_s("rounds.jsonl", other) == known.spent_s


READERS = {
    "forwards": lambda path: list(read(path)),
    "from a round on": lambda path: list(read(path, 2)),
    "backwards": lambda path: list(read_backwards(path)),
    "in batches": lambda path: RoundReader(path).batch(1),
    "arrivals": lambda path: list(round_file.arrivals(path)),
    "its size": round_file.complete_bytes,
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_or_has_no_lines_is_refused_at_once(tmp_path, reader):
    path, start_s = tmp_path / "rounds.jsonl", time.monotonic()
    os.mkfifo(path)
    with pytest.raises(CorruptError, match="is a pipe"):
        READERS[reader](path)
    path.unlink()
    path.touch()
    os.truncate(path, 10 * 2**30)
    with pytest.raises(CorruptError, match="a line has more than 67,108,864 bytes"):
        READERS[reader](path)
    assert time.monotonic() - start_s < 10


@pytest.mark.parametrize(
    ("rounds", "found"),
    [
        ((0, 1, 1, 2), "line 3: this is the record of round 2; rounds are missing, or there twice"),
        ((0, 2), "line 2: this is the record of round 3"),
        ((1, 2), "line 1: this is the record of round 2"),
        ((1, 0), "line 1: this is the record of round 2"),
    ],
)
def test_rounds_that_are_missing_or_there_twice_are_said(tmp_path, rounds, found):
    path = tmp_path / "rounds.jsonl"
    path.write_text("".join(record(n).to_json() + "\n" for n in rounds))
    with pytest.raises(CorruptError) as refused:
        list(read(path))
    assert f"{path}, {found}" in str(refused.value)
