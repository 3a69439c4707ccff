"""Progress of what takes long: nothing where it is quick, a bar on a terminal, a line every few seconds elsewhere."""

import os
import pty
import subprocess
import sys
import threading

import pytest

from marless.app.cli import working
from marless.app.cli.output import duration
from marless.app.cli.working import Working


@pytest.fixture
def soon(monkeypatch):
    """Seconds become hundredths."""
    monkeypatch.setattr(working, "QUIET_S", 0.01)
    monkeypatch.setattr(working, "EVERY_S", 0.02)


def lines_of(monkeypatch, what: Working, *told, count: int) -> list[str]:
    said, enough = [], threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == count:
            enough.set()

    monkeypatch.setattr(working, "say", say)
    with what:
        if told:
            what.told(*told)
        assert enough.wait(10)
    return said[:count]


def test_what_is_quick_shows_nothing(capsys):
    with Working("playing"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_a_line_every_few_seconds(soon, monkeypatch):
    what = Working("playing", "episodes")
    what._started_s -= 60
    lines = lines_of(monkeypatch, what, 250, 1000, "simple_spread", count=3)
    assert lines[2] == "playing … 250 of 1,000 episodes, 25%, simple_spread, 1:00 so far, 3:00 left"


class Waits:
    """Stands for the event of the end: time passes at once, and after a while the command is done."""

    def __init__(self) -> None:
        self.passed_s = 0.0

    def wait(self, timeout_s: float) -> bool:
        self.passed_s += timeout_s
        return self.passed_s > 10.0


def test_the_first_line_leaves_the_interpreter_half_a_second_of_two(monkeypatch):
    what, said_s = Working("submitting"), []
    waits = what._over = Waits()
    monkeypatch.setattr(working, "say", lambda line: said_s.append(waits.passed_s))
    what._show()
    assert said_s[0] <= 1.5


def test_what_cannot_be_counted_says_how_long_it_has_taken(soon, monkeypatch):
    assert lines_of(monkeypatch, Working("starting"), count=2)[1] == "starting … 0:00 so far"


def test_an_error_passes_and_ends_the_progress(soon):
    with pytest.raises(KeyError), Working("playing") as shown:
        raise KeyError
    assert not shown._thread.is_alive()


def test_times_read_like_those_of_a_watch():
    assert [duration(seconds) for seconds in (0, 42.4, 723, 3723, -1)] == ["0:00", "0:42", "12:03", "1:02:03", "0:00"]


def on_a_terminal(script: str) -> tuple[bytes, bytes]:
    """Standard output, and what a terminal of 80 columns on standard error shows."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while piece := os.read(master, 65536):
            shown += piece
    except OSError:  # the other end has closed
        pass
    out, _ = process.communicate(timeout=20)
    os.close(master)
    return out, shown


def test_a_terminal_gets_a_bar_and_data_go_where_they_belong():
    out, shown = on_a_terminal(
        "import time\n"
        "from marless.app.cli import working\n"
        "from marless.app.cli.output import console, data\n"
        "from marless.app.cli.progress import TrainingProgress\n"
        "working.QUIET_S = 0.0\n"
        "with working.Working('playing') as shown:\n"
        "    shown.told(40, 100, 'episodes')\n"
        "    time.sleep(0.5)\n"
        "    data('one')\n"
        "with TrainingProgress(console(stderr=True), 'job', None, 'waiting'):\n"
        "    data('two')\n"
    )
    assert out == b"one\ntwo\n"
    assert b"playing" in shown and b"40%" in shown and b"job" in shown
