"""What functions took, added up over passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from marless.core.group import FunctionRun
from marless.learning.algos.training.passes import PassTimer


def _clock(*readings: float) -> Iterator[float]:
    return iter(readings)


def test_passes_add_up_and_are_shared_evenly() -> None:
    seconds, now = _clock(0.0, 2.0, 2.0, 3.0, 3.0, 7.0), _clock(100, 102, 102, 103, 110, 114)
    cpu = _clock(0.0, 1.0, 1.0, 1.25, 1.25, 3.25)
    meter = PassTimer(seconds=lambda: next(seconds), now=lambda: next(now), cpu=lambda: next(cpu))
    with meter.measure("critic", ["x", "y"]):
        pass
    with meter.measure("policy", ["x"]):
        pass
    with meter.measure("critic", ["y"]):
        pass
    assert meter.runs() == (
        FunctionRun("critic", "x", 100, 102, 1.0, 0.5),
        FunctionRun("critic", "y", 100, 114, 5.0, 2.5),
        FunctionRun("policy", "x", 102, 103, 1.0, 0.25),
    )


def test_a_pass_that_raises_is_not_counted() -> None:
    meter = PassTimer()
    with pytest.raises(KeyError), meter.measure("mixer", ["team"]):
        raise KeyError
    assert meter.runs() == ()


def test_passes_of_several_threads_are_all_counted() -> None:
    local = threading.local()

    def seconds() -> float:
        local.now = getattr(local, "now", 0.0) + 1.0
        return local.now

    meter = PassTimer(seconds=seconds)

    def work() -> None:
        for _ in range(200):
            with meter.measure("policy", ["x", "y"]):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(run.name, run.vcpu_s) for run in meter.runs()] == [("x", 400.0), ("y", 400.0)]
