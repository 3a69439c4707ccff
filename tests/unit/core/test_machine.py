"""What is told of a machine: read and written as text, refused if none is so, and found here if nobody told it."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.core.errors import CorruptError, SpecError
from marless.core.machine import MARKETS, Kept, Machine, MachineRecord, kept_from_json, usable_cores

TEXT = st.from_regex(r"[A-Za-z0-9_.:/@-]{1,20}", fullmatch=True)
MACHINES = st.builds(
    Machine,
    id=TEXT,
    type=TEXT,
    provider=TEXT,
    market=st.sampled_from(MARKETS),
    zone=TEXT,
    vcpus=st.floats(0, 4096),
    usd_h=st.none() | st.floats(0, 1000),
    launched_s=st.floats(0, 2e9),
)


@given(MACHINES)
def test_a_machine_is_read_as_it_was_written(machine):
    assert Machine.parse(str(machine)) == machine


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type", "no further key=value"),
        ("kind=x", "no further key=value of id, provider, type"),
        ("type=a,type=b", "no further key=value"),
        ("usd_h=cheap", "usd_h of a machine is 'cheap', which is no number"),
        ("usd_h=-1", "usd_h of a machine is -1: give a number of at most 1000"),
        ("usd_h=1001", "at most 1000"),
        ("usd_h=nan", "usd_h of a machine is nan"),
        ("launched_s=inf", "launched_s of a machine is inf"),
        ("vcpus=5000", "at most 4096"),
        ("market=black", "give one of on-demand, spot, reserved, own"),
        ("type=c6a large", "type of a machine is 'c6a large'"),
        (f"id={'x' * 65}", "give up to 64"),
        ("zone=münchen", "zone of a machine"),
    ],
)
def test_what_is_no_machine_is_refused_in_one_sentence(text, words):
    with pytest.raises(SpecError) as refused:
        Machine.parse(text)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_this_machine_has_an_id_and_vcpus_also_if_nobody_tells_them():
    here = Machine.here()
    assert len(here.id) == 12
    assert here.id == Machine.here("type=c6a.large").id  # the same for all workers of a machine, also in containers
    assert here.vcpus == os.cpu_count()
    assert (here.type, here.usd_h) == ("", None)
    assert Machine.here("id=i-1,vcpus=64") == Machine(id="i-1", vcpus=64.0)


def test_machines_json_is_read_as_it_was_written():
    row = MachineRecord(id="m", began_s=1.5, pool="actor", usd_h=0.5, work_s=2.0, held=True)
    kept = Kept(end=(row,), now=(row, row), seen_s=7.25)
    assert kept_from_json(kept.to_json()) == kept
    assert kept.held == 1


@pytest.mark.parametrize(
    "change", [{"work_s": "1"}, {"work_s": float("nan")}, {"usd_h": True}, {"id": 7}, {"more": 1}, {"held": 1}]
)
def test_a_damaged_machines_json_is_refused(change):
    row = {"id": "m", "began_s": 1.0} | change
    with pytest.raises(CorruptError):
        kept_from_json(json.dumps({"end": [row], "now": [], "seen_s": 1.0}))


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert usable_cores() == os.cpu_count()
