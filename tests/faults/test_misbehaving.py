"""A few of the ways in which environments misbehave, beside a job that must go on; `make faults` has all of them."""

from tests.faults import misbehaving
from tests.misbehaving_env import CALLS, WAYS

FEW = [
    ("segmentation_fault", "make", False),
    ("exit_0", "close", False),
    ("abort", "step", True),
    ("sigkill", "reset", True),
    ("close_descriptors", "step", True),
    ("fork_that_returns", "make", True),
    ("detached_process", "step", True),
    ("hold_the_lock", "step", True),
]


def test_there_are_fifty_ways_and_each_is_tried_in_each_call():
    assert len(WAYS) >= 50
    assert {(way, call) for way, call, later in misbehaving.cases() if later} == {(w, c) for w in WAYS for c in CALLS}


async def test_a_job_whose_environment_misbehaves_harms_nobody_else(tmp_path):
    figures = await misbehaving.run(7, tmp_path, FEW)
    assert figures["ways"] == len(FEW)
    assert figures["jobs refused"] >= 1
    assert figures["jobs failed"] >= 3
