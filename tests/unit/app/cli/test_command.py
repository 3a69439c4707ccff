"""The entry point: Ctrl-C is one sentence, even while the command is still being imported."""

import builtins
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marless.app.cli import command


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_during_imports_is_a_sentence(monkeypatch, capsys):
    load = builtins.__import__

    def interrupted(name, *rest):
        if name == "marless.app.cli.main":
            raise KeyboardInterrupt
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 130
    assert capsys.readouterr().err == "marless: interrupted\n"
    signal.raise_signal(signal.SIGINT)  # the interpreter's own end is not interrupted


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_without_unicode_is_no_error(encoding):
    program = "from marless.app.cli import output; output.prepare(); output.data('1\u20132')"
    environment = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().strip() == ("1?2" if encoding == "ascii" else "1\u20132")


def test_a_closed_output_is_no_error():
    program = [sys.executable, "-m", "marless", "--version"]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("words", [["--version"], ["doctor"]])
def test_an_output_on_a_full_disk_is_said_in_one_sentence(words):
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "marless", *words]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "marless: the output cannot be written (No space left on device); make room, or write it elsewhere"
    assert "Traceback" not in done.stderr
