"""The linearizability check agrees with an exhaustive search, names what is wrong, and is fast."""

import dataclasses
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.register import (
    UNKNOWN,
    Acquire,
    NotLinearizableError,
    Operation,
    ReadEpoch,
    ReadHead,
    ReadVersion,
    Write,
    check,
    search,
)


def linearizable(history: list[Operation]) -> bool:
    try:
        check(history)
    except NotLinearizableError:
        return False
    return True


def recorded(rng: random.Random, size: int) -> list[Operation]:
    """What clients of a perfect register might have recorded: each call takes effect at one moment within it."""
    contents: list[str] = []
    epoch = 0
    history: list[Operation] = []
    for at in range(size):
        start, end = at - rng.uniform(0, 3), at + rng.uniform(0, 3)
        answered = rng.random() < 0.8
        match rng.randrange(5):
            case 0 | 1:
                write = Write(
                    start=start,
                    end=end if answered else UNKNOWN,
                    content=f"w{at}",
                    expected=max(0, len(contents) - (rng.random() < 0.2)),
                    epoch=max(0, epoch - (rng.random() < 0.2)),
                )
                outcome: dict[str, int] = {}
                if write.epoch < epoch:
                    outcome = {"fenced": epoch}
                elif write.expected != len(contents):
                    outcome = {"conflict": len(contents)}
                elif answered or rng.random() < 0.5:  # unanswered, it may have been applied, or never arrived
                    contents.append(write.content)
                    outcome = {"version": len(contents)}
                history.append(dataclasses.replace(write, **outcome) if answered else write)
            case 2:
                history.append(ReadHead(start=start, end=end, version=len(contents), content="".join(contents[-1:])))
            case 3:
                if answered or rng.random() < 0.5:
                    epoch += 1
                history.append(
                    Acquire(start=start, end=end if answered else UNKNOWN, epoch=epoch if answered else None)
                )
            case 4:
                history.append(ReadEpoch(start=start, end=end, epoch=epoch))
    finally_s = size + 4.0
    history += [
        ReadVersion(start=finally_s + version, end=finally_s + version + 0.5, version=version, content=content)
        for version, content in enumerate(contents, 1)
    ]
    return history


LEAST = {
    Write: {"version": 1, "expected": 0, "epoch": 0, "conflict": 0, "fenced": 0},
    ReadHead: {"version": 0},
    ReadVersion: {"version": 0},
    Acquire: {"epoch": 1},
    ReadEpoch: {"epoch": 0},
}
"""The numbers of each kind of operation, with the least that they can be."""


def tampered(rng: random.Random, history: list[Operation]) -> list[Operation]:
    """The same with one number changed, or one operation moved in time."""
    at = rng.randrange(len(history))
    operation = history[at]
    if rng.random() < 0.3 or operation.end == UNKNOWN:
        by = rng.uniform(-6, 6)
        changed = dataclasses.replace(operation, start=operation.start + by, end=operation.end + by)
    else:
        least = LEAST[type(operation)]
        name = rng.choice([name for name in least if getattr(operation, name) is not None])
        number = max(least[name], getattr(operation, name) + rng.choice((-1, 1)))
        if name == "conflict":  # the check asks that every version that is spoken of has been read
            number = min(number, sum(isinstance(each, ReadVersion) for each in history))
        changed = dataclasses.replace(operation, **{name: number})
    return [*history[:at], changed, *history[at + 1 :]]


@settings(max_examples=400)
@given(st.integers(0), st.integers(1, 9))
def test_a_perfect_register_passes_and_the_search_agrees(seed, size):
    history = recorded(random.Random(seed), size)
    check(history)
    assert search(history)


@settings(max_examples=800)
@given(st.integers(0), st.integers(1, 8))
def test_the_search_agrees_on_histories_that_were_tampered_with(seed, size):
    rng = random.Random(seed)
    history = tampered(rng, recorded(rng, size))
    assert linearizable(history) == search(history), history


def test_tampering_is_often_noticed():
    """Else the test above would compare one constant with another."""
    rng = random.Random(0)
    verdicts = [linearizable(tampered(rng, recorded(rng, 8))) for _ in range(300)]
    assert 50 < sum(verdicts) < 250


FIRST = Write(start=0, end=1, content="a", expected=0, epoch=0, version=1)
SECOND = Write(start=2, end=3, content="b", expected=1, epoch=0, version=2)

WRONG = {
    "a stale read": [FIRST, SECOND, ReadHead(start=4, end=5, version=1, content="a")],
    "a read of the future": [FIRST, ReadHead(start=0.5, end=1.5, version=2, content="b"), SECOND],
    "a content that nobody wrote": [FIRST, ReadHead(start=2, end=3, version=1, content="x")],
    "a blind write": [FIRST, SECOND, Write(start=4, end=5, content="c", expected=1, epoch=0, version=3)],
    "an overwritten version": [FIRST, Write(start=2, end=3, content="b", expected=0, epoch=0, version=1)],
    "a lost write": [FIRST, ReadHead(start=2, end=3, version=0)],
    "a version that nobody made": [SECOND, ReadVersion(start=4, end=5, version=2, content="b")],
    "a spurious conflict": [FIRST, Write(start=2, end=3, content="b", expected=1, epoch=0, conflict=1)],
    "a conflict with a head that has passed": [
        *(FIRST, SECOND),
        Write(start=4, end=5, content="c", expected=2, epoch=0, conflict=1),
    ],
    "a publish after its epoch": [FIRST, Acquire(start=1.2, end=1.5, epoch=1), SECOND],
    "a fence that is not there": [FIRST, Write(start=2, end=3, content="b", expected=1, epoch=0, fenced=1)],
    "a fence not noticed": [
        *(FIRST, Acquire(start=1.2, end=1.5, epoch=1)),
        Write(start=2, end=3, content="b", expected=0, epoch=0, conflict=1),
    ],
    "an epoch given twice": [Acquire(start=0, end=1, epoch=1), Acquire(start=2, end=3, epoch=1)],
    "a refused write that was applied": [
        FIRST,
        Write(start=2, end=3, content="b", expected=0, epoch=0, conflict=1),
        ReadVersion(start=4, end=5, version=2, content="b"),
    ],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_noticed_by_both(name):
    assert not linearizable(WRONG[name])
    assert not search(WRONG[name])


def test_the_proof_names_the_operations():
    with pytest.raises(NotLinearizableError) as caught:
        check(WRONG["a stale read"])
    assert "ReadHead" in str(caught.value)
    assert "content='b'" in str(caught.value)


def test_twenty_thousand_operations_take_less_than_seconds():
    history = recorded(random.Random(1), 20_000)
    start_s = time.process_time()
    check(history)
    assert time.process_time() - start_s < 3.0
