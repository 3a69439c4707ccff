"""Failpoints: dead at the pass that was asked for, and a name that does not exist is no quiet test."""

import signal
import subprocess
import sys

import pytest

from marless.core import failpoint


def passes(setting: str) -> subprocess.CompletedProcess[str]:
    """What a process says that passes each place three times."""
    program = (
        "from marless.core.failpoint import NAMES, failpoint\n"
        "for _ in range(3): [*map(failpoint, NAMES), print(1, flush=True)]"
    )
    environment = {"MARLESS_FAILPOINT": setting} if setting else {}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(("setting", "lived"), [("coordinator.record.after", 0), ("coordinator.record.after:3", 2)])
def test_the_process_is_killed_at_that_pass(setting, lived):
    done = passes(setting)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "1\n" * lived


def test_nothing_happens_unless_it_is_asked_for():
    assert passes("").stdout == passes("learner.publish.before:4").stdout == "1\n1\n1\n"


def test_a_name_that_does_not_exist_is_refused():
    done = passes("coordinator.recrod.after")
    assert "unknown failpoint 'coordinator.recrod.after'; did you mean 'coordinator.record.after'?" in done.stderr
    with pytest.raises(AssertionError, match="somewhere"):
        failpoint.failpoint("somewhere")
