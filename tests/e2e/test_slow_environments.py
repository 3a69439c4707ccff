"""`marless train` of an environment that takes seconds to be made, and whose steps never end, as a user meets it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.test_train import WITNESS, Train, start

FIRST_LINE_S = 2.0
TRIES = 3
"""A machine may be busy with something else for a moment."""
ENDED_S = 8.0
"""After Ctrl-C: 5 s, and what a busy machine needs to end ten processes."""
MAKING_S = 3.0
"""Longer than the first line may take."""


@pytest.fixture
def train(tmp_path) -> Iterator[Callable[[], tuple[Train, float, str]]]:
    """Starts the command; the returned seconds passed until its first line, which is returned too."""
    started: list[Train] = []

    def begin() -> tuple[Train, float, str]:
        for each in started:
            each.process.kill()
        place = tmp_path / str(len(started))
        place.mkdir()
        hold = place / "hold"
        hold.touch()
        options = {"name": "waiting", "options": {"hold": str(hold), "hangs": True, "making_s": MAKING_S}}
        began_s = time.monotonic()
        run = start(place, "--set", f"env={options}", PYTHONPATH=str(WITNESS))
        started.append(run)
        line = run.process.stderr.readline()
        return run, time.monotonic() - began_s - waited_for_cpu_s(run.process.pid), line

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate()


def waited_for_cpu_s(pid: int) -> float:
    """Of a process's main thread, which imports and parses: while others had the CPUs, as Linux counts it."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0


@pytest.mark.alone
def test_the_first_line_comes_within_two_seconds_and_ctrl_c_waits_for_no_step(train):
    """From the start of the process. The best of three, for what else this machine does is not the command's doing."""
    for _ in range(TRIES):
        run, first_line_s, line = train()
        if first_line_s <= FIRST_LINE_S:
            break
    assert first_line_s <= FIRST_LINE_S
    assert line.startswith("marless: checking job.yaml: making waiting once … ")
    run.until("round 1: actors sample")
    interrupted_s = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.end()[0] == 130
    assert time.monotonic() - interrupted_s < ENDED_S
