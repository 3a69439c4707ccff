"""Many records of one kind as columns: nothing is lost, and the lines of large rounds are short."""

import dataclasses
import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core import columns
from marless.core.group import LaneRecord
from marless.jobs.record import InvocationRecord, from_json
from tests.unit.jobs.test_record import record


@dataclass(frozen=True, kw_only=True)
class Row:
    text: str
    seconds: float
    number: int
    flag: bool
    names: tuple[str, ...] = ()


SECONDS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 1795490101.123457, 1.797693134862316e302]),
    st.integers(0, 2**53).map(lambda micros: micros / 1e6),
)
ROWS = st.builds(
    Row,
    text=st.sampled_from(["", "job/1/train/1", "job/1/train/22", "é"]) | st.text(max_size=5),
    seconds=SECONDS,
    number=st.integers(-(2**60), 2**60) | st.sampled_from([0, 1]),
    flag=st.booleans(),
    names=st.lists(st.text(max_size=3), max_size=2).map(tuple),
)


def written(rows: list[Row], **kind: object) -> list[dict[str, object]]:
    """As they are read again, through JSON."""
    return columns.decoded(json.loads(json.dumps(columns.encoded(rows, **kind))))


@given(st.lists(ROWS, max_size=3), st.integers(1, 40))
def test_what_was_written_is_read_again_to_the_last_bit(rows, times):
    """Long lists of equal and of different rows, so that columns are constant or not."""
    rows *= times
    expected = [json.loads(json.dumps(dataclasses.asdict(row))) for row in rows]
    assert written(rows, kind=lambda row: row.flag) == expected
    found = written(rows)
    assert found == expected
    assert list(map(repr, found)) == list(map(repr, expected))  # 0, 0.0, -0.0 and False are equal, and differ


@pytest.mark.parametrize(
    "pair", [(0.0, -0.0), (1, 1.0), (0, False), (1.0, True), (math.nan, math.nan), (math.inf, 1.0)]
)
def test_values_that_are_equal_but_not_the_same_are_kept_apart(pair):
    rows = [Row(text="", seconds=value, number=0, flag=False) for value in pair * 20]
    assert [repr(row["seconds"]) for row in written(rows)] == [repr(value) for value in pair * 20]


def invocation(index: int) -> InvocationRecord:
    start_s = round(1795490101.25 + 1.3e-4 * index, 6)
    return InvocationRecord(
        id=f"train-20261124-031501/17/train/{index}",
        function="actor",
        name="",
        index=index,
        attempt=1,
        worker=f"actor-{index * 7 % 1000}",
        queued_s=1795490101.2,
        start_s=start_s,
        end_s=round(start_s + 0.1, 6),
        vcpu_s=round(0.0123 + 1e-6 * index, 6),
        memory_bytes=66_543_616 + 4096 * (index % 97),
        cold=False,
    )


def test_a_thousand_invocations_take_few_bytes():
    """Red before: 310 kB a round at 1,000 actors, written by each round and sent to each watcher."""
    line = json.dumps(columns.encoded([invocation(index) for index in range(1000)]), separators=(",", ":"))
    assert len(line) < 50_000


def test_learners_make_the_columns_of_actors_no_longer():
    """Red before: 83 kB, because most columns of actors have one value, and those of learners have another."""
    actors = [invocation(index) for index in range(1000)]
    learner = dataclasses.replace(actors[0], function="learner", name="agent", worker="learner-0", queued_s=0.0)
    large = dataclasses.replace(record(), invocations=(*actors, learner))
    found = json.dumps(json.loads(large.to_json())["invocations"], separators=(",", ":"))
    assert len(found) < 50_000
    assert from_json(large.to_json()) == large


def test_few_are_a_list_of_objects_as_they_always_were():
    few = [LaneRecord(lane=index, version=1, digest="d") for index in range(columns.FEWEST - 1)]
    assert columns.encoded(few) == [{"lane": index, "version": 1, "digest": "d"} for index in range(len(few))]


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"rows": -1, "a": {"all": 1}},
        {"rows": 10**12, "a": {"all": 1}},
        {"rows": "2", "a": {"all": 1}},
        {"rows": 2, "a": {"each": [1]}},
        {"rows": 2, "a": {"each": "ab"}},
        {"rows": 2, "a": {}},
        {"tables": [{"rows": 10**6, "a": {"all": 1}}] * 2},
        {"tables": [{"rows": 2, "a": {"all": 1}}, {}]},
        {"tables": 7},
        {"rows": 2, "a": 7},
        {"rows": 2, "a": {"prefix": 1, "each": ["a", "b"]}},
        {"rows": 2, "a": {"kinds": ["a"], "each": "01"}},
        {"rows": 2, "a": {"kinds": ["a"], "each": "0 "}},
        {"rows": 2, "a": {"kinds": ["a"], "each": [0, True]}},
        {"rows": 2, "a": {"kinds": ["a"], "each": [0, 1]}},
        {"rows": 2, "a": {"kinds": "ab", "each": [0, 1]}},
        {"rows": 2, "a": {"kinds": ["a"], "each": "0"}},
        {"rows": 2, "a": {"micros": 0, "each": ["a", 1]}},
        {"rows": 2, "a": {"micros": 10**400, "each": [0, 1]}},
        7,
        None,
    ],
)
def test_a_damaged_table_is_refused(damaged):
    with pytest.raises((TypeError, ValueError, KeyError, OverflowError)):
        columns.decoded(damaged)


def test_many_kinds_have_numbers_of_several_digits_and_older_lists_of_numbers_are_read_too():
    rows = [Row(text=f"machine-{number % 70:02}", seconds=0.0, number=0, flag=False) for number in range(700)]
    column = columns.encoded(rows)["text"]
    assert column["each"].startswith("000102") and len(column["each"]) == 1400
    assert [row["text"] for row in written(rows)] == [row.text for row in rows]
    table = {"rows": 3, "text": {"kinds": ["a", "b"], "each": [1, 0, 1]}}
    assert columns.decoded(table) == [{"text": "b"}, {"text": "a"}, {"text": "b"}]
    for each in ("0", "00001", "0z00"):
        with pytest.raises(ValueError, match=r"rows|kinds"):
            columns.decoded({"rows": 2, "text": {"kinds": ["a"], "each": each}})


def test_times_in_whole_milliseconds_are_written_as_such():
    rows = [Row(text="", seconds=1795490101.123 + number, number=0, flag=False) for number in range(40)]
    assert columns.encoded(rows)["seconds"] == {"millis": 1795490101123, "each": [1000 * n for n in range(40)]}
    assert [row["seconds"] for row in written(rows)] == [row.seconds for row in rows]
