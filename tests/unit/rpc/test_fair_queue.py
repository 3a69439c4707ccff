"""Turns between jobs: nobody waits for more than one turn of each other job, and within a job the oldest goes first."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marless.rpc.admission import FairQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd")),
        st.tuples(st.just("add again"), st.sampled_from("abcd")),
        st.tuples(st.just("discard"), st.integers(0, 7)),
        st.just(("take", None)),
    ),
    max_size=80,
)


@given(STEPS)
def test_turns_against_a_model(steps):
    """The model: a list a job, and how often each other job was served while a job has waited."""
    turns: FairQueue[int] = FairQueue()
    waiting: dict[str, list[int]] = {}
    served: dict[str, Counter[str]] = {}
    for serial, (step, what) in enumerate(steps):
        if step == "take" and not waiting:
            with pytest.raises(KeyError):
                turns.take()
        elif step == "take":
            taken = turns.take()
            job = next(name for name, serials in waiting.items() if taken in serials)
            assert taken == waiting[job].pop(0)
            for other in waiting:
                served[other][job] += 1
                assert other == job or served[other][job] <= 1, f"{other} waited for two turns of {job}"
            served[job] = Counter()
            if not waiting[job]:
                del waiting[job]
        elif step == "discard":
            there = [(job, each) for job, serials in waiting.items() for each in serials]
            job, known = [*there, ("nobody", -1)][what % (len(there) + 1)]
            assert turns.discard(job, known) == (job in waiting)
            if job in waiting:
                waiting[job].remove(known)
                if not waiting[job]:
                    del waiting[job]
        else:
            if what not in waiting:
                served[what] = Counter()
            waiting.setdefault(what, []).insert(0 if step == "add again" else len(waiting[what]), serial)
            turns.add(what, serial, again=step == "add again")
        assert len(turns) == sum(map(len, waiting.values()))
